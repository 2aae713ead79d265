"""Head, choice of tokens, acceptance and append in one piece, padded: what they give one after the other, to the last bit."""

import copy
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from device_rounds import DEPTH, new_sampler, random_params, random_round, random_seed

from deepinfer.engine.sampling_graphs import SamplingGraphs
from deepinfer.interfaces import Request, SamplingParams, Verified, VerifyRows
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.ops.device import DeviceOps, twins
from deepinfer.sampling import device_room
from deepinfer.sampling.device_rows import DeviceSampler, Launched

V, D, NUM = 2048, 4, 20
PLAIN = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "min_tokens": 0,
    "bad_words": (),
}


def product(hidden_TD: torch.Tensor, head_DV: torch.Tensor) -> torch.Tensor:
    """In an order that hangs on no other row."""
    logits_TV = hidden_TD[:, :1] * head_DV[0]
    for d in range(1, D):
        logits_TV = logits_TV + hidden_TD[:, d : d + 1] * head_DV[d]
    return logits_TV


def ops_of(device: str) -> DeviceOps:
    if device == "cpu":
        return twins()
    from deepinfer.ops.hopper import hopper

    return hopper()


@dataclass
class Side:
    """One way to sample, with its own sequences."""

    sampler: DeviceSampler
    sequences: DeviceSequences
    graphs: SamplingGraphs

    def state(self) -> list[torch.Tensor]:
        sequences = self.sequences
        return [sequences.tokens_NL.cpu(), sequences.num_tokens_N.cpu(), sequences.drafts_NK.cpu()]


def new_side(
    device: str,
    graphs: bool,
    head_DV: torch.Tensor,
    params: list[SamplingParams],
    proposed_MV: torch.Tensor | None = None,
) -> Side:
    host = new_sampler(NUM, V)
    sequences = DeviceSequences(NUM, 400, 3, DEPTH, device)
    for slot, one in enumerate(params):
        prompt = np.arange(3, 9 + slot)
        host.admit(slot, Request(slot, prompt, one, slot))
        sequences.admit(slot, prompt, 400)
    proposed_MV = None if proposed_MV is None else proposed_MV.to(device)
    sampler = DeviceSampler(host, ops_of(device), device, rejection=proposed_MV is not None, proposed_MV=proposed_MV)
    head = head_DV.to(device)
    return Side(
        sampler,
        sequences,
        SamplingGraphs(
            sampler, lambda hidden_TD: product(hidden_TD, head), sequences, verify_length=DEPTH, graphs=graphs
        ),
    )


def piece_by_piece(side: Side, logits_TV: torch.Tensor, rows: VerifyRows) -> tuple[Verified, Launched]:
    launched = side.sampler.launch(logits_TV, rows)
    side.sequences.append(launched.slots_S, launched.token_T, launched.starts_X, launched.counts_S)
    return settled(side, launched), launched


def settled(side: Side, launched: Launched) -> Verified:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return side.sampler.finish(launched)


def random_plain(rng: np.random.Generator, **kept: Any) -> list[SamplingParams]:
    return [msgspec.structs.replace(random_params(rng), **PLAIN, **kept) for _ in range(NUM)]


def assert_same(got: Verified, want: Verified) -> None:
    assert got.token_ids.tolist() == want.token_ids.tolist() and got.counts.tolist() == want.counts.tolist()
    assert got.failures == want.failures and list(got.logprobs) == list(want.logprobs)
    for place, one in want.logprobs.items():
        other = got.logprobs[place]
        assert other.token_ids.tolist() == one.token_ids.tolist() and other.rank == one.rank
        assert other.logprobs.tolist() == one.logprobs.tolist()


def check_rounds(device: str, graphs: bool, seed: int, rejection: bool = False, **kept: Any) -> None:
    """Eight steps of different sizes; hidden states lie in any order among others, as when some sequences have ended.

    With `rejection` drafts are judged as if they had been drawn from nearly the same at every place.
    """
    rng = random_seed(seed)
    head_DV = torch.from_numpy(rng.normal(size=(D, V))).float()
    params = [msgspec.structs.replace(random_params(rng), **kept) for _ in range(NUM)]
    proposed_MV = torch.from_numpy(rng.normal(size=((NUM + 1) * DEPTH, V))).float() if rejection else None
    ours, theirs = (new_side(device, on, head_DV, params, proposed_MV) for on in (graphs, False))
    hidden_TD = torch.empty(NUM * (DEPTH + 1), D, device=device)
    seen = {"failed": 0, "accepted": 0, "edited": 0, "masked": 0}
    for number in range(8):
        some = np.sort(rng.choice(NUM, rng.integers(1, NUM + 1), replace=False))
        positions = theirs.sequences.num_tokens_N.cpu().numpy().astype(np.int64)[some]
        rows = random_round(rng, new_sampler(NUM, V), some, positions, most_drafts=0 if number % 2 else DEPTH).rows
        hidden_TD.copy_(torch.from_numpy(rng.normal(size=hidden_TD.shape)))
        hidden_TD[rng.random(len(hidden_TD)) < 0.1] = torch.nan
        picked = rng.permutation(len(hidden_TD))[: rows.row_starts[-1]]
        logits_TV = product(hidden_TD[torch.from_numpy(picked).to(device)], head_DV.to(device))
        mostly_right(rng, theirs, logits_TV, rows)
        want, _ = piece_by_piece(theirs, logits_TV, rows)
        edited = ours.sampler.params.edited_N[some].any()
        assert ours.graphs.takes(rows)
        launched = ours.graphs.launch(hidden_TD, picked, rows)
        assert_same(settled(ours, launched), want)
        assert launched.counts_S.tolist() == want.counts.tolist()
        assert all(torch.equal(one, other) for one, other in zip(ours.state(), theirs.state()))
        for name, value in (("failed", want.failed.sum()), ("accepted", (want.counts > 1).sum())):
            seen[name] += int(value)
        seen["edited"] += bool(edited)
        seen["masked"] += bool(rows.masks)
    stats = ours.graphs.stats
    assert (stats.replays, stats.direct) == ((8, 0) if graphs else (0, 8))
    assert seen.pop("edited") or kept
    assert min(seen.values()) > 0, seen


