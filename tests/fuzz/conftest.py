"""Engines of an accelerator on the CPU are made by the engine's own tests: make them importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
