"""The checkpoint's drafter through rings, chunks and rejected drafts, against golden drafts and against itself."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
import torch
from draft_bench import DraftBench, draft_bench
from small_models import golden_arrays, golden_model, golden_prompts, k6_model, random_tokens

from deepinfer.ops import native, reference

SETTINGS = [("full", "float64", 2e-6), ("kv", "float64", 2e-6), ("none", "float32", 1e-4)]
BLOCK = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """What a plan pins for models this small; two threads that wait for each other are far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")
def setting(request: pytest.FixtureRequest) -> tuple[DraftBench, str, float]:
    numerics, dtype, tolerance = request.param
    return draft_bench(golden_model(), reference(), numerics, dtype), numerics, tolerance


@lru_cache(maxsize=1)
def shared() -> DraftBench:
    return draft_bench(k6_model(), native(), "full", "float32")


@pytest.fixture
def bench() -> DraftBench:
    """The shipped model's shape, float32, packed caches, all of them NaN."""
    shared().engine.forget()
    return shared()


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", range(6))
def test_drafts_and_confidences_through_rings_equal_golden(setting: tuple[DraftBench, str, float], number: int) -> None:
    bench, numerics, tolerance = setting
    gold, key = golden_arrays(), f"chk_f64/{numerics}/{number}"
    tokens = [*golden_prompts()[number], int(gold[f"{key}/greedy"][0])]
    bench.engine.forget()
    bench.prefill(tokens, [len(tokens) // 3, len(tokens) // 2], slot=3)
    drafts, logits_SKV = bench.draft((tokens, 3))
    assert [tokens[-1], *drafts.token_ids[0].tolist()] == gold[f"{key}/draft_tokens"].tolist()
    np.testing.assert_allclose(logits_SKV[0], gold[f"{key}/draft_logits"], rtol=0, atol=max(tolerance, 1e-5))
    chance = 1 / (1 + np.exp(-gold[f"{key}/draft_conf_raw"].astype(np.float64)))
    np.testing.assert_allclose(drafts.confidence[0], chance, rtol=0, atol=tolerance)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", [0, 2, 5])
def test_decoding_with_drafts_gives_the_golden_text(setting: tuple[DraftBench, str, float], number: int) -> None:
    bench, numerics, _ = setting
    wanted, prompt = golden_arrays()[f"chk_f64/{numerics}/{number}/greedy"].tolist(), golden_prompts()[number]
    bench.engine.forget()
    tokens = [*prompt, wanted[0]]
    bench.prefill(tokens, [], slot=1)
    assert bench.follow(tokens, 1, len(wanted) - 1)[len(prompt) :] == wanted


def test_drafts_do_not_depend_on_how_a_prompt_was_cut(bench: DraftBench) -> None:
    tokens = random_tokens(k6_model().config, 150, 5)
    bench.prefill(tokens, [], slot=0)
    whole = bench.draft((tokens, 0))
    for slot, cuts in enumerate(([1], [127, 128, 129], [134, 135], list(range(20, 140, 17))), 1):
        bench.prefill(tokens, cuts, slot)
        cut = bench.draft((tokens, slot))
        assert torch.equal(whole[1], cut[1]), cuts
        assert np.array_equal(whole[0].confidence, cut[0].confidence)


def test_drafts_do_not_depend_on_the_batch(bench: DraftBench) -> None:
    lengths = [2, 3, 7, 60, 128, 129, 135, 200]
    sequences = [(random_tokens(k6_model().config, length, length), slot) for slot, length in enumerate(lengths)]
    for tokens, slot in sequences:
        bench.prefill(tokens, [], slot)
    alone = [bench.draft(sequence) for sequence in sequences]
    for width in (2, 5, 7, 8, 9, 16, 17, 33):
        some = [(3 * i + width) % len(sequences) for i in range(width)]  # some of them twice
        together, logits_SKV = bench.draft(*(sequences[s] for s in some))
        for i, s in enumerate(some):
            assert torch.equal(logits_SKV[i], alone[s][1][0]), (width, i)
            assert np.array_equal(together.token_ids[i], alone[s][0].token_ids[0])
            assert np.array_equal(together.confidence[i], alone[s][0].confidence[0])


def test_k05_drafts_behind_a_restored_snapshot_equal_cold_ones(bench: DraftBench) -> None:
    """sglang PR#21125, #31600: draft keys come back with the target's, so acceptance is that of a cold prefill.

    The snapshot is taken in the middle of a chunk, and the sequence that left it has gone.
    """
    tokens = random_tokens(k6_model().config, 200, 4)
    bench.prefill(tokens, [], slot=0)
    cold = bench.draft((tokens, 0))
    bench.step((tokens, 0, 50, 0))
    bench.step((tokens, 50, 199, 0), snapshots=[[0, 128, 1]])
    bench.engine.cache.fill_nan_slots(list(range(8)))
    bench.step((tokens, 128, 199, 5), tables=[bench.engine.table(0)], restores=[[5, 1]])
    warm = bench.draft((tokens, 5))
    assert torch.equal(warm[1], cold[1])
    assert np.array_equal(warm[0].confidence, cold[0].confidence)


def test_drafts_see_no_key_before_what_replay_keeps(bench: DraftBench) -> None:
    """The same whether dropped rows are computed or not, in one chunk or in three; otherwise than without replay."""
    tokens = random_tokens(k6_model().config, 240, 4)
    compact = draft_bench(k6_model(), native(), "full", "float32", compact=True)
    found = []
    for one, cuts in ((bench, []), (bench, [90, 170]), (compact, []), (compact, [90, 170])):
        one.engine.forget()
        for a, b in zip([0, *cuts], [*cuts, 239]):
            sampled: list[int] = [b - a - 1] if b == 239 else []
            one.step((tokens, a, b, 2), upper_from=[150], window_from=[0], sample_rows=sampled)
        found.append(one.draft((tokens, 2)))
    bench.prefill(tokens, [], slot=3)
    assert not torch.equal(bench.draft((tokens, 3))[1], found[0][1])
    for drafts, logits_SKV in found[1:]:
        assert torch.equal(logits_SKV, found[0][1])
        assert np.array_equal(drafts.confidence, found[0][0].confidence)


@pytest.mark.sample(3)
@pytest.mark.parametrize("accepted", range(BLOCK + 1))
def test_rejected_rows_leave_no_trace(bench: DraftBench, accepted: int) -> None:
    """Rounds with wrong drafts behind the accepted ones, where the rings wrap, and a clean prefill of the same text."""
    text, wrong = (random_tokens(k6_model().config, 160, seed) for seed in (8, 9))
    length = 131
    bench.prefill(text[:length], [], slot=0)
    for _ in range(3):
        checked = text[: length + accepted] + wrong[length + accepted : length + BLOCK]
        bench.step((checked, length - 1, length + BLOCK, 0))
        length += accepted + 1
    bench.prefill(text[:length], [], slot=1)
    used, clean = bench.draft((text[:length], 0)), bench.draft((text[:length], 1))
    assert torch.equal(used[1], clean[1])
    assert np.array_equal(used[0].confidence, clean[0].confidence)


def test_a_smaller_depth_is_the_beginning_of_the_block(bench: DraftBench) -> None:
    tokens = random_tokens(k6_model().config, 40, 6)
    bench.prefill(tokens, [], slot=0)
    whole, logits_SKV = bench.draft((tokens, 0))
    for depth in range(1, BLOCK):
        bench.drafter.depth = depth
        try:
            short, short_logits = bench.draft((tokens, 0))
        finally:
            bench.drafter.depth = BLOCK
        assert short.token_ids.shape == short.confidence.shape == (1, depth)
        assert torch.equal(short_logits, logits_SKV[:, :depth])
        assert np.array_equal(short.confidence, whole.confidence[:, :depth])


def test_a_draft_that_is_refused_ends_the_proposals_of_its_sequence_alone(bench: DraftBench) -> None:
    tokens = random_tokens(k6_model().config, 40, 7)
    bench.prefill(tokens, [], slot=0)
    bench.prefill(tokens, [], slot=1)
    free, _ = bench.draft((tokens, 0))
    tokens_NL = np.tile(np.array(tokens, np.int32), (2, 1))

    def choose(number: int, logits_SV: torch.Tensor) -> np.ndarray:
        chosen = logits_SV.argmax(-1).numpy().copy()
        chosen[1] = -1 if number == 2 else chosen[1]
        return chosen

    drafts = bench.drafter.draft(np.array([0, 1]), tokens_NL, np.array([40, 40]), 0, choose)
    assert np.array_equal(drafts.token_ids[0], free.token_ids[0])
    assert drafts.token_ids[1].tolist() == [*free.token_ids[0, :2].tolist(), -1, -1, -1]
    assert drafts.confidence[1, 2:].tolist() == [0, 0, 0] and (drafts.confidence[1, :2] > 0).all()


def test_no_sequence_is_no_work(bench: DraftBench) -> None:
    drafts = bench.drafter.draft(
        np.zeros(0, np.int64), np.zeros((1, 1), np.int32), np.zeros(0, np.int64), 0, pytest.fail
    )
    assert drafts.token_ids.shape == drafts.confidence.shape == (0, BLOCK)


def test_a_block_deeper_than_the_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match=r"speculation\.depth=7.*blocks of 5"):
        draft_bench(k6_model(), reference(), "full", "float32", depth=7)
