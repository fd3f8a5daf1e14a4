"""Small measurements of single pieces."""
