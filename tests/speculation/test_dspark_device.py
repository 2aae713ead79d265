"""Drafts on a device: those of the engine's drafter, whether the host chooses them or never sees their logits."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from draft_bench import PAD
from fused_drafts import (
    MAX_LEN,
    SLOTS,
    Rig,
    cpu_drafter,
    device_drafter,
    draft_weights,
    features_of,
    sampling,
    tokens_of,
    wide_config,
)
from small_models import FIXTURES, golden_model
from torch import Tensor

from deepinfer.interfaces import Drafts, Request, SamplingParams
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_stored
from deepinfer.model.fused.step_graphs import captured
from deepinfer.ops.device import twins
from deepinfer.ops.device_choice import device_ops
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.dspark_device import DeviceDSpark

DEPTH = 5
SEQUENCES = [(0, 107), (1, 5), (5, 41), (2, 1), (3, 60), (4, 18)]
SLOTS_S = np.array([slot for slot, _ in SEQUENCES])


def stored() -> dict[str, Tensor]:
    return load_stored(open_checkpoint(FIXTURES / "golden" / "tiny_a"))


def golden_rig(depth: int = DEPTH) -> Rig:
    """Both drafters in float64, every sequence but its newest token observed."""
    small = golden_model()
    device = device_drafter(small.config, stored(), twins(), "float64", depth=depth)
    rig = Rig(small.config, [cpu_drafter(small, "float64", depth), device], tokens_of(small.config))
    fill(rig)
    return rig


@pytest.fixture
def rig() -> Rig:
    return golden_rig()


def fill(rig: Rig) -> None:
    rig.step(*((slot, 0, length - 1) for slot, length in SEQUENCES if length > 1))


def on_device(rig: Rig) -> DeviceDSpark:
    drafter = rig.drafters[-1]
    assert isinstance(drafter, DeviceDSpark)
    return drafter


def best(number: int, logits_SV: Tensor) -> np.ndarray:
    assert logits_SV.dtype == torch.float32
    return logits_SV.argmax(-1).numpy()


def seen_by(choose: Callable[[int, Tensor], np.ndarray], seen: list[Tensor]) -> Callable[[int, Tensor], np.ndarray]:
    def asked(number: int, logits_SV: Tensor) -> np.ndarray:
        seen.append(logits_SV.clone())
        return choose(number, logits_SV)

    return asked


def sampled_like_slots(rig: Rig, sequences: list[tuple[int, int]]) -> Callable[[int, Tensor], np.ndarray]:
    """The choice of coupled verification, with each slot's temperature and seed."""
    how, sampler = sampling(), Sampler(rig.config.vocab_size, SLOTS + 1, [])
    for slot, length in sequences:
        prompt = rig.tokens_NL[slot, PAD : PAD + length].astype(np.int64)
        params = SamplingParams(temperature=float(how.temperature_N[slot]))
        sampler.admit(slot, Request(request_id=str(slot), prompt_ids=prompt, params=params, seed=int(how.seed_N[slot])))
    slots, lengths = (np.array(column) for column in zip(*sequences))
    verifier = CoupledVerifier(sampler)
    return lambda number, logits_SV: verifier.choose(slots, lengths + number, number, logits_SV, {})


# ---- the host chooses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_drafts_logits_and_confidences_are_the_engines(depth: int) -> None:
    rig = golden_rig(depth)
    logits: list[list[Tensor]] = [[], []]
    plain, made = (rig.draft(i, SEQUENCES, seen_by(best, logits[i])) for i in (0, 1))
    assert np.array_equal(plain.token_ids, made.token_ids) and made.token_ids.shape == (len(SEQUENCES), depth)
    torch.testing.assert_close(torch.stack(logits[1]), torch.stack(logits[0]), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(made.confidence, plain.confidence, rtol=1e-6)
    assert made.confidence.dtype == np.float32


def test_drafts_that_are_refused_end_the_proposals_of_their_sequences_alone(rig: Rig) -> None:
    def choose(number: int, logits_SV: Tensor) -> np.ndarray:
        chosen = best(number, logits_SV).copy()
        chosen[1] = -1 if number == 2 else chosen[1]
        chosen[2] = -1
        return chosen

    plain, made = (rig.draft(i, SEQUENCES, choose) for i in (0, 1))
    assert np.array_equal(plain.token_ids, made.token_ids)
    np.testing.assert_allclose(made.confidence, plain.confidence, rtol=1e-6)
    assert (made.token_ids[1] >= 0).tolist() == [True, True, False, False, False] and not made.confidence[2].any()


def test_keys_that_replay_left_out_are_not_seen_on_either_way(rig: Rig) -> None:
    whole = rig.draft(1, SEQUENCES[:1], best)
    rig.step((0, 0, 106), upper_from=[100], window_from=[0])
    plain, made = (rig.draft(i, SEQUENCES[:1], best) for i in (0, 1))
    np.testing.assert_allclose(made.confidence, plain.confidence, rtol=1e-6)
    assert not np.allclose(made.confidence, whole.confidence, rtol=1e-3)
    launched = on_device(rig).launch(SLOTS_S[:1], rig.on_device(SEQUENCES)).wait()
    assert np.array_equal(launched.token_ids, made.token_ids)
    np.testing.assert_allclose(launched.confidence, made.confidence, rtol=1e-5)


def test_a_block_deeper_than_the_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match=r"speculation\.depth=7.*blocks of 5"):
        device_drafter(golden_model().config, stored(), twins(), "float32", depth=7)


