"""The training code is no part of the package: make the checkout importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
