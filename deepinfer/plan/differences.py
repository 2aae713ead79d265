"""Where the config.json in model.path differs from that of the model it is called. The folder's own wins."""

from collections.abc import Iterator
from typing import Any

from deepinfer.config.facts import FOLDER, Facts


def differences(facts: Facts, name: str) -> tuple[str, ...]:
    """One sentence for each value that differs from the model `name`; none where one of the two is not there."""
    named, own = facts.checkpoints.get(name), facts.checkpoints.get(FOLDER)
    if named is None or own is None or named.config is None or own.config is None:
        return ()
    here, there = dict(_leaves(own.config)), dict(_leaves(named.config))
    return tuple(
        f"{key}: {here.get(key, 'absent')} in the checkpoint, {there.get(key, 'absent')} in {name}"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, str(value)
