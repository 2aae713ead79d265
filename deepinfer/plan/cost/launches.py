"""The kernels that a step of V4.1 launches, with the bytes and FLOPs of each: what timings of single kernels are applied to.

A product is one launch a layer, a layer's window and chosen entries are one, an index source has a scan and a top-k, experts
have a product up and one down; the small kernels between them are named by the shape. Torch's own small operations are left
out. `op` names a kernel as calibrations of kernels do. Bytes are what a kernel moves at least: weights and keys once, rows in
and out.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import structs

from deepinfer.plan.cost.shape import Experts, KeyScan, Product, Scope, Shape
from deepinfer.plan.cost.types import LaunchWork

ROW_BYTES = 2  # of a number of a row between kernels: bfloat16, or bfloat16 on the FP8 grid
WIDE_BYTES = 4  # of a score, a logit, a number of a list
PAIR_BYTES = 20  # of a row and one of its experts while rows are put in order


class Counts(Protocol):
    """What of a step's load is counted here; see work.py: Load."""

    @property
    def rows(self) -> dict[Scope, float]: ...
    @property
    def read(self) -> dict[Scope, float]: ...
    @property
    def pairs(self) -> Callable[[KeyScan], float]: ...
    @property
    def keys(self) -> Callable[[KeyScan], float]: ...
    @property
    def computes(self) -> float: ...
    @property
    def drafts(self) -> int: ...


def launches(shape: Shape, load: Counts, experts_read: Callable[[Experts], float]) -> Iterator[LaunchWork]:
    """All launches of a step; what no row asks for is not launched."""
    for product in shape.products:
        if load.rows[product.scope] and product.op:
            yield _product(product, load)
    for small in shape.small:
        if rows := load.rows[small.scope]:
            calls = small.layers * load.read[small.scope]
            moved = rows * small.row_bytes * small.layers + small.held_bytes * calls
            yield LaunchWork(part=small.part, op=small.op, calls=calls, num_bytes=moved)
    for scan in shape.scans:
        if load.rows[scan.scope]:
            yield from _scan(scan, load)
    for experts in shape.experts:
        if load.rows[experts.scope]:
            yield from _experts(experts, load, experts_read(experts))


def _product(product: Product, load: Counts) -> LaunchWork:
    rows, read = load.rows[product.scope], load.read[product.scope]
    calls, held = product.layers * read, product.weights * product.weight_bytes * read
    numbers = rows * product.per_row * product.layers * ((product.reads or product.inputs) + product.outputs)
    moved = held + numbers * ROW_BYTES
    launch = LaunchWork(
        part=product.part,
        op=product.op,
        calls=calls,
        num_bytes=moved,
        flops=rows * product.flops,
        length=product.inputs,
    )
    if product.op == "markov_step":  # one draft after another, each with logits to add to
        moved = held * load.drafts + rows * product.outputs * WIDE_BYTES
        return structs.replace(launch, calls=load.drafts, num_bytes=moved)
    return structs.replace(launch, rows=rows / read, outputs=product.outputs)


def _scan(scan: KeyScan, load: Counts) -> Iterator[LaunchWork]:
    """A layer's window and its chosen entries are read by one launch, which the scan of windows stands for."""
    layers, rows, pairs = scan.layers, load.rows[scan.scope], load.pairs(scan)
    calls, each = layers * load.read[scan.scope], rows / load.read[scan.scope]
    flops, moved = pairs * scan.flops * layers, load.keys(scan) * scan.key_bytes * layers
    if scan.part != "index":
        # queries in, rows out: as many bytes as a pair has FLOPs
        ends, launched = (rows * scan.flops * layers, calls) if scan.window else (0.0, 0.0)
        yield LaunchWork(
            part=scan.part, op="sparse_attention", calls=launched, num_bytes=moved + ends, flops=flops, rows=each
        )
        return
    op = "index_scores" if scan.limit is None else "candidate_scores"
    scores, turned = pairs * WIDE_BYTES * layers, rows * layers * scan.flops * ROW_BYTES
    yield LaunchWork(part=scan.part, op=op, calls=calls, num_bytes=moved + scores, flops=flops)
    yield LaunchWork(part=scan.part, op="rotate_quantise_index_q", calls=calls, num_bytes=turned)
    chosen = LaunchWork(part=scan.part, op="top_entries", calls=calls, num_bytes=scores, length=pairs / rows, rows=each)
    yield chosen
    if scan.offers:
        offered = scores * scan.offers / layers
        yield structs.replace(chosen, op="candidate_blocks", calls=scan.offers, num_bytes=offered)


def _experts(experts: Experts, load: Counts, read: float) -> Iterator[LaunchWork]:
    """`read` of this rank's experts are chosen by some row in a layer, on average."""
    part, layers, rows = experts.part, experts.layers, load.rows[experts.scope]
    calls = layers * load.read[experts.scope]
    come = rows * load.computes  # rows that reach this rank's experts
    pairs, hidden = come * experts.chosen, experts.combine_bytes / ROW_BYTES
    inner = experts.weights / 3 / hidden
    for op, share, numbers in (
        ("fp4_experts_up", 2 / 3, come * hidden + pairs * inner),
        ("fp4_experts_down", 1 / 3, pairs * (inner + hidden)),
    ):
        moved = (read * experts.num_bytes * share + numbers * ROW_BYTES) * layers
        flops = 2.0 * pairs * experts.weights * share * layers
        yield LaunchWork(
            part=part,
            op=op,
            calls=calls,
            num_bytes=moved,
            flops=flops,
            rows=pairs / read if read else 0.0,
            outputs=read * (2 * inner if op == "fp4_experts_up" else hidden),
            ragged=True,
        )
    scores = rows * experts.experts * WIDE_BYTES * layers
    yield LaunchWork(part=part, op="router", calls=calls, num_bytes=scores)
    yield LaunchWork(part=part, op="expert_permutation", calls=calls, num_bytes=pairs * PAIR_BYTES * layers)
    summed = (pairs + 2 * rows) * hidden * ROW_BYTES * layers  # the shared expert's row in, the sum out
    yield LaunchWork(part=part, op="combine", calls=calls, num_bytes=summed)
