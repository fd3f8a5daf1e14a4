"""Tests of ``cyproducer.net``."""
