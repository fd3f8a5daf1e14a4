"""The sender loop: sends batches and reads their responses, mostly without the GIL."""
