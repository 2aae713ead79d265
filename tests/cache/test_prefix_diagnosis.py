"""Prompts share a beginning and nothing is ever hit: the user is told once, and why."""

from collections.abc import Callable

import numpy as np
import pytest
from test_prefix_cache import Player, make_cache, prompt

from deepinfer.config.compose import load_with_choices
from deepinfer.config.facts import probe
from deepinfer.engine.build_prefix import build_prefix
from deepinfer.plan.resolve import resolve

TIMES = 17  # one more than are counted: the first prompt shares with none


def shares(tokens: int, length: int = 400) -> Callable[[int], np.ndarray]:
    def one(seed: int) -> np.ndarray:
        made = prompt(length, seed + 100)
        made[:tokens] = prompt(length)[:tokens]
        return made

    return one


@pytest.mark.parametrize(
    "cause, make, cache, options",
    [
        ("less than one block shared", shares(127), {}, {}),
        ("less than one block shared", shares(32), {}, {}),
        ("prompts of no more than one block", shares(100, length=128), {}, {}),
        ("cache.snapshot_bytes has room for no snapshot", shares(400), {"snapshots": 0}, {}),
        ("prompt log probabilities were asked for", shares(400), {}, {"usable": False}),
        ("replay.on_hit=exact computes all", shares(250), {"on_hit": "exact", "layers": 9}, {}),
        ("replay.keep_tokens=300 leaves less", shares(400), {"keep": 300}, {}),
        ("blocks evicted before", shares(400), {"blocks": 4}, {}),
    ],
)
def test_the_cause_is_named_once(cause: str, make: Callable, cache: dict, options: dict) -> None:
    player = Player(make_cache(**cache))
    notices = []
    for seed in range(3 * TIMES):
        player.run(make(seed), **options)
        if "evicted" in cause:
            player.run(prompt(500, seed + 9000))  # a stranger that takes all blocks
        notices.append(player.cache.take_notice())
    (notice,) = filter(None, notices)
    assert cause in notice and notice.startswith("prefix cache: 0 hits although 16 prompts shared ")
    assert ("32 tokens" if "one block" in cause else "128 tokens") in notice


def test_a_notice_of_snapshots_names_what_to_type() -> None:
    typed = ("cache=prefix", "scheduler.max_num_seqs=2", "cache.snapshot_bytes=0", "model.max_model_len=512")
    spec, choices = load_with_choices("model=v41_tiny", "hardware=cpu", *typed)
    plan = resolve(spec, probe(spec), choices)
    cache = build_prefix(plan)
    assert cache is not None
    player = Player(cache)
    for seed in range(TIMES):
        player.run(shares(400)(seed))
    notice = cache.take_notice()
    assert notice and f"type cache.snapshot_bytes={3 * plan.cache.padded_state_bytes}" in notice


def test_salts_that_differ_are_named() -> None:
    player, tokens = Player(make_cache()), prompt(400)
    for number in range(TIMES):
        player.run(tokens, salt=f"tenant {number}")
    notice = player.cache.take_notice()
    assert notice and "16 × cache salts differ" in notice


def test_prompts_that_run_side_by_side_are_named() -> None:
    player, tokens = Player(make_cache(blocks=100)), prompt(400)
    for _ in range(TIMES):
        player.start(tokens)
    notice = player.cache.take_notice()
    assert notice and "16 × still being computed" in notice


def test_nothing_is_said_where_it_hits_or_nothing_is_shared() -> None:
    player = Player(make_cache())
    for seed in range(40):
        player.run(prompt(300, seed))
    assert player.cache.take_notice() is None
    player.run(prompt(300, 39))
    for seed in range(40):
        player.run(shares(64)(seed))
    assert player.cache.take_notice() is None
