"""Kafka's messages as bytes: primitive types, declared messages, and the choice of versions. Pure."""
