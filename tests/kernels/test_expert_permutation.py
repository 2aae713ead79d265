"""Sorting pairs by expert (GPU only, CUDA C++), and adding the experts' results up again, against their twins: integers equal,
sums bit for bit.
"""

import pytest
import torch
from deepinfer.kernels.cuda_expert_permutation import expert_permutation
from deepinfer.kernels.triton_combine import combine
from row_cases import DEVICES, assert_same_rows, bits, plain_copy, random_rows, relative_error, rotating
from torch import Tensor

from deepinfer.ops import expert_permutation as twins

CHOSEN = 6


def picks(rows: int, experts: int, device: str, seed: int = 0) -> Tensor:
    """Different experts in every row, int32 [T, X]; one row is padding, all -1."""
    generator = torch.Generator(device).manual_seed(seed)
    order = torch.rand(rows, experts, device=device, generator=generator).argsort(1)[:, :CHOSEN]
    order[rows // 2 : rows // 2 + 1] = -1
    return order.int().contiguous()


@pytest.mark.parametrize("picks_TX", [torch.zeros(4, 6), torch.zeros(6, 4, dtype=torch.int32).T])
def test_layouts_that_it_refuses(picks_TX: Tensor) -> None:
    with pytest.raises(AssertionError, match="ids are contiguous int32"):
        expert_permutation(picks_TX, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", (41, 4099))
@pytest.mark.parametrize("first, local", [(0, 16), (4, 6), (12, 4), (0, 1)])
def test_equals_the_twin(first: int, local: int, rows: int) -> None:
    picks_TX = picks(rows, 16, "cuda")
    weights_TX = torch.rand(picks_TX.shape, device="cuda") + 0.1
    found = expert_permutation(picks_TX, local, first, weights_TX)
    wanted = twins.expert_permutation(picks_TX, local, first, weights_TX)
    for name, one, other in zip(found._fields, found, wanted):
        assert torch.equal(one, other), name
    plain = expert_permutation(picks_TX, local, first)
    assert plain.weights_P is None and torch.equal(plain.rows_P, wanted.rows_P)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", (0, 1, 2, 300, 700, 40000))
def test_many_and_few_rows(rows: int) -> None:
    """From none to several loads of every warp; one expert that takes nearly all; experts that get none."""
    picks_TX = picks(rows, 12, "cuda")
    picks_TX[: rows * 7 // 8, 0] = 3
    for one, other in zip(expert_permutation(picks_TX, 12), twins.expert_permutation(picks_TX, 12)):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("rows, first, local", [(4096, 0, 384), (4096, 336, 48), (16384, 0, 384), (1, 0, 384)])
def test_real_sizes(rows: int, first: int, local: int) -> None:
    picks_TX = picks(rows, 384, "cuda", seed=rows)
    for one, other in zip(expert_permutation(picks_TX, local, first), twins.expert_permutation(picks_TX, local, first)):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", (5120, 320))
@pytest.mark.parametrize("with_shared", (True, False))
def test_combine(width: int, with_shared: bool, device: str) -> None:
    picks_TX = picks(9 if device == "cpu" else 500, 24, device)
    places_TX = twins.expert_permutation(picks_TX, 12, 6).places_TX
    parts_PD = random_rows(1, picks_TX.numel(), width, device=device)
    parts_PD[int(places_TX.max()) + 1 :] = torch.nan  # rows that hold no pair
    shared_TD = random_rows(2, len(picks_TX), width, device=device) if with_shared else None
    found = combine(parts_PD, places_TX, shared_TD)
    assert torch.equal(bits(found), bits(twins.combine(parts_PD, places_TX, shared_TD)))
    exact = twins.combine(parts_PD.double(), places_TX, None if shared_TD is None else shared_TD.double())
    assert relative_error(found, exact) < 2.5e-3


@pytest.mark.parametrize("device", DEVICES)
def test_a_place_beyond_the_parts_spoils_its_row_alone(device: str) -> None:
    parts_PD, shared_TD = random_rows(1, 4 * CHOSEN, 320, device=device), random_rows(2, 4, 320, device=device)
    places_TX = torch.arange(4 * CHOSEN, dtype=torch.int32, device=device).view(4, CHOSEN)
    whole = combine(parts_PD, places_TX, shared_TD)
    places_TX[1, 2], places_TX[2, 0] = 4 * CHOSEN, 2**31 - 1
    found = combine(parts_PD, places_TX, shared_TD)
    assert found[1:3].isnan().all() and torch.equal(bits(found[[0, 3]]), bits(whole[[0, 3]]))


@pytest.mark.parametrize("device", DEVICES)
def test_combined_rows_are_invariant(device: str) -> None:
    rows = 7 if device == "cpu" else 300
    parts_PD, shared_TD = random_rows(1, rows * CHOSEN, 1024, device=device), random_rows(2, rows, 1024, device=device)
    places_TX = torch.randperm(rows * CHOSEN, device=device).int().view(rows, CHOSEN)
    parts_PD[places_TX[3].long()] = torch.nan
    assert_same_rows(lambda chosen: (combine(parts_PD, places_TX[chosen], shared_TD[chosen]),), rows, device)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens, local", [(64, 384), (4096, 384), (4096, 48), (16384, 384)])
def test_speed(tokens: int, local: int, timed) -> None:
    """Its bytes are few: the floor says little, a launch and two passes over 96 KiB in caches say more."""
    chosen = [picks(tokens, 384, "cuda", seed=i) for i in range(2)]
    weights = torch.rand(tokens, CHOSEN, device="cuda")
    twin = twins.expert_permutation
    found, wanted = expert_permutation(chosen[0], local, 0, weights), twin(chosen[0], local, 0, weights)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted))
    timed(
        "expert_permutation", f"{tokens} x {CHOSEN}, {local} local of 384",
        rotating(2, lambda i: expert_permutation(chosen[i], local, 0, weights)),
        moved_bytes=tokens * CHOSEN * 20 + 4 * local, variant="invariant",
        target="≤ 15 µs at 4,096 tokens" if tokens == 4096 else "",
        peers={"torch": rotating(2, lambda i: twin(chosen[i], local, 0, weights))},
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", (256, 4096))
def test_speed_combine(tokens: int, timed) -> None:
    parts = [random_rows(i, tokens * CHOSEN, 5120, device="cuda", wide=False) for i in range(2 if tokens > 999 else 12)]
    shared = random_rows(9, tokens, 5120, device="cuda", wide=False)
    places = torch.randperm(tokens * CHOSEN, device="cuda").int().view(tokens, CHOSEN)
    wanted = twins.combine(parts[0], places[-99:], shared[-99:])
    assert torch.equal(bits(combine(parts[0], places, shared)[-99:]), bits(wanted))
    timed(
        "combine", f"{tokens} x 5120, {CHOSEN} slots and a shared expert",
        rotating(len(parts), lambda i: combine(parts[i], places, shared)),
        moved_bytes=tokens * (8 * 10240 + 24), variant="invariant",
        peers={"torch": rotating(len(parts), lambda i: twins.combine(parts[i], places, shared))}
        | plain_copy(tokens * (8 * 10240 + 24)),
    )  # fmt: skip
