"""The GPU's sampler: tokens, kept tokens and log probabilities against the twin, equal bits in any company, laws of its draws.

GPU only: the kernel is CUDA C++. On a CPU the twin stands in for it (tests/ops/test_sampling_rows.py holds it against the
engine's sampler), and the arguments are checked here.
"""

import math
from dataclasses import replace

import pytest
import torch
from chi_square import p_value
from deepinfer.kernels import cuda_sample_rows as kernel
from sampling_cases import FEATURES, KINDS, random_logits, random_rows, some_rows
from torch import Tensor

from deepinfer.ops import sampling_rows as twin
from deepinfer.ops.sampling_rows import SampledRows, SamplingRows

V = 129280
ALONE = {
    "greedy": (),
    "temperature": ("temperature",),
    **{name: ("temperature", name) for name in FEATURES[1:]},
    "filters": ("temperature", "top_k", "top_p", "min_p"),
    "all": FEATURES,
}


def seeded(seed: int, device: str = "cuda") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def mixed(num_rows: int, seed: int) -> tuple[Tensor, SamplingRows]:
    """A quarter greedy, the others at a temperature; each further feature on four rows in ten."""
    generator = seeded(seed)
    logits_RV = torch.cat([random_logits(KINDS[i % 3], -(-num_rows // 3), V, generator) for i in range(3)])[:num_rows]
    rows = random_rows(num_rows, V, FEATURES, generator, share=0.4)
    rows.temperature_R.copy_(0.3 + 1.2 * torch.rand(num_rows, generator=generator, device="cuda", dtype=torch.float64))
    rows.temperature_R[::4] = 0
    return logits_RV, rows


def assert_equal(got: SampledRows, want: SampledRows) -> None:
    """But for a row whose nucleus ends within the float32 sum's error of p: it may be a token longer or shorter."""
    moved_R = (got.kept_R - want.kept_R).abs()
    assert int(moved_R.max()) <= 1 and int(moved_R.sum()) <= 1, (got.kept_R, want.kept_R)
    same_R = moved_R == 0
    for name in ("token_R", "fault_R", "id_RN", "rank_R"):
        assert torch.equal(getattr(got, name)[same_R], getattr(want, name)[same_R]), name
    torch.testing.assert_close(got.logprob_RN[same_R], want.logprob_RN[same_R], rtol=2e-6, atol=2e-6, equal_nan=True)


def test_arguments_are_checked() -> None:
    generator = seeded(1, "cpu")
    rows = random_rows(2, 2048, (), generator)
    with pytest.raises(AssertionError, match="float32 or bfloat16"):
        kernel.sample_rows(torch.zeros(2, 2048, dtype=torch.float64), rows)
    with pytest.raises(AssertionError, match="contiguous"):
        kernel.sample_rows(torch.zeros(2048, 2).t(), rows)
    with pytest.raises(AssertionError, match="vocabulary"):
        kernel.sample_rows(torch.zeros(2, 1024), rows)


def test_requests_lie_as_the_kernel_reads_them() -> None:
    rows = random_rows(6, 2048, FEATURES, seeded(3, "cpu"))
    kernel._check_rows(6, rows)
    kernel._check_rows(2, some_rows(rows, [3, 1]))
    with pytest.raises(AssertionError, match="seed_R has a number for every row"):
        kernel._check_rows(5, rows)
    with pytest.raises(AssertionError, match=r"top_p_R is contiguous torch\.float64"):
        kernel._check_rows(6, replace(rows, top_p_R=rows.top_p_R.float()))


def test_the_twin_keeps_what_was_asked() -> None:
    generator = seeded(2, "cpu")
    logits_RV = random_logits("ties", 6, 2048, generator)
    rows = random_rows(6, 2048, ("temperature", "top_k"), generator)
    assert twin.sample_rows(logits_RV, rows).kept_R.tolist() == rows.top_k_R.tolist()
    assert twin.sample_rows(logits_RV[[3, 1]], some_rows(rows, [3, 1])).token_R.shape == (2,)


@pytest.mark.gpu
def test_noise_has_the_bits_of_the_twin() -> None:
    ids = torch.arange(V, device="cuda")
    for seed, position, stream in ((0, 0, 0), (2**61 + 12345, 2**33 + 17, 2), (2**63 - 1, 2**40 - 1, 13)):
        seed_, position_ = (torch.tensor(x, device="cuda") for x in (seed, position))
        want = twin.noise_bits(seed_, position_, ids, stream)
        assert torch.equal(kernel.noise_bits(seed, position, stream, 0, V, "cuda"), want)
        assert torch.equal(kernel.noise_bits(seed, position, stream, 12345, 77, "cuda"), want[12345:12422])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "features"),
    [(KINDS[(i + j) % 5], name) for i, name in enumerate(ALONE) for j in (0, 2)] + [(kind, "all") for kind in KINDS],
)
def test_values(kind: str, features: str) -> None:
    generator = seeded(sum(map(ord, kind + features)))
    logits_RV = random_logits(kind, 10, V, generator)
    if features == "all":
        logits_RV[0, 5], logits_RV[1, 7], logits_RV[2] = torch.nan, torch.inf, -torch.inf
        logits_RV[3, : V // 2] = -torch.inf
        logits_RV[4, 9] = -torch.nan
    rows = random_rows(10, V, ALONE[features], generator)
    want = twin.sample_rows(logits_RV, rows, columns=21, rounded=True)
    assert_equal(kernel.sample_rows(logits_RV, rows, columns=21), want)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [0, 6])
def test_what_tokens_are_drawn_from_is_kept(columns: int) -> None:
    """In rows of somebody's choice, and in the logits themselves."""
    logits_RV, rows = mixed(48, 21)
    logits_RV[3, 5] = torch.nan
    order_R = torch.randperm(60, generator=seeded(4), device="cuda")[:48].int()
    kept, want = (torch.zeros(60, V, device="cuda") for _ in range(2))
    plain = twin.sample_rows(logits_RV, rows, columns=columns, kept_XV=want, kept_row_R=order_R, rounded=True)
    got = kernel.sample_rows(logits_RV, rows, columns=columns, kept_XV=kept, kept_row_R=order_R)
    assert_equal(got, plain)
    same_R = (got.kept_R == plain.kept_R) & (plain.fault_R == 0)
    assert torch.equal(kept[order_R[same_R].long()], want[order_R[same_R].long()])
    inside = logits_RV.clone()
    assert_equal(kernel.sample_rows(inside, rows, kept_XV=inside), kernel.sample_rows(logits_RV, rows))
    assert torch.equal(inside[same_R], kept[order_R[same_R].long()])


@pytest.mark.gpu
def test_log_probabilities_of_tokens_that_were_chosen_elsewhere() -> None:
    logits_RV, rows = mixed(48, 22)
    chosen_R = twin.sample_rows(logits_RV, rows, stream=3, rounded=True).token_R
    chosen_R[::5] = -1
    want = twin.sample_rows(logits_RV, rows, columns=6, chosen_R=chosen_R, rounded=True)
    assert_equal(kernel.sample_rows(logits_RV, rows, columns=6, chosen_R=chosen_R), want)
    fine_R = (chosen_R >= 0) & (want.fault_R == 0)
    assert fine_R.sum() > 20 and torch.equal(want.token_R[fine_R], chosen_R[fine_R])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["normal", "zipf", "equal"])
def test_hot_and_cold_rows(kind: str) -> None:
    """From scores of a million, where float32 tells few apart, to nearly equal ones."""
    temperatures = [2e-5, 1e-3, 0.01, 0.02, 0.05, 3, 10, 1e4]
    logits_RV = random_logits(kind, len(temperatures), V, seeded(8))
    rows = random_rows(len(temperatures), V, ("temperature", "mask"), seeded(8), share=0.5)
    rows.temperature_R.copy_(torch.tensor(temperatures))
    assert_equal(kernel.sample_rows(logits_RV, rows), twin.sample_rows(logits_RV, rows, rounded=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_shares_from_end_to_end(kind: str) -> None:
    """The last token kept and the one behind it stand where the running weight is near the share."""
    shares = [1e-9, 0.001, 0.03, 0.5, 0.9, 0.999, 0.99999, 1 - 1e-9]
    logits_RV = random_logits(kind, len(shares), V, seeded(9))
    rows = random_rows(len(shares), V, ("temperature",), seeded(9))
    rows.top_p_R.copy_(torch.tensor(shares, dtype=torch.float64))
    got, want = kernel.sample_rows(logits_RV, rows), twin.sample_rows(logits_RV, rows)
    for r, (share, kept) in enumerate(zip(shares, got.kept_R.tolist())):
        weight_V = torch.softmax(logits_RV[r].double() / rows.temperature_R[r], 0)
        running_V = weight_V.sort(descending=True).values.cumsum(0)
        assert 1 <= kept <= V and (kept == 1 or float(running_V[kept - 2]) < share + 2**-15), (r, kept)
        assert kept == V or float(running_V[kept - 1]) > share - 2**-15, (r, kept)
    same_R = got.kept_R == want.kept_R
    assert torch.equal(got.token_R[same_R], want.token_R[same_R])


@pytest.mark.gpu
def test_bfloat16_and_a_small_vocabulary() -> None:
    generator = seeded(5)
    for vocabulary in (2048, 2080, 131072):
        logits_RV = random_logits("normal", 16, vocabulary, generator)
        rows = random_rows(16, vocabulary, FEATURES, generator, share=0.5)
        for logits in (logits_RV, logits_RV.bfloat16()):
            got = kernel.sample_rows(logits, rows, columns=129)
            assert_equal(got, twin.sample_rows(logits, rows, columns=129, rounded=True))


@pytest.mark.gpu
def test_tokens_differ_within_two_units_only() -> None:
    """512 mixed rows against the float64 sampler, edits unrounded: differences are counted, and each is explained."""
    different = cuts = 0
    for seed in range(2):
        logits_RV, rows = mixed(256, seed)
        got, want = kernel.sample_rows(logits_RV, rows), twin.sample_rows(logits_RV, rows)
        assert torch.equal(got.fault_R, want.fault_R)
        moved = (got.kept_R - want.kept_R).abs()
        cuts += int((moved > 0).sum())
        assert int(moved.max()) <= 2
        for r in (got.token_R != want.token_R).nonzero().flatten().tolist():
            different += 1
            assert moved[r] or gap_units(logits_RV[r], rows, r, int(got.token_R[r]), int(want.token_R[r])) <= 2
    print(f"{different} of 512 tokens differ; {cuts} cuts moved")
    assert different <= 1 and cuts <= 5


def gap_units(logits_V: Tensor, rows: SamplingRows, r: int, *tokens: int) -> float:
    """How far two tokens' scores with noise are apart in float64, in units in the last place of a float32."""
    ids = torch.tensor(tokens, device=logits_V.device)
    scores = twin.edited_logits(logits_V, rows, r)[ids]
    if rows.temperature_R[r] >= twin.GREEDY_BELOW:
        noise = twin.gumbel(twin.noise_bits(rows.seed_R[r], rows.position_R[r], ids, 0))
        scores = scores / rows.temperature_R[r] + noise
    return float((scores[0] - scores[1]).abs() / 2.0 ** (math.floor(math.log2(float(scores.abs().max()))) - 23))


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_any_company() -> None:
    logits_RV, rows = mixed(256, 11)
    rows.num_logprobs_R[::5] = 20
    want = kernel.sample_rows(logits_RV, rows, columns=21)
    for size in (1, 2, 7, 64):
        chosen = torch.randperm(256, generator=torch.Generator().manual_seed(size))[:size].tolist()
        company = logits_RV[chosen].clone()
        guests = torch.full((3, V), torch.nan, device="cuda")
        guests[1] = torch.inf
        some = some_rows(rows, [*chosen, 0, 4, 8])
        got = kernel.sample_rows(torch.cat([company, guests]), some, columns=21)
        for name, x in want._asdict().items():
            ours, theirs = getattr(got, name)[:size], x[chosen]
            assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32)), name
    again = kernel.sample_rows(logits_RV, rows, columns=21)
    assert all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(again, want))


