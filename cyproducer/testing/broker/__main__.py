"""The process of an ``EmbeddedBroker`` with ``process=True``."""

import sys
from multiprocessing.connection import Connection

from cyproducer.testing.broker.runner import serve

serve(Connection(int(sys.argv[1])))
