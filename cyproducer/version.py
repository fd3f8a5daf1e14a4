"""The version of this package: what brokers are told, ``--version`` prints and the package's metadata has."""

VERSION = "0.1.0"
