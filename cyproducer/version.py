"""The version of this package: sent to brokers, printed by ``--version``, and in the package's metadata."""

VERSION = "0.1.0"
