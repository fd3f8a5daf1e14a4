"""Locks, clocks, durations and counters, used by every layer. Imports nothing else from the package."""
