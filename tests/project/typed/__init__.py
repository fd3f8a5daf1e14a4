"""Programs as users write them, for type checkers: correct ones, and ones with a mistake in each function."""
