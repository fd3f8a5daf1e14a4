"""Where records wait: the buffer pool, and one queue of batches per partition. No I/O."""
