"""Time of one decode step of the tiny model's shape on a CPU, and of its parts: model and head, no scheduler, no sampler.

    python benchmarks/cpu_step.py --batch 1 8 32 --context 256

Lines give ms per decode step by batch and implementation of the ops, and the share of each op. Weights are invented; the shape
is that of the shipped tiny model.
"""

import cProfile
import json
import pstats
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from record import options, record

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config, parse_config
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.dummy import dummy_weights
from deepinfer.model.v41 import V41Model
from deepinfer.ops import Ops, native, reference

CONFIG = Path(__file__).parents[1] / "tests" / "fixtures" / "k6_config.json"


def tiny_config() -> V41Config:
    return parse_config(json.loads(CONFIG.read_text()))


class Decoder:
    """`batch` sequences with `context` tokens each in the caches, ready to decode further."""

    def __init__(self, config: V41Config, ops: Ops, numerics: str, batch: int, context: int, steps: int) -> None:
        layout = CacheLayout.of(config, numerics=numerics, dtype="float32")
        blocks_each = -(-(context + steps) // layout.block_tokens)
        classes = np.arange(config.vocab_size, dtype=np.int64) % config.engram_compressed_vocab_size
        weights = dummy_weights(config)
        self.model = V41Model(
            config, weights, ops, numerics=numerics, dtype="float32", layout=layout, token_classes=classes
        )
        self.cache = ModelCache(config, layout, num_blocks=batch * blocks_each, num_slots=batch)
        self.tokens_SP = np.random.default_rng(0).integers(3, config.vocab_size - 100, (batch, context + steps))
        self.tables_SB = np.arange(batch * blocks_each).reshape(batch, blocks_each)
        self.position = 0
        self.step(context)

    def step(self, rows: int) -> None:
        """The next `rows` positions of every sequence; one row each is a decode step."""
        batch, ends = len(self.tokens_SP), self.position + rows
        positions = np.tile(np.arange(self.position, ends), batch)
        owners = np.repeat(np.arange(batch), rows)
        back_TG = positions[:, None] - np.arange(4)
        step = StepInput(
            token_ids=self.tokens_SP[owners, positions],
            positions=positions,
            ngram_ids=np.where(back_TG >= 0, self.tokens_SP[owners[:, None], back_TG], -1),
            row_starts=np.arange(batch + 1) * rows,
            state_slots=np.arange(batch),
            block_tables=self.tables_SB,
            sample_rows=np.arange(1, batch + 1) * rows - 1,
        )
        hidden_TD = self.model.forward(step, self.cache)
        self.model.logits(hidden_TD[step.sample_rows])
        self.position = ends


def median_ms(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and least wall time of `run`, in ms."""
    times_ms = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    return float(np.median(times_ms)), min(times_ms)


def shares(decoder: Decoder, repeats: int) -> dict[str, float]:
    """Part of the profiled time spent in each op of the record, attribution by its outermost call."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(repeats):
        decoder.step(1)
    profile.disable()
    stats = pstats.Stats(profile)
    stats_by_code = stats.stats  # type: ignore[attr-defined]
    names = {
        (op.__code__.co_filename, op.__code__.co_firstlineno): name
        for name, op in vars(decoder.model.ops).items()
        if hasattr(op, "__code__")
    }
    spent = {names[key[:2]]: row[3] for key, row in stats_by_code.items() if key[:2] in names}
    total = stats.total_tt  # type: ignore[attr-defined]
    return {name: round(seconds / total, 4) for name, seconds in sorted(spent.items(), key=lambda item: -item[1])}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=256, help="tokens in the caches before the first timed step")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--numerics", default="full", choices=["full", "kv", "none"])
    parser.add_argument("--ops", nargs="+", default=["native", "reference"], choices=["native", "reference"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        for batch in args.batch:
            for name in args.ops:
                ops = native() if name == "native" else reference()
                decoder = Decoder(tiny_config(), ops, args.numerics, batch, args.context, 3 * args.steps)
                for _ in range(5):
                    decoder.step(1)
                median, least = median_ms(lambda d=decoder: d.step(1), args.steps)
                record(
                    Path(__file__).stem,
                    batch=batch,
                    ops=name,
                    numerics=args.numerics,
                    context=args.context,
                    threads=args.threads,
                    median_ms=round(median, 3),
                    min_ms=round(least, 3),
                    shares=shares(decoder, args.steps),
                )


if __name__ == "__main__":
    main()
