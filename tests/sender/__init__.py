"""Tests of ``cyproducer.sender``."""
