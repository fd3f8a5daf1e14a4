"""The command line: ``python -m cyproducer``, also installed as ``cyproducer``."""
