"""Our kernels at sizes that their tests do not time, those of decode steps: the cost model's figures are fitted to them too.

    python benchmarks/kernel_sizes.py [--record] [--only dense plain experts borders small stored …]

At the widths of V4.1-Flash, with rows of a decode step of 1 to 256 sequences. Values are not checked here (tests/kernels does
that). With `--record` the lines go to benchmarks/results/kernel_sizes.jsonl, which `python benchmarks/kernel_calibration.py`
reads. One line is printed for each timing. Needs a GPU of compute capability 9.0.
"""

import sys
from collections.abc import Iterator

import torch
from device_timer import time_calls
from kernel_lines import line_of
from kernel_row_sizes import CASES as ROW_CASES
from kernel_row_sizes import Timing, copies, row_case
from record import KEEP, RESULTS, options
from result_lines import add
from torch import Tensor

from deepinfer.ops.device import DeviceOps
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.hyper_border import Coefficients, SiteWeights

FILE = RESULTS / "kernel_sizes.jsonl"
ROWS = (8, 32, 96, 192, 384, 768, 1536)
DENSE = {
    "q and kv down": (1792, 5120),
    "q up": (32768, 1280),
    "attention out": (5120, 8192),
    "shared expert up": (4608, 5120),
}
PLAIN = {"router gate": (384, 5120), "compressor": (1056, 5120), "head": (129280, 5120)}
GROUPS, GROUP_INPUTS, GROUP_OUTPUTS = 8, 4096, 8192
HIDDEN, INNER, CHOSEN, STREAMS = 5120, 2304, 6, 4
RUNS = 9


def dense(ops: DeviceOps) -> Iterator[Timing]:
    for name, (outputs, inputs) in DENSE.items():
        weights = [ops.prepare_fp8_weight(random_fp8(outputs, inputs)) for _ in range(copies(outputs * inputs))]
        for rows in ROWS:
            x = on_grid(ops, rows, inputs)
            yield Timing(
                op="fp8_linear",
                case=f"{name} N={outputs} K={inputs} T={rows}",
                calls=[lambda w=w, x=x: ops.fp8_linear(x, w) for w in weights],
                flops=2.0 * rows * outputs * inputs,
                moved_bytes=outputs * inputs * (1 + 1 / 1024) + 2 * rows * (outputs + inputs),
            )
    size = GROUP_INPUTS * GROUP_OUTPUTS
    weights = [ops.prepare_fp8_weight(random_fp8(GROUP_OUTPUTS, GROUP_INPUTS)) for _ in range(copies(size))]
    for rows in ROWS:
        x = torch.randn(rows, GROUPS, GROUP_INPUTS, device="cuda").bfloat16()
        yield Timing(
            op="fp8_grouped_linear",
            case=f"attention out, 8 groups T={rows}",
            calls=[lambda w=w, x=x: ops.fp8_grouped_linear(x, w) for w in weights],
            flops=2.0 * rows * size,
            moved_bytes=size * (1 + 1 / 1024) + 2 * rows * (GROUPS * GROUP_INPUTS + GROUP_OUTPUTS),
        )


def plain(ops: DeviceOps) -> Iterator[Timing]:
    for name, (outputs, inputs) in PLAIN.items():
        weights = [torch.randn(outputs, inputs, device="cuda").bfloat16() for _ in range(copies(2 * outputs * inputs))]
        for rows in ROWS:
            x = torch.randn(rows, inputs, device="cuda").bfloat16()
            yield Timing(
                op="bf16_linear",
                case=f"{name} N={outputs} K={inputs} T={rows}",
                calls=[lambda w=w, x=x: ops.bf16_linear(x, w, torch.float32) for w in weights],
                flops=2.0 * rows * outputs * inputs,
                moved_bytes=2 * outputs * inputs + 2 * rows * (outputs + inputs),
            )


def experts(ops: DeviceOps, local: int = 6) -> Iterator[Timing]:
    """Rows of one rank of 64: as many pairs as its own rows make, evenly over six experts."""
    w13 = [ops.prepare_experts_up(random_experts(local, 2 * INNER, HIDDEN)) for _ in range(3)]
    w2 = [ops.prepare_experts(random_experts(local, HIDDEN, INNER)) for _ in range(3)]
    for rows in ROWS:
        pairs = rows * CHOSEN
        starts_E1 = torch.arange(local + 1, device="cuda").int() * rows
        rows_P, weights_P = torch.arange(rows, device="cuda").int().repeat(local), torch.rand(pairs, device="cuda")
        x, act = on_grid(ops, rows, HIDDEN), on_grid(ops, pairs, INNER)
        case = f"{local} experts, {pairs} rows even"
        up, down = local * 2 * INNER * HIDDEN, local * HIDDEN * INNER
        yield Timing(
            op="fp4_experts w13_swiglu",
            case=case,
            calls=[lambda w=w, a=(x, rows_P, starts_E1, weights_P): ops.fp4_experts_up(*a, w) for w in w13],
            flops=2.0 * pairs * 2 * INNER * HIDDEN,
            moved_bytes=up * 17 / 32 + 2 * rows * HIDDEN + 2 * pairs * INNER,
        )
        yield Timing(
            op="fp4_experts w2",
            case=case,
            calls=[lambda w=w, a=(act, None, starts_E1): ops.fp4_grouped_linear(*a, w) for w in w2],
            flops=2.0 * pairs * HIDDEN * INNER,
            moved_bytes=down * 17 / 32 + 2 * pairs * (INNER + HIDDEN),
        )


