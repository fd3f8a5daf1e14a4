from collections.abc import Callable

def in_child(renew: Callable[[], object]) -> None:
    """Registers a function that renews something in each forked child, before the child uses it.

    The functions are called in the order of registration. If one is interrupted, all are called again.
    """

def ensure_own_process() -> None:
    """``own_process`` for Python code."""