@pytest.mark.gpu
@pytest.mark.parametrize("features", ["temperature", "top_k", "top_p", "min_p"])
def test_draws_follow_the_distribution(features: str) -> None:
    num, vocabulary, generator = 8192, 2048, seeded(21)
    logits_V = random_logits("peaked", 1, vocabulary, generator)[0]
    rows = some_rows(random_rows(1, vocabulary, ALONE[features], generator), [0] * num)
    rows.position_R.copy_(torch.arange(num))
    tokens = kernel.sample_rows(logits_V.expand(num, vocabulary), rows).token_R
    scores_V = logits_V.double() / rows.temperature_R[0]
    filters = int(rows.top_k_R[0]), float(rows.top_p_R[0]), float(rows.min_p_R[0])
    expected_V = torch.softmax(scores_V.masked_fill(~twin.kept_tokens(scores_V, *filters), -torch.inf), 0)
    counts_V = torch.bincount(tokens, minlength=vocabulary)
    assert p_value(counts_V.cpu().numpy(), expected_V.cpu().numpy()) > 1e-4


def peers(logits: list[Tensor], rows: SamplingRows, features: str) -> dict:
    """On the same logits with the same filters; none of them has penalties, masks, min-p or log probabilities."""
    import kernel_peers

    top_k_R = torch.where(rows.top_k_R > 0, rows.top_k_R, V).int()
    found = kernel_peers.sample([(x, rows.temperature_R.float(), top_k_R, rows.top_p_R.float()) for x in logits])
    if features == "top_p":
        found["torch sort top-p"] = [lambda x=x: sort_top_p(x, 0.9) for x in logits]
    return found


