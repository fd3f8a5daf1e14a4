"""What every layer builds on: locks, clocks, durations, counters. Imports nothing else of the package."""
