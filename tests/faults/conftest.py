"""The checks that catch planted faults are other rooms' tests: make their modules importable."""

import sys
from pathlib import Path

for room in ("model", "ops"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))
