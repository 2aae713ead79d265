import json
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def tiny_a() -> dict[str, Any]:
    """The golden checkpoint's config.json."""
    return json.loads((FIXTURES / "golden" / "tiny_a" / "config.json").read_text())