def sort_top_p(logits_RV: Tensor, share: float) -> Tensor:
    ordered_RV, order_RV = torch.softmax(logits_RV, 1).sort(1, descending=True)
    ordered_RV = ordered_RV.masked_fill(ordered_RV.cumsum(1) - ordered_RV > share, 0)
    return order_RV.gather(1, torch.multinomial(ordered_RV, 1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("num_rows", "features"),
    [(256, name) for name in ("mixed", *ALONE)]
    + [(n, name) for n in (1, 64) for name in ("mixed", "temperature", "top_p")],
)
def test_speed(num_rows: int, features: str, timed, request) -> None:
    if request.config.getoption("--time") is None:
        pytest.skip("nothing is timed")
    if features == "mixed":
        logits, rows = mixed(num_rows, 3)
        copies = [logits, *(logits.clone() for _ in range(2 if num_rows == 256 else 7))]
    else:
        generator = seeded(4)
        copies = [random_logits("normal", num_rows, V, generator) for _ in range(3 if num_rows == 256 else 8)]
        rows = random_rows(num_rows, V, ALONE[features], generator)
    calls = [lambda x=x: kernel.sample_rows(x, rows, columns=21) for x in copies]
    timed("sample rows", f"{num_rows} rows, {features}", calls, moved_bytes=4 * num_rows * V, runs=20,
          peers=peers(copies, rows, features) if features in ("temperature", "top_p", "filters") else {},
          target="≤ 68 µs" if num_rows == 256 else "")  # fmt: skip
