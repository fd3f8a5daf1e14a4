"""Where bytes wait: the buffer pool, the accumulator and the futures. Cython, without I/O."""