def mostly_right(rng: np.random.Generator, side: Side, logits_TV: torch.Tensor, rows: VerifyRows) -> None:
    """Seven drafts in ten become the tokens that will be chosen: without edits these hang on no draft."""
    launched = copy.copy(side.sampler).launch(logits_TV.clone(), rows)
    tokens_T = launched.token_T.cpu().numpy()
    for r in range(len(rows.slots)):
        for depth in range(int(rows.row_starts[r + 1] - rows.row_starts[r]) - 1):
            if rng.random() < 0.7:
                rows.drafts[r, depth] = tokens_T[rows.row_starts[r] + depth]


@pytest.mark.parametrize("seed", range(2))
def test_padded_steps_give_what_their_pieces_give(seed: int) -> None:
    check_rounds("cpu", False, seed, **PLAIN)


@pytest.mark.parametrize("seed", range(2, 4))
def test_padded_steps_with_edits_give_what_their_pieces_give(seed: int) -> None:
    check_rounds("cpu", False, seed)


def test_padded_steps_of_rejection_give_what_their_pieces_give() -> None:
    check_rounds("cpu", False, 5, rejection=True, **PLAIN)


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [PLAIN, {}])
def test_graphs_of_rejection_give_what_their_pieces_give(kept: dict[str, Any]) -> None:
    check_rounds("cuda", True, 6, rejection=True, **kept)


@pytest.mark.gpu
@pytest.mark.parametrize(("seed", "kept"), [(0, PLAIN), (1, PLAIN), (2, {}), (3, {})])
def test_graphs_give_what_their_pieces_give(seed: int, kept: dict[str, Any]) -> None:
    check_rounds("cuda", True, seed, **kept)


@pytest.mark.gpu
def test_a_captured_size_is_launched_without_waiting() -> None:
    rng = random_seed(9)
    side = new_side("cuda", True, torch.from_numpy(rng.normal(size=(D, V))).float(), random_plain(rng))
    hidden_TD = torch.randn(NUM, D, device="cuda")
    for number in range(3):
        rows = VerifyRows(np.arange(NUM), np.arange(NUM) + 6 + number, np.arange(NUM + 1), np.full((NUM, DEPTH), -1))
        side.graphs.make_ready(hidden_TD, np.arange(NUM), rows)
        torch.cuda.set_sync_debug_mode("error")
        try:
            launched = side.graphs.launch(hidden_TD, np.arange(NUM), rows)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert settled(side, launched).counts.tolist() == [1] * NUM
    assert side.graphs.stats.captures == 1 and side.graphs.stats.replays == 3
    side.graphs.close()


def test_what_has_no_room_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random_seed(4)
    params = [SamplingParams(presence_penalty=1.0), *random_plain(rng)[1:]]
    side = new_side("cpu", False, torch.zeros(D, V), params)

    def rows_of(slot: int, num_rows: int, num_masks: int = 0) -> VerifyRows:
        masks = {0: np.zeros((num_masks, V // 32), np.uint32)} if num_masks else {}
        return VerifyRows(np.array([slot]), np.array([6 + slot]), np.array([0, num_rows]), np.full((1, 4), 9), masks)

    assert side.graphs.takes(rows_of(0, 3)) and side.graphs.takes(rows_of(1, 3, 3))
    monkeypatch.setattr(device_room, "MOST_EDITS", 13)
    assert (
        side.graphs.takes(rows_of(0, 1)) and not side.graphs.takes(rows_of(0, 2)) and side.graphs.takes(rows_of(1, 3))
    )
    monkeypatch.setattr(device_room, "MOST_MASKS", 3)
    side = new_side("cpu", False, torch.zeros(D, V), params)
    assert side.graphs.takes(rows_of(1, 3, 2)) and not side.graphs.takes(rows_of(1, 3, 3))


def test_biases_of_a_step_do_not_reach_the_next_one() -> None:
    """Slot 0 is biased towards token 5, slot 1 only penalises: its prompt's tokens lie where the bias lay."""
    params = [
        SamplingParams(temperature=0.0, logit_bias={5: 90.0}),
        SamplingParams(temperature=0.0, presence_penalty=0.5),
    ]
    plain = [SamplingParams(temperature=0.0)] * (NUM - 2)
    side = new_side("cpu", False, torch.ones(D, V) - torch.arange(V) / V, [*params, *plain])
    tokens = []
    for slot in (0, 1):
        rows = VerifyRows(np.array([slot]), np.array([6 + slot]), np.array([0, 1]), np.full((1, DEPTH), -1))
        tokens += settled(side, side.graphs.launch(torch.ones(1, D), np.zeros(1, np.int64), rows)).token_ids.tolist()
    assert tokens == [5, 0]
