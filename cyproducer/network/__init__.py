"""Sockets, threads and clocks: the only package that has any."""
