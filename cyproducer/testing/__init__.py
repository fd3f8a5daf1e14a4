"""What users need to test their own programs: an embedded broker."""
