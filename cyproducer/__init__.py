"""A Kafka producer with kafka-python's API whose work per record is done in C."""
