"""A Kafka cluster, a Spark session, the rig, an independent codec: what tests, benchmarks and demo share."""
