"""What is asked of brokers besides Produce: metadata, producer ids, transactions, topics."""
