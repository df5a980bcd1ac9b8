"""``python -m trainyard_toolkit``."""

import sys

from trainyard_toolkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
