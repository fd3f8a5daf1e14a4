"""Encodes records as bytes: Cython modules without I/O."""
