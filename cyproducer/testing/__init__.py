"""Helps users test code that produces: a broker without Java, Docker or an installation."""

from cyproducer.testing.embedded import EmbeddedBroker, EmbeddedBrokerError

__all__ = ["EmbeddedBroker", "EmbeddedBrokerError"]