def borders(ops: DeviceOps, layers: int = 20) -> Iterator[Timing]:
    fn, base, scale = (torch.randn(*shape, device="cuda") * 0.01 for shape in ((24, STREAMS * HIDDEN), (24,), (3,)))
    sites = [ops.prepare_hyper_site(SiteWeights(fn.clone(), base, scale)) for _ in range(2 * layers)]
    norm_D = torch.ones(HIDDEN, device="cuda").bfloat16()
    for rows in ROWS:
        x = torch.randn(rows, STREAMS, HIDDEN, device="cuda").bfloat16()
        out = torch.randn(rows, HIDDEN, device="cuda").bfloat16()
        mixing = torch.softmax(torch.randn(rows, STREAMS, STREAMS, device="cuda"), -1)
        ended = Coefficients(torch.rand(rows, STREAMS, device="cuda"), mixing, torch.rand(rows, STREAMS, device="cuda"))

        def both(i: int, x: Tensor = x, out: Tensor = out, ended: Coefficients = ended) -> None:
            first = ops.hyper_border(x, out, ended, sites[2 * i], norm_D, 1e-20, 1e-6, 20)
            ops.hyper_border(first.x_TND, out, first.coefficients, sites[2 * i + 1], norm_D, 1e-20, 1e-6, 20)

        moved = 2 * (rows * (2 * STREAMS + 3) * HIDDEN * 2 + 24 * STREAMS * HIDDEN * 4)
        calls = [lambda i=i, both=both: both(i) for i in range(layers)]
        yield Timing(op="hyper_border", case=f"two sites, {rows} rows", calls=calls, moved_bytes=moved)


def small(ops: DeviceOps) -> Iterator[Timing]:
    """Norms, quantisers, top-k and sums of decode steps: their inputs lie in the cache, as the kernel before left them."""
    norm = torch.ones(1280, device="cuda").bfloat16()
    shared = torch.randn(max(ROWS), 2 * INNER, device="cuda").bfloat16()
    for rows in ROWS:
        low, wide = (torch.randn(rows, width, device="cuda").bfloat16() for width in (1280, 8192))
        yield row_case(
            "norm_quantise",
            f"{rows} x 1280 to grid",
            lambda x=low: ops.norm_quantise(x, norm, 1e-20),
            rows * 1280 * 4,
        )
        yield row_case("quantise", f"{rows} x 8192 to grid", lambda x=wide: ops.quantise(x), rows * 8192 * 4)
        yield row_case(
            "swiglu_quantise",
            f"{rows} x 2304",
            lambda x=shared[:rows]: ops.swiglu_quantise(x, None, 10.0),
            rows * 6 * INNER,
        )
        picks = torch.rand(rows, 384, device="cuda").topk(CHOSEN).indices.int()
        weights = torch.rand(rows, CHOSEN, device="cuda")
        yield row_case(
            "expert_permutation",
            f"{rows} x 6, 384 local of 384",
            lambda p=picks, w=weights: ops.expert_permutation(p, 384, weights_TX=w),
            rows * CHOSEN * 20 + 4 * 384,
        )
    for rows, width in ((8, 4096), (96, 4096), (768, 4096), (32, 16384), (256, 16384), (16, 32768), (192, 32768)):
        scores, visible = torch.randn(rows, width, device="cuda"), torch.full((rows,), width, device="cuda").int()
        for op, count, divisor in (("top_entries", 512, 1), ("candidate_blocks", 2048, 8)):
            out = torch.empty(rows, count, dtype=torch.int32, device="cuda")
            yield row_case(
                op,
                f"{count} of {width // divisor}, {rows} rows",
                lambda a=(scores, visible, out), op=op: getattr(ops, op)(*a),
                rows * 4 * (width + count),
            )


def random_fp8(outputs: int, inputs: int) -> Fp8Weight:
    codes = torch.randn(outputs, inputs, device="cuda").to(torch.float8_e4m3fn)
    return Fp8Weight(codes, torch.randint(115, 125, (outputs // 32, inputs // 32), dtype=torch.uint8, device="cuda"))


def random_experts(count: int, outputs: int, inputs: int) -> Fp4Experts:
    codes = torch.randint(0, 256, (count, outputs, inputs // 2), dtype=torch.uint8, device="cuda")
    return Fp4Experts(codes, torch.randint(117, 122, (count, outputs, inputs // 32), dtype=torch.uint8, device="cuda"))


def on_grid(ops: DeviceOps, rows: int, columns: int) -> Tensor:
    grid: Tensor = ops.quantise(torch.randn(rows, columns, device="cuda").bfloat16()).grid_TD
    return grid


CASES = {case.__name__: case for case in (dense, plain, experts, borders, small)} | ROW_CASES


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=CASES, default=list(CASES), help="kinds of kernels; all when left out"
    )
    chosen = parser.parse_args().only
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.exit("no GPU of compute capability 9.0 here; the kernels are Hopper's")
    from deepinfer.ops.hopper import hopper

    torch.manual_seed(0)
    failed = []
    with torch.inference_mode():
        ops = hopper()
        for name in chosen:
            try:
                for timing in CASES[name](ops):
                    told(timing, keep=KEEP in sys.argv[1:])
            except (
                AssertionError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as fault:  # the other kinds are timed all the same
                failed.append(f"{name}: {fault}")
    if failed:
        sys.exit("not timed, or not all of it:\n" + "\n".join(failed))


def told(timing: Timing, keep: bool) -> None:
    """One case timed and printed, and kept where asked for."""
    spreads, values = time_calls({"ours": timing.calls}, RUNS), {"variant": "invariant", "cached": timing.cached}
    line = line_of(timing.op, timing.case, spreads, {}, timing.flops, "bf16", timing.moved_bytes, values)
    print(f"{timing.op:24} {timing.case:40} {line['median_us']:9.2f} µs", flush=True)
    if keep:
        add(FILE, [line])


if __name__ == "__main__":
    main()
