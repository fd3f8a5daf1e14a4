"""Requests to brokers other than Produce: metadata, producer ids, transactions, topics."""
