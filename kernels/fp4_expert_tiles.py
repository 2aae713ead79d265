"""Expert weights as the Hopper kernel reads them: the same bytes, re-laid once at load.

A piece of 8,704 bytes holds 256 weight rows × 64 columns. Pieces follow each other by columns, by rows, by experts, so
that a bulk copy takes one or more. Inside a piece every thread finds its codes as one 16-byte word, in the order in which the
matrix instruction wants its registers; behind them lie the scales of the piece.

Legend: E experts · N weight rows · K columns · M tiles of 256 rows · C blocks of 64 columns · B bytes of a piece.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from deepinfer.ops.fp4_experts import Fp4Experts

TILE_ROWS, TILE_COLUMNS = 256, 64
STEP_COLUMNS = 2 * TILE_COLUMNS  # columns come by whole steps of the product
CODE_BYTES = TILE_ROWS * TILE_COLUMNS // 2
PIECE_BYTES = CODE_BYTES + TILE_ROWS * TILE_COLUMNS // 32
SCALE_OFFSET = 126  # what the kernel adds to a scale byte to get the bf16 exponent field that undoes the codes' bias
LARGEST_SCALE = 254 - SCALE_OFFSET  # 2^1
MAX_BLOCKS, BLOCK_WARPS = 160, 16  # of a launch; of a block, those that multiply

# Where the pairs of codes of two K steps lie in a thread's two 32-bit words: which word, and how far it turns right to bring
# the pair's bits to a bf16's places. Three pairs of each word leave 8 bits; the fourth pairs lie in `rest`, those bits of both.
_PLACES = (6, 7, 8, 15)  # mantissa, low exponent, high exponent, sign; of the pair's second code 16 further
_PAIRS = (
    ("first", 0),
    ("first", 26),
    ("first", 4),
    ("rest", 30),
    ("second", 2),
    ("second", 28),
    ("second", 6),
    ("rest", 8),
)
_REST_OF_FIRST = 0x60306030  # `rest` takes these bits of the first word, the others of the second
# Axes of the 256 weight rows of a tile: warpgroup 4, warp 4, r1 4, half 2, r0 2; a product's rows are r1, r0 and half · 8.
# Plain: a thread ends up with 4 adjacent outputs of a row. Paired: the halves are gate and up, so it has both of a column.
_ROW_AXES = (4, 4, 4, 2, 2)
_COLUMN_AXES = (4, 2, 4, 2)  # step of 16 columns, half, pair of lanes, parity


@dataclass(frozen=True)
class TiledFp4Experts:
    """Pieces uint8 [E, M, C, 8704]. `paired`: gate and up rows share tiles. `counters`: of work drawn and of sums handed on
    from block to block, zeros between launches.

    One weight serves one stream at a time, since launches share its counters.
    """

    pieces_EMCB: Tensor
    counters: Tensor
    paired: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, weight rows, columns."""
        experts, tiles, blocks, _ = self.pieces_EMCB.shape
        return experts, tiles * TILE_ROWS, blocks * TILE_COLUMNS


