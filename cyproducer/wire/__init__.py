"""Encodes and decodes Kafka's messages: primitive types, declared messages, choice of versions. No I/O."""
