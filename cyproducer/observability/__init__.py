"""What ``metrics()`` tells and ``metric_reporters`` are told of: names, units, meanings. C counts."""