def tile_experts(weight: Fp4Experts, paired: bool = False) -> TiledFp4Experts:
    """Re-lays the weights, expert by expert. Raises ValueError for a scale that is NaN or above 2."""
    _check_stored(weight)
    experts, rows, half = weight.codes_ENB.shape
    pieces = weight.codes_ENB.new_empty(experts, rows // TILE_ROWS, half * 2 // TILE_COLUMNS, PIECE_BYTES)
    for expert in range(experts):
        pieces[expert, :, :, :CODE_BYTES] = _code_bytes(weight.codes_ENB[expert], paired)
        scale_NG = weight.scale_ENG[expert] + SCALE_OFFSET
        pieces[expert, :, :, CODE_BYTES:] = _to_memory(scale_NG, _scale_axes(rows, half * 2, paired))
    return tiled(pieces, paired)


def _check_stored(weight: Fp4Experts) -> None:
    """Refuses weights that the tiles cannot hold."""
    assert isinstance(weight, Fp4Experts), (
        f"MXFP4 experts to re-lay came as {type(weight).__name__}; tiles are made of codes and scales as stored, once: "
        "give Fp4Experts(codes, scales)"
    )
    codes, scale = weight.codes_ENB, weight.scale_ENG
    assert codes.dtype == scale.dtype == torch.uint8, (
        f"MXFP4 experts to re-lay have codes {codes.dtype} and scales {scale.dtype}; tiles hold the release's bytes: give "
        "both as uint8 (Tensor.view re-reads bytes)"
    )
    experts, rows, half = codes.shape
    assert rows % TILE_ROWS == 0 and half * 2 % STEP_COLUMNS == 0, (
        f"MXFP4 experts [N, K] to re-lay are {rows} × {half * 2}; a tile holds {TILE_ROWS} rows and a step of the product "
        f"takes {STEP_COLUMNS} columns: pad N to {TILE_ROWS} and K to {STEP_COLUMNS} with zeros, or take the Triton kernel"
    )
    assert scale.shape == (experts, rows, half // 16), (
        f"MXFP4 experts {rows} × {half * 2} to re-lay came with scales {tuple(scale.shape)}; each has one for 32 columns of a "
        f"row: give {(experts, rows, half // 16)}"
    )
    if experts and int(scale.max()) > LARGEST_SCALE:
        raise ValueError(
            f"MXFP4 experts to re-lay have scale byte {int(scale.max())}; the kernel holds bytes up to {LARGEST_SCALE} (2.0), "
            "larger ones and NaN (255) have no bfloat16 in its decoding. Check the checkpoint, or take the Triton kernel"
        )


def tiled(pieces_EMCB: Tensor, paired: bool) -> TiledFp4Experts:
    """Pieces with fresh counters: two of work, and one for each multiplying warp of each block."""
    counters = torch.zeros(2 + MAX_BLOCKS * BLOCK_WARPS, dtype=torch.int32, device=pieces_EMCB.device)
    return TiledFp4Experts(pieces_EMCB, counters, paired)


def untile_experts(weight: TiledFp4Experts) -> Fp4Experts:
    """The inverse of tile_experts."""
    _, rows, columns = weight.shape
    codes, scales = [], []
    for pieces_MCB in weight.pieces_EMCB:
        words = pieces_MCB[..., :CODE_BYTES].contiguous().view(torch.int64)
        nibbles = torch.zeros(*words.shape, 16, dtype=torch.uint8, device=words.device)
        for place, positions in enumerate(_bit_positions()):
            for bit, position in enumerate(positions):
                nibbles[..., place] |= ((words >> position & 1) << bit).to(torch.uint8)
        codes_NK = _from_memory(nibbles, _code_axes(rows, columns, weight.paired)).reshape(rows, columns)
        codes.append(codes_NK[:, 0::2] | codes_NK[:, 1::2] << 4)
        scale = _from_memory(pieces_MCB[..., CODE_BYTES:], _scale_axes(rows, columns, weight.paired))
        scales.append(scale.reshape(rows, -1) - SCALE_OFFSET)
    return Fp4Experts(torch.stack(codes), torch.stack(scales))


def _code_bytes(codes_NB: Tensor, paired: bool) -> Tensor:
    """uint8 [M, C, 8192]."""
    rows, half = codes_NB.shape
    nibbles_NK = torch.stack((codes_NB & 15, codes_NB >> 4), dim=-1)
    nibbles = _to_memory(nibbles_NK, _code_axes(rows, 2 * half, paired)).unflatten(-1, (-1, 16))
    words = nibbles.new_zeros(nibbles.shape[:-1], dtype=torch.int64)
    for table, codes in zip(_spread_bits(codes_NB.device), nibbles.unbind(-1)):
        words |= table[codes.int()]
    return words.view(torch.uint8)


@cache
def _spread_bits(device: torch.device) -> list[Tensor]:
    """For each of two words' 16 codes, int64 [16]: the words with that code alone."""
    tables = []
    for positions in _bit_positions():
        words = [sum((code >> bit & 1) << position for bit, position in enumerate(positions)) for code in range(16)]
        signed = [word - (1 << 64 if word >> 63 else 0) for word in words]
        tables.append(torch.tensor(signed, dtype=torch.int64, device=device))
    return tables


def _bit_positions() -> list[list[int]]:
    """Of each of two words' 16 codes, where its four bits lie; the second word's from 32 on."""
    positions = []
    for word, turn in _PAIRS:
        for second in (0, 16):
            bits = [(place + second + turn) % 32 for place in _PLACES]
            far = [word == "second" or (word == "rest" and not _REST_OF_FIRST >> bit & 1) for bit in bits]
            positions.append([bit + 32 * other for bit, other in zip(bits, far)])
    return positions


def _split_rows(rows: int, paired: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How the row axis unfolds, and which of its axes are (tile, warpgroup, warp, r1, r0, half)."""
    group, warp, r1, half, r0 = _ROW_AXES
    if paired:
        return (half, rows // TILE_ROWS, group, warp, r1, r0), (1, 2, 3, 4, 5, 0)
    return (rows // TILE_ROWS, group, warp, r1, half, r0), (0, 1, 2, 3, 5, 4)


def _code_axes(rows: int, columns: int, paired: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How [N, K] unfolds, and its axes in memory order: tile, block, thread, word, code (column half, row half, parity)."""
    sizes, (tile, group, warp, r1, r0, half) = _split_rows(rows, paired)
    return (*sizes, columns // TILE_COLUMNS, *_COLUMN_AXES), (tile, 6, group, warp, r1, r0, 9, 7, 8, half, 10)


def _scale_axes(rows: int, columns: int, paired: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same for scales [N, K / 32]: tile, block, warp, row of 8, byte (column half, row half)."""
    sizes, (tile, group, warp, r1, r0, half) = _split_rows(rows, paired)
    return (*sizes, columns // TILE_COLUMNS, 2), (tile, 6, group, warp, r1, r0, 7, half)


def _to_memory(x: Tensor, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> Tensor:
    """[tile, block, rest]."""
    sizes, order = axes
    return x.reshape(sizes).permute(order).reshape(sizes[order[0]], sizes[order[1]], -1)


def _from_memory(x_MCB: Tensor, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> Tensor:
    sizes, order = axes
    return x_MCB.reshape([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(len(order))])
