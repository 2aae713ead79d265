"""The price of batch invariance on a CPU: products in tiles of fixed rows against one plain F.linear.

    python benchmarks/invariance.py

Measured twice: for the head alone, by rows, and for a whole decode step of a model of the tiny model's shape, by batch. The
two sides alternate, so that a busy machine slows both alike.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from cpu_step import Decoder, median_ms, tiny_config
from record import options, record

from deepinfer.ops import native
from deepinfer.ops.linear import linear

ROWS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (1, 8, 32)
ROUNDS = 6


def price(tiled: Callable[[], object], plain: Callable[[], object], repeats: int) -> dict[str, float]:
    """Best ms of both sides over alternating rounds, and their ratio."""
    sides = {"tiled": tiled, "plain": plain}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, run in sides.items():
            best[name] = min(best[name], median_ms(run, repeats)[0])
    return {
        "tiled_ms": round(best["tiled"], 4),
        "plain_ms": round(best["plain"], 4),
        "price": round(best["tiled"] / best["plain"], 3),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = tiny_config()
    with torch.inference_mode():
        head = torch.randn(config.vocab_size, config.hidden_size)
        for rows in ROWS:
            x = torch.randn(rows, config.hidden_size)
            values = price(lambda x=x: linear(x, head), lambda x=x: torch.nn.functional.linear(x, head), 50)
            record(Path(__file__).stem, what="head", rows=rows, threads=args.threads, **values)
        plain_ops = dataclasses.replace(native(), linear=torch.nn.functional.linear)
        for batch in BATCHES:
            decoders = [Decoder(config, ops, "full", batch, args.context, 80) for ops in (native(), plain_ops)]
            values = price(lambda d=decoders[0]: d.step(1), lambda d=decoders[1]: d.step(1), 10)
            record(Path(__file__).stem, what="decode step", rows=batch, threads=args.threads, **values)


if __name__ == "__main__":
    main()
