"""Holds records until they are sent: the buffer pool and one batch queue per partition. Does no I/O."""
