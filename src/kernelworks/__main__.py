"""``python -m kernelworks``: the command line."""

import sys

from kernelworks.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
