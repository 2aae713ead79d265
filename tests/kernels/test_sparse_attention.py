"""Sparse attention: Triton on CPU under the interpreter; Triton and CUDA C++ on a GPU, checked against float64 and timed.

CUDA C++ runs on GPUs only.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from deepinfer.kernels import cuda_sparse_attention, triton_sparse_attention
from sparse_attention_cases import Case, check, decode_peers, expected, moved_bytes, prefill_peers, problem, rows_of

KERNELS = {
    "cuda": cuda_sparse_attention.sparse_attention,
    "cuda, one block a row": partial(cuda_sparse_attention.sparse_attention, spread=False),
    "triton": triton_sparse_attention.sparse_attention,
    "triton, 10 splits": partial(triton_sparse_attention.sparse_attention, splits=10),
}


PLAIN = {"window_kind": "plain", "selected_kind": "plain"}
SMALL = Case(queries=2, heads=16, head_dim=128, window=32, selected=32, entries=64)


@pytest.mark.parametrize("splits", (1, 2))
@pytest.mark.parametrize(
    "case",
    (
        replace(SMALL, visible=(32, 7), hidden=0.3),
        replace(SMALL, window_kind="plain", selected_kind="plain", visible=(0, 30)),
        replace(SMALL, selected_kind=None),
        replace(SMALL, hidden=1.0, visible=(0,)),
    ),
)
def test_triton_on_cpu(case: Case, splits: int) -> None:
    arguments = problem(case, "cpu")
    out = triton_sparse_attention.sparse_attention(**arguments, splits=splits)
    check(out, expected(arguments), 1.5e-2)  # the interpreter rounds to bf16 by cutting
    if case.hidden == 1.0:
        assert not out.any()


def test_a_layout_that_the_kernels_do_not_take_is_refused() -> None:
    arguments = problem(SMALL, "cpu")
    with pytest.raises(AssertionError, match="bf16"):
        cuda_sparse_attention.sparse_attention(**arguments)
    with pytest.raises(AssertionError, match="whole blocks"):
        triton_sparse_attention.sparse_attention(**arguments | {"window_rows_TW": arguments["window_rows_TW"][:, :30]})
    with pytest.raises(AssertionError, match="at most 2048 selected slots"):
        cuda_sparse_attention.sparse_attention(**problem(Case(selected=2112, entries=2112), "cpu"))
    arguments = problem(Case(), "cpu")
    for shape, words in (((1 << 20, 128, 528), "smaller than 64 GB"), ((1, 1 << 23, 528), "smaller than 4 GB")):
        store_ABR = torch.empty(shape, dtype=torch.uint8, device="meta")
        with pytest.raises(AssertionError, match=words):
            cuda_sparse_attention.sparse_attention(**arguments | {"window_ABR": store_ABR})
    shifted = torch.empty(65)[1:].view(1, 2, 32).copy_(arguments["rope_T2F"])
    with pytest.raises(AssertionError, match="aligned to 16 bytes"):
        cuda_sparse_attention.sparse_attention(**arguments | {"rope_T2F": shifted})


VALUES = {
    "packed": Case(3, 5, visible=(512, 100, 0, 511, 64), hidden=0.3),
    "packed, more rows than multiprocessors": Case(64, 5, visible=(512, 65, 448), entries=512),
    "bf16 rows": Case(1, 7, window_kind="plain", selected_kind="plain", visible=(512, 33, 0), hidden=0.1),
    "bf16 rows, many": Case(1, 300, window_kind="plain", selected_kind="plain", visible=(512, 511), entries=2048),
    "window alone": Case(2, 3, selected_kind=None, hidden=0.5),
    "FP8 rows selected": Case(2, 2, selected_kind="window"),
    "FP4 window": Case(2, 2, window_kind="main", visible=(300,)),
    "lists of odd numbers of blocks": Case(2, 4, window=64, selected=192, visible=(192, 100, 0), hidden=0.1),
    "nothing visible": Case(1, 2, hidden=1.0, visible=(0,)),
}


TRITON_VALUES = ("packed", "bf16 rows")  # each is compiled for seconds
SLOW = ("FP4 window",)
CHECKED = [
    pytest.param(name, kernel, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in VALUES
    for kernel, names in zip(KERNELS, (VALUES, VALUES, TRITON_VALUES, TRITON_VALUES[:1]))
    if name in names
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "kernel"), CHECKED)
def test_values(name: str, kernel: str) -> None:
    for seed in range(2):
        arguments = problem(VALUES[name], "cuda", seed)
        torch.full_like(arguments["q_THK"], torch.nan)  # what an allocator hands out next
        out = KERNELS[kernel](**arguments)
        check(out, expected(arguments))
        assert all(torch.equal(out, KERNELS[kernel](**arguments)) for _ in range(3))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "kernel"), [("packed", kernel) for kernel in list(KERNELS)[:3]] + [("bf16", "cuda")])
def test_bits_do_not_depend_on_the_batch(kind: str, kernel: str) -> None:
    kinds = PLAIN if kind == "bf16" else {}
    arguments = problem(Case(64, 4, visible=(512, 200, 320), hidden=0.1, entries=512, **kinds), "cuda")
    whole = KERNELS[kernel](**arguments)
    for size in (1, 2, 7, 64):
        for start in (0, 100, 256 - size):
            rows = slice(start, start + size)
            assert torch.equal(KERNELS[kernel](**rows_of(arguments, rows)), whole[rows])
    order = torch.randperm(256, device="cuda")
    assert torch.equal(KERNELS[kernel](**rows_of(arguments, order)), whole[order])
    bad = dict(arguments, q_THK=arguments["q_THK"].clone())
    bad["q_THK"][::2] = torch.nan
    bad["q_THK"][1::4] = torch.inf
    assert torch.equal(KERNELS[kernel](**bad)[3::4], whole[3::4])


TIMED = {  # case, copies (rows that they read exceed the second-level cache, but where prefill finds them there), target
    "decode, 1 × 1 rows": (Case(1, 1, entries=4096), 192, "≤ 3 × the floor"),
    "decode, 8 × 1 rows": (Case(8, 1, entries=4096), 32, "≤ 3 × the floor"),
    "decode, 8 × 6 rows": (Case(8, 6, entries=4096), 16, "≤ 3 × the floor"),
    "decode, 128 × 4 rows": (Case(128, 4, entries=2048), 2, "≥ 250 TF"),
    "decode, 128 × 6 rows": (Case(128, 6, entries=2048), 2, "≥ 250 TF"),
    "prefill, 4,096 rows, packed": (Case(1, 4096, entries=16384), 1, "≥ 420 TF"),
    "prefill, 4,096 rows, bf16": (Case(1, 4096, entries=16384, **PLAIN), 1, "≥ 420 TF"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", TIMED)
def test_speed(name: str, timed, request: pytest.FixtureRequest) -> None:
    case, copies, target = TIMED[name]
    inputs = [problem(case, "cuda", seed) for seed in range(copies)]
    some = rows_of(inputs[0], slice(0, 16))
    kernel = KERNELS["cuda"]
    check(kernel(**inputs[0])[:16], expected(some))
    if not request.config.getoption("--time"):
        return
    peers = {"triton": [partial(KERNELS["triton"], **one) for one in inputs]} if case.rows < 4096 else {}
    if case.rows == 4096:
        peers |= prefill_peers(inputs)
    else:
        peers |= decode_peers(inputs, case)
    timed("sparse_attention", name, [partial(kernel, **one) for one in inputs], flops=case.flops,
          moved_bytes=moved_bytes(inputs[0]), peers=peers, variant="invariant", target=target, runs=20)  # fmt: skip
