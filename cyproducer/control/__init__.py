"""Makes the decisions: pure Python state machines that open no socket, start no thread and read no clock."""
