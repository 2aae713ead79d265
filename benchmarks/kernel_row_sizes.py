"""Kernels of single rows at sizes of decode steps, for benchmarks/kernel_sizes.py: cache rows, attention, choices, sampling.

Rows that the kernel before left are found in the cache, as in a step; keys and tables come from memory.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from msgspec import Struct
from torch import Tensor

from deepinfer import formats
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.sampling_rows import SamplingRows

DEVICE = "cuda"
ROWS = (8, 96, 384, 1536)
EPS = 1e-20
HIDDEN, STREAMS, CHOSEN, EXPERTS, VOCABULARY = 5120, 4, 6, 384, 129280
HEADS, HEAD_DIM, WINDOW, SELECTED, SEEN = 64, 512, 128, 512, 2048  # `SEEN`: entries of a context of 4,096 tokens
INDEX_HEADS, INDEX_DIM, INDEX_BYTES = 32, 128, 68
WINDOW_BYTES, MAIN_BYTES, RING = 528, 288, 134
SCANS = ((1, 1, 2048), (32, 1, 2048), (192, 1, 2048), (8, 6, 2048), (64, 6, 4096), (128, 1, 16384))
QUERIES = (4, 16, 32, 96, 192, 384)  # rows of attention
SAMPLED, SEQUENCES = (8, 32, 128, 192), (8, 64, 128, 512)
CANDIDATES, SCANNED, CANDIDATE_ROWS = 16384, 65536, (8, 32, 192)
SLOTS, TABLE_ROWS, TABLE_DIM = 24, 4 << 20, 256
ROTATED_BYTES = 120e6  # of copies together: more than the second-level cache holds


class Timing(Struct, frozen=True, kw_only=True):
    """One case, named as the kernel tests name theirs; a call for each copy of its inputs. `cached`: rows lie in the cache."""

    op: str
    case: str
    calls: Sequence[Callable[[], object]]
    flops: float = 0.0
    moved_bytes: float = 0.0
    cached: bool = False


def copies(num_bytes: float, most: int = 12) -> int:
    return max(2, min(most, int(ROTATED_BYTES / num_bytes) + 1))


def stored(ops: DeviceOps) -> Iterator[Timing]:
    """Window rows, main and index entries of so many tokens."""
    for rows in ROWS:
        rope, numbers = turns(rows), torch.arange(rows, device=DEVICE).int()
        low, weight = random(rows, 1792)[:, 1280:], random(HEAD_DIM)
        window = packed(rows // 64 + 1, RING, WINDOW_BYTES)
        yield row_case(
            "norm_rope_store_window",
            f"{rows} tokens",
            lambda a=(low, weight, EPS, rope, window, numbers): ops.norm_rope_store_window(*a),
            rows * (1024 + 256 + 4 + WINDOW_BYTES),
        )
        for ratio in (1, 2):
            entries = rows // ratio
            halves, main = random(rows, HEAD_DIM * ratio), packed(entries // 64 + 1, 64, MAIN_BYTES)
            newest = numbers[:entries] * ratio + ratio - 1
            pairs = {"partner_E": newest - 1} if ratio == 2 else {}
            a = (halves, newest, weight, EPS, rope[:entries], main, numbers[:entries])
            moved = rows * 1024 * ratio + entries * (256 + 4 * (1 + ratio) + MAIN_BYTES + 1024)
            name = f"ratio {ratio}, {rows} tokens, bfloat16"
            yield row_case("compress_store", name, lambda a=a, pairs=pairs: ops.compress_store(*a, **pairs), moved)
        key, index = random(rows, INDEX_DIM), packed(rows // 64 + 1, 64, INDEX_BYTES)
        a = (key, random(INDEX_DIM), EPS, rope, index, numbers)
        yield row_case("index_store", f"{rows} entries", lambda a=a: ops.index_store(*a), rows * (256 + 256 + 4 + 68))


def chosen(ops: DeviceOps) -> Iterator[Timing]:
    """Experts of rows, their sums, and what lies between."""
    for rows in ROWS:
        logits, bias = torch.randn(rows, EXPERTS, device=DEVICE), torch.randn(EXPERTS, device=DEVICE)
        yield row_case(
            "router",
            f"{rows} x {EXPERTS}, {CHOSEN} chosen",
            lambda a=(logits, bias, CHOSEN, 2.5): ops.router(*a),
            rows * (4 * EXPERTS + 8 * CHOSEN),
        )
        picks = torch.rand(rows, EXPERTS, device=DEVICE).topk(CHOSEN).indices.int()
        weights = torch.rand(rows, CHOSEN, device=DEVICE)
        yield row_case(
            "expert_permutation",
            f"{rows} x {CHOSEN}, {CHOSEN} local of {EXPERTS}",
            lambda p=picks, w=weights: ops.expert_permutation(p, CHOSEN, weights_TX=w),
            rows * CHOSEN * 20 + 4 * CHOSEN,
        )
        parts, shared = random(rows * CHOSEN, HIDDEN), random(rows, HIDDEN)
        places = torch.randperm(rows * CHOSEN, device=DEVICE).int().view(rows, CHOSEN)
        yield row_case(
            "combine",
            f"{rows} x {HIDDEN}, {CHOSEN} slots and a shared expert",
            lambda a=(parts, places, shared): ops.combine(*a),
            rows * (8 * 2 * HIDDEN + 4 * CHOSEN),
        )


def memory(ops: DeviceOps) -> Iterator[Timing]:
    """Rows of the n-gram tables, and their gated sum."""
    codes = torch.randint(0, 100, (TABLE_ROWS, TABLE_DIM), dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn)
    powers = torch.randint(100, 140, (TABLE_ROWS, TABLE_DIM // 32), dtype=torch.uint8, device=DEVICE)
    for rows in ROWS:
        drawn = [torch.randint(0, TABLE_ROWS, (rows, SLOTS), device=DEVICE) for _ in range(8)]
        yield Timing(
            op="engram_gather",
            case=f"{rows} x {SLOTS} rows in device memory",
            calls=[lambda r=r: ops.engram_gather(codes, powers, r) for r in drawn],
            moved_bytes=rows * SLOTS * (TABLE_DIM + TABLE_DIM // 32 + 8 + 2 * TABLE_DIM),
        )
        x, gated, norm = random(rows, STREAMS, HIDDEN), random(rows, STREAMS + 1, HIDDEN), random(STREAMS, HIDDEN)
        a, moved = (x, gated[:, :STREAMS], gated[:, STREAMS], norm, norm, EPS), rows * HIDDEN * 26
        yield row_case("engram_add", f"{rows} x {STREAMS} x {HIDDEN}", lambda a=a: ops.engram_add(*a), moved)


def attention(ops: DeviceOps) -> Iterator[Timing]:
    """One query a sequence over its window and 512 of its entries; each sequence has its own keys."""
    for rows in QUERIES:
        moved = rows * (2 * 2 * HEADS * HEAD_DIM + WINDOW * (WINDOW_BYTES + 4) + SELECTED * (MAIN_BYTES + 4))
        calls = []
        for _ in range(copies(moved, 32)):
            ring = torch.arange(rows, device=DEVICE).unsqueeze(1)
            window = ring * RING + torch.arange(WINDOW, device=DEVICE)
            selected = torch.rand(rows, SEEN, device=DEVICE).topk(SELECTED).indices.sort(-1)[0] + ring * SEEN
            a = (
                random(rows, HEADS, HEAD_DIM),
                *(packed(rows, RING, WINDOW_BYTES), window.int()),
                *(packed(rows * SEEN // 64, 64, MAIN_BYTES), selected.int()),
                *(torch.randn(HEADS, device=DEVICE), HEAD_DIM**-0.5, turns(rows)),
            )
            calls.append(lambda a=a: ops.sparse_attention(*a))
        flops = 4.0 * rows * HEADS * HEAD_DIM * (WINDOW + SELECTED)
        yield Timing(
            op="sparse_attention", case=f"decode, {rows} × 1 rows", calls=calls, flops=flops, moved_bytes=moved
        )


def scored(ops: DeviceOps) -> Iterator[Timing]:
    """Index scores of all entries, and of candidates."""
    for sequences, rows_each, entries in SCANS:
        rows, key_bytes = sequences * rows_each, sequences * entries * INDEX_BYTES
        out = torch.empty(rows, entries, device=DEVICE)
        inputs = [index_inputs(rows, sequences, entries) for _ in range(copies(key_bytes))]
        yield Timing(
            op="index_scores",
            case=f"{sequences}x{rows_each} of {entries}, 2 binades",
            calls=[lambda a=(*a, out, rows_each): ops.paged_index_scores(*a) for a in inputs],
            flops=2.0 * INDEX_HEADS * INDEX_DIM * rows * entries,
            moved_bytes=key_bytes + 4 * rows * entries,
        )
    for rows in CANDIDATE_ROWS:
        key_bytes, out = rows * CANDIDATES * INDEX_BYTES, torch.empty(rows, CANDIDATES, device=DEVICE)
        inputs = [index_inputs(rows, rows, SCANNED) for _ in range(copies(key_bytes))]
        best = torch.rand(rows, SCANNED // 8, device=DEVICE).topk(CANDIDATES // 8).indices.sort().values.int()
        yield Timing(
            op="candidate_scores",
            case=f"{rows} rows of {CANDIDATES}",
            calls=[lambda a=(*a, best, out): ops.candidate_scores(*a) for a in inputs],
            flops=2.0 * INDEX_HEADS * INDEX_DIM * rows * CANDIDATES,
            moved_bytes=key_bytes + 4 * rows * CANDIDATES,
        )
    for rows in ROWS:
        q, rope, out = random(rows, INDEX_HEADS, INDEX_DIM), turns(rows), random(rows, INDEX_HEADS, INDEX_DIM)
        yield row_case(
            "rotate_quantise_index_q",
            f"{rows} rows",
            lambda a=(q, rope, out): ops.rotate_quantise_index_q(*a),
            rows * (INDEX_HEADS * INDEX_DIM * 4 + 256),
        )


def sampled(ops: DeviceOps) -> Iterator[Timing]:
    """Tokens drawn from logits that the product before left, and drafts compared."""
    for rows in SAMPLED:
        logits, asked = torch.randn(rows, VOCABULARY, device=DEVICE) * 4, at_temperature(rows)
        yield row_case(
            "sample rows",
            f"{rows} rows, temperature",
            lambda a=(logits, asked): ops.sample_rows(*a, columns=21),
            4 * rows * VOCABULARY,
        )
    for sequences in SEQUENCES:
        start = torch.arange(sequences + 1, device=DEVICE).int() * 6
        tokens = torch.randint(0, 4, (6 * sequences,), device=DEVICE).int()
        drafts = torch.randint(0, 4, (sequences, 5), device=DEVICE).int()
        yield row_case(
            "accepted lengths",
            f"{sequences} sequences, 5 drafts",
            lambda a=(tokens, drafts, start): ops.accepted_lengths(*a),
            start.nbytes + tokens.nbytes + drafts.nbytes + 4 * sequences,
        )


def row_case(op: str, case: str, call: Callable[[], object], moved_bytes: float) -> Timing:
    return Timing(op=op, case=case, calls=[call], moved_bytes=moved_bytes, cached=True)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).bfloat16()


def turns(rows: int) -> Tensor:
    """Cosines and sines, float32 [rows, 2, 32]."""
    angles = torch.rand(rows, 32, device=DEVICE) * 6.3
    return torch.stack((angles.cos(), angles.sin()), 1).contiguous()


def packed(blocks: int, rows: int, row_bytes: int) -> Tensor:
    """A store of packed rows, uint8 [blocks, rows, row_bytes]: small codes, scales near 1 behind them."""
    store = torch.randint(0, 100, (blocks, rows, row_bytes), dtype=torch.uint8, device=DEVICE)
    scales = {WINDOW_BYTES: (512, 117, 122), MAIN_BYTES: (256, 0x18, 0x30), INDEX_BYTES: (64, 118, 120)}
    codes, low, high = scales[row_bytes]
    store[..., codes:] = torch.randint(low, high, store[..., codes:].shape, dtype=torch.uint8, device=DEVICE)
    return store


def index_inputs(rows: int, sequences: int, entries: int) -> tuple[Tensor, ...]:
    """Queries, weights, store, block tables, the sequence of each row, and what it sees: all `entries`."""
    blocks = sequences * entries // 64
    q = formats.fake_index(random(rows, INDEX_HEADS, INDEX_DIM))
    tables = torch.randperm(blocks, device=DEVICE).int().view(sequences, -1)
    sequence = torch.arange(sequences, device=DEVICE).int().repeat_interleave(rows // sequences)
    weight, store = torch.randn(rows, INDEX_HEADS, device=DEVICE), packed(blocks, 64, INDEX_BYTES)
    return q, weight, store, tables, sequence, torch.full_like(sequence, entries)


def at_temperature(rows: int) -> SamplingRows:
    """Temperature 1 and nothing else is asked of any row."""

    def each(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=DEVICE)

    none = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    real = {"temperature": 1, "top_p": 1, "min_p": 0, "repetition": 1, "frequency": 0, "presence": 0}
    whole = {"top_k": 0, "num_logprobs": -1, "processed": 0, "mask_row": -1}
    return SamplingRows(
        seed_R=torch.arange(rows, device=DEVICE),
        position_R=each(7, torch.int64),
        **{f"{name}_R": each(value, torch.float64) for name, value in real.items()},
        **{f"{name}_R": each(value, torch.int32) for name, value in whole.items()},
        masks_MW=torch.zeros(1, VOCABULARY // 32, dtype=torch.int32, device=DEVICE),
        edit_starts_X=torch.zeros(rows + 1, dtype=torch.int32, device=DEVICE),
        edit_ids_E=none,
        edit_biases_E=none.double(),
        edit_counts_E=none,
    )


CASES = {case.__name__: case for case in (stored, chosen, memory, attention, scored, sampled)}
