"""Tests of ``cyproducer.clients``."""
