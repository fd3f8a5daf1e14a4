"""Outcomes of records: futures, the threads that wait for them, the callbacks that are due. No I/O."""