# ---- the device alone --------------------------------------------------------------------------------------------------------


def launched(rig: Rig) -> Drafts:
    known = rig.on_device(SEQUENCES, str(on_device(rig).device))
    return on_device(rig).launch(SLOTS_S, known).wait()


def test_the_device_draws_what_the_host_would_choose(rig: Rig) -> None:
    """Greedy sequences and sampled ones, with the noise of coupled verification."""
    made, chosen = launched(rig), rig.draft(1, SEQUENCES, sampled_like_slots(rig, SEQUENCES))
    assert np.array_equal(made.token_ids, chosen.token_ids) and (made.token_ids >= 0).all()
    np.testing.assert_allclose(made.confidence, chosen.confidence, rtol=1e-5)
    greedy = rig.draft(1, SEQUENCES, best)
    equal_S = (made.token_ids == greedy.token_ids).all(1)
    assert equal_S.tolist() == (sampling().temperature_N[SLOTS_S] == 0).tolist(), "both kinds were really drawn"


def test_drafts_stay_with_the_sequences(rig: Rig) -> None:
    known = rig.on_device(SEQUENCES)
    made = on_device(rig).launch(SLOTS_S, known).wait()
    assert torch.equal(known.drafts_NK[SLOTS_S], torch.from_numpy(made.token_ids).int())
    assert torch.equal(known.confidence_NK[SLOTS_S], torch.from_numpy(made.confidence))
    assert (known.drafts_NK[[6, 7, SLOTS]] == -1).all()


def test_sequences_that_want_no_drafts_get_none_and_change_nothing(rig: Rig) -> None:
    """At their end; the others draft as if they were alone."""
    known = rig.on_device(SEQUENCES)
    every = on_device(rig).launch(SLOTS_S, known).wait()
    known.length_end_N[1], known.length_end_N[5] = 6, 43  # 5 and 41 tokens: room for one more, for two more
    known.length_end_N[3] = 60
    made = on_device(rig).launch(SLOTS_S, known).wait()
    some = [0, 2, 3, 5]
    assert np.array_equal(made.token_ids[some], every.token_ids[some])
    assert np.array_equal(made.confidence[some], every.confidence[some])
    assert (made.token_ids[[1, 4]] == -1).all() and not made.confidence[[1, 4]].any()


def test_rounds_of_any_number_of_sequences_draft_the_same(rig: Rig) -> None:
    known = rig.on_device(SEQUENCES)
    every = on_device(rig).launch(SLOTS_S, known).wait()
    for some in ([0], [3, 1], [5, 0, 4], [2, 1, 0, 3, 4]):
        made = on_device(rig).launch(SLOTS_S[some], known).wait()
        assert np.array_equal(made.token_ids, every.token_ids[some])
        np.testing.assert_allclose(made.confidence, every.confidence[some], rtol=1e-6)


def test_rounds_read_one_devices_sequences(rig: Rig) -> None:
    launched(rig)
    with pytest.raises(AssertionError, match="of one device"):
        launched(rig)


def decode_rows(rig: Rig, pieces: list[tuple[int, int, int]], padding: int) -> Any:
    """(slot, first, end) as a decode step shows its rows, rows of padding behind."""
    drafter = on_device(rig)
    slots = np.concatenate([np.full(end - first, slot) for slot, first, end in pieces] + [np.full(padding, SLOTS)])
    positions = np.concatenate([np.arange(first, end) for _, first, end in pieces] + [np.zeros(padding)])
    features = [features_of(rig.config, MAX_LEN, slot)[first:end] for slot, first, end in pieces]
    features.append(torch.full((padding, features[0].shape[1]), torch.nan, dtype=torch.float64))
    numbers = [torch.tensor(x, dtype=torch.int32, device=drafter.device) for x in (slots, positions)]
    return SimpleNamespace(
        features_TF=torch.cat(features).to(drafter.device, drafter.cache.dtype),
        slots_T=numbers[0],
        positions_T=numbers[1],
        ring_rows_T=numbers[0] * drafter.cache.layout.ring_slots + numbers[1] % drafter.cache.layout.ring_slots,
    )


PIECES = [(0, 106, 112), (1, 4, 5), (5, 40, 43)]


