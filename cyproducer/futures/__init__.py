"""Futures: the outcomes of records, the threads that wait for them, and their callbacks. No I/O."""
