"""`python -m deepinfer` and the `deepinfer` command."""

import sys

from deepinfer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
