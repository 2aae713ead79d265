"""Two lists that change on purpose only: the keys of the configuration, and what cannot be run yet."""

from pathlib import Path

from deepinfer.config.keys import leaf_keys, text_keys
from deepinfer.config.runnable import INSTEAD, NOT_BUILT, ONE_RANK_ON

HERE = Path(__file__).parent
UPDATE_KEYS = "python tests/config/test_frozen.py > tests/config/config_keys.txt"
UPDATE_NOT_BUILT = "by hand: tests/config/not_built.txt; it may only get shorter"


def frozen(name: str) -> list[str]:
    return (HERE / name).read_text("utf-8").splitlines()


def test_config_keys_are_frozen() -> None:
    """Anyone may have these keys in a file of their own: appearing and vanishing both need a thought."""
    keys, before = list(leaf_keys()), frozen("config_keys.txt")
    appeared, vanished = sorted(set(keys) - set(before)), sorted(set(before) - set(keys))
    assert (appeared, vanished) == ([], []), f"if this is meant, type: {UPDATE_KEYS}"


def test_not_built_may_only_shrink() -> None:
    now = [f"{path}: {value}" for path, values in NOT_BUILT.items() for value in values]
    now += [f"parallel: above 1 rank on {kind}" for kind in ONE_RANK_ON]
    grown = sorted(set(now) - set(frozen("not_built.txt")))
    assert grown == [], "what could be run must stay runnable"
    assert set(now) == set(frozen("not_built.txt")), UPDATE_NOT_BUILT
    assert set(INSTEAD) == set(NOT_BUILT)


def test_free_text_keys() -> None:
    assert {"model.path", "model.repo", "model.revision", "serving.host", "workload.path"} <= text_keys()
    assert not {"sampling.n", "model.dtype", "cache.memory_bytes"} & text_keys()


if __name__ == "__main__":
    print("\n".join(leaf_keys()))
