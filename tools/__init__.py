"""Scripts for building, checking and testing."""
