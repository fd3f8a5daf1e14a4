"""What decides: pure Python state machines that open no socket, start no thread and read no clock."""
