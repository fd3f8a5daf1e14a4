"""Tests of ``cyproducer.wire``."""
