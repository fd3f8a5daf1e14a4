"""Small benchmarks of single parts."""
