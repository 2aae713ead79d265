"""The Markov and confidence step of any rank against its twin; on a GPU, as the sampler of logits is CUDA C++."""

import pytest
import torch
from deepinfer.kernels import general_markov_step as kernel
from row_cases import bits
from torch import Tensor

from deepinfer.ops import markov as twin
from deepinfer.ops.sampling_rows import gumbel, noise_bits

V, D, R = 3584, 256, 32
CLOSE = 1e-4  # of two tokens' scores in float64; logits are sums in float32


def inputs(batch: int, seed: int = 0, device: str = "cuda") -> dict[str, Tensor]:
    """A third of the sequences is greedy."""
    draw = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, device=device)

    chance_B = torch.rand(batch, generator=draw, device=device, dtype=torch.float64)
    return {
        "base_BV": 2.5 * normal(batch, V),
        "head_VR": (normal(V, R) * 0.3).bfloat16(),
        "embed_VR": normal(V, R).bfloat16(),
        "previous_B": torch.randint(0, V, (batch,), generator=draw, device=device).int(),
        "hidden_BD": normal(batch, D).bfloat16(),
        "projection_X": (normal(D + R) * 0.05).bfloat16(),
        "seed_B": torch.randint(0, 2**62, (batch,), generator=draw, device=device),
        "position_B": torch.randint(0, 2**34, (batch,), generator=draw, device=device),
        "temperature_B": torch.where(torch.arange(batch, device=device) % 3 == 0, 0, 0.3 + chance_B),
    }  # fmt: skip


def gap(given: dict[str, Tensor], b: int, ahead: int, *tokens: int) -> float:
    """How far two tokens of a sequence are apart in float64."""
    ids = torch.tensor(tokens, device=given["base_BV"].device)
    bias = given["head_VR"][ids].double() @ given["embed_VR"][given["previous_B"][b].clamp(min=0)].double()
    scores = given["base_BV"][b, ids].double() + bias
    if given["temperature_B"][b] > 0:
        noise = gumbel(noise_bits(given["seed_B"][b], given["position_B"][b] + ahead, ids, 0))
        scores = scores / given["temperature_B"][b] + noise
    return float((scores[0] - scores[1]).abs())


def wide(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in given.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 7, 64, 300])
def test_tokens_and_evidence_are_the_twins(batch: int) -> None:
    given, work = inputs(batch, batch), kernel.MarkovWork("cuda")
    given["previous_B"][batch // 2] = -1
    found, wanted = kernel.markov_step(**given, work=work, ahead=4), twin.markov_step(**wide(given), ahead=4)
    for b in (found.token_B != wanted.token_B).nonzero().flatten().tolist():
        assert gap(given, b, 4, int(found.token_B[b]), int(wanted.token_B[b])) < CLOSE
    assert (found.token_B == wanted.token_B).float().mean() > 0.99
    assert int(found.token_B[batch // 2]) == -1
    fine = torch.arange(batch, device="cuda") != batch // 2
    torch.testing.assert_close(found.evidence_B[fine], wanted.evidence_B[fine].float(), atol=1e-4, rtol=1e-5)


@pytest.mark.gpu
def test_broken_logits_choose_nothing_and_rows_are_invariant() -> None:
    given, work = inputs(200), kernel.MarkovWork("cuda")
    given["base_BV"][3, 77], given["base_BV"][5], given["base_BV"][6, 1] = torch.nan, -torch.inf, torch.inf
    whole = kernel.markov_step(**given, work=work)
    assert whole.token_B[[3, 5, 6]].tolist() == [-1, -1, -1] and (whole.token_B >= 0).sum() == 197
    by_row = [name for name in given if name.endswith(("_B", "_BV", "_BD"))]
    for at in (slice(0, 1), slice(90, 97), slice(64, 192)):
        part = kernel.markov_step(**given | {name: given[name][at] for name in by_row}, work=work)
        assert all(torch.equal(bits(a), bits(b[at])) for a, b in zip(part, whole))


@pytest.mark.gpu
def test_slots_of_one_tensor_and_a_graph() -> None:
    """Results go where the next slot reads them; a graph replays them."""
    given, work = inputs(5), kernel.MarkovWork("cuda")
    out = twin.MarkovStep(*(torch.zeros(5, 2, dtype=dtype, device="cuda") for dtype in (torch.int32, torch.float32)))

    def both() -> None:
        first = twin.MarkovStep(*(x[:, 0] for x in out))
        kernel.markov_step(**given, work=work, out=first)
        kernel.markov_step(
            **given | {"previous_B": first.token_B}, work=work, ahead=1, out=twin.MarkovStep(*(x[:, 1] for x in out))
        )

    both()
    expected = [x.clone() for x in out]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    for x in out:
        x.zero_()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(expected, out)) and (expected[0] >= 0).all()


def test_more_sequences_than_there_is_room_for_are_refused() -> None:
    work = kernel.MarkovWork("cpu")
    many = torch.zeros(kernel.MAX_ROWS + 1, dtype=torch.int64)
    with pytest.raises(AssertionError, match="1024 at a time"):
        work.rows(V, many, many, many.double())
    assert len(work.rows(V, many[:3], many[:3], many[:3].double()).edit_starts_X) == 4