def test_rows_that_the_device_resolved_are_observed(rig: Rig) -> None:
    """The same keys as those of a step that the host resolved; rows of padding leave nothing."""
    other = golden_rig()
    rig.step(*PIECES)
    on_device(other).observe_rows(decode_rows(other, PIECES, 3))
    assert torch.equal(on_device(rig).cache.state, on_device(other).cache.state)


# ---- on a GPU ----------------------------------------------------------------------------------------------------------------


WIDTHS = ("hopper", "general")  # what kernels are made for; a small model's, for which there are general ones


def gpu_rig(widths: str, graphs: bool) -> Rig:
    """By kernels, on a GPU."""
    config = wide_config() if widths == "hopper" else golden_model().config
    weights = draft_weights(config, "cuda") if widths == "hopper" else stored()
    ops, reasons = device_ops(config, torch.bfloat16)
    assert bool(reasons) == (widths == "general")
    drafter = device_drafter(config, weights, ops, "bfloat16", depth=DEPTH, device="cuda", graphs=graphs)
    rig = Rig(config, [drafter], tokens_of(config))
    fill(rig)
    return rig


@pytest.mark.gpu
@pytest.mark.parametrize("widths", WIDTHS)
def test_graphs_change_no_bits(widths: str) -> None:
    rigs = [gpu_rig(widths, graphs) for graphs in (True, False)]
    known = [rig.on_device(SEQUENCES, "cuda") for rig in rigs]
    for some in ([0], [3, 1], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [1, 3], [0]):
        one, other = (on_device(r).launch(SLOTS_S[some], k).wait() for r, k in zip(rigs, known))
        assert np.array_equal(one.token_ids, other.token_ids) and (one.token_ids >= 0).all()
        assert np.array_equal(one.confidence.view(np.int32), other.confidence.view(np.int32))
        assert torch.equal(known[0].drafts_NK, known[1].drafts_NK)


@pytest.mark.gpu
@pytest.mark.parametrize("widths", WIDTHS)
def test_company_changes_no_drafts_on_a_gpu(widths: str) -> None:
    rig = gpu_rig(widths, graphs=True)
    known = rig.on_device(SEQUENCES, "cuda")
    every = on_device(rig).launch(SLOTS_S, known).wait()
    for some in ([0], [3, 1], [5, 0, 4], [2, 1, 0, 3, 4]):
        made = on_device(rig).launch(SLOTS_S[some], known).wait()
        assert np.array_equal(made.token_ids, every.token_ids[some])
        assert np.array_equal(made.confidence.view(np.int32), every.confidence[some].view(np.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("widths", WIDTHS)
def test_both_ways_agree_on_a_gpu(widths: str) -> None:
    """Scores of the device are float32, of the host float64: another token where two scores all but tie, else the same."""
    rig = gpu_rig(widths, graphs=True)
    made, chosen = launched(rig), rig.draft(0, SEQUENCES, sampled_like_slots(rig, SEQUENCES))
    same_S = (made.token_ids == chosen.token_ids).all(1)
    assert same_S.sum() >= len(SEQUENCES) - 1
    np.testing.assert_allclose(made.confidence[same_S], chosen.confidence[same_S], rtol=1e-3)


@pytest.mark.gpu
def test_a_capture_touches_no_sequence_and_rounds_go_on_after_a_close() -> None:
    rig = gpu_rig("hopper", graphs=True)
    drafter, known = on_device(rig), rig.on_device(SEQUENCES, "cuda")
    before = [x.clone() for x in (*known.tensors, drafter.cache.state)]
    drafter.capture(len(SEQUENCES), known)
    for kept, now in zip(before, (*known.tensors, drafter.cache.state)):
        assert torch.equal(kept.view(torch.uint8), now.view(torch.uint8))
    first = drafter.launch(SLOTS_S, known).wait()
    drafter.close()
    again = drafter.launch(SLOTS_S, known).wait()
    assert np.array_equal(first.token_ids, again.token_ids) and np.array_equal(first.confidence, again.confidence)


@pytest.mark.gpu
def test_rows_are_observed_in_a_graph() -> None:
    rig, other = (gpu_rig("hopper", graphs=False) for _ in range(2))
    observe, state = partial(on_device(other).observe_rows, decode_rows(other, PIECES, 3)), on_device(other).cache.state
    before = state.clone()
    observe()
    graph = captured(observe, state.device)
    state.copy_(before)
    rig.step(*PIECES)
    graph.replay()
    assert torch.equal(on_device(rig).cache.state, state)


@pytest.mark.gpu
def test_nothing_waits_in_a_round() -> None:
    rig = gpu_rig("hopper", graphs=True)
    drafter, known = on_device(rig), rig.on_device(SEQUENCES, "cuda")
    rows = decode_rows(rig, [(0, 106, 112), (1, 4, 5)], 1)
    for _ in range(2):
        drafter.observe_rows(rows)
        drafter.launch(SLOTS_S, known).wait()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        drafter.observe_rows(rows)
        on_the_way = drafter.launch(SLOTS_S, known)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert (on_the_way.wait().token_ids >= 0).all()
