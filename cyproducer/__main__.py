"""``python -m cyproducer``: the command line."""

import sys

from cyproducer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
