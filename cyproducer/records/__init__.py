"""How records become bytes: Cython modules without I/O."""
