"""What cases wait for is refused by name, not half done."""

from collections.abc import Callable
from typing import Any

import pytest
from own_options import refused


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("cache.host_bytes=1GiB", "cache (kind paged) has no key 'host_bytes'"),
        ("cache=tiered", "no option 'tiered' in group cache; there are paged or prefix"),
    ],
)
def test_cache_tiers_are_refused_by_name(override: str, says: str) -> None:
    """K06, K07 and K13 wait for blocks on the host, on disk or in a store."""
    assert says in refused(override)


@pytest.mark.parametrize("verb", ["generate", "serve"])
def test_what_needs_two_roles_is_not_run(deepinfer: Callable[..., Any], verb: str) -> None:
    """K08 to K12 wait."""
    words = ["prompt=x"] if verb == "generate" else []
    done = deepinfer(verb, "model=v41_tiny", "deploy=disaggregated", *words)
    assert done.code != 0 and "this version has no code to run it" in done.err and done.out == ""
