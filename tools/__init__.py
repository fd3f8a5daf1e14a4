"""What building, checking and testing is done with; run as scripts."""
