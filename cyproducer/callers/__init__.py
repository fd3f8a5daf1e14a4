"""What runs on threads that call ``send()``, ``send_many()``, ``send_arrow()``: from arguments to batches."""
