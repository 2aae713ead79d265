"""Speculation that does not pay, and its back-off, on the real engine with the shipped tiny model.

    python benchmarks/back_off.py [--steps 400] [--record]

ngram on prose, in which there is nothing to look up, eight answers at once and temperature 1, beside no speculation, in turns
of a few steps. `told_at_step`: when the engine said so, and how; `cpu_ratio_`: the median of tokens a processor second over
those of none, before that step and after it.
"""

from pathlib import Path

import numpy as np
from record import options, record
from speculation import SIDES, build, busy
from tiny_prompts import prompts

from deepinfer.interfaces import SamplingParams


def rest(threads: int, most_steps: int) -> None:
    """Both sides run until the engine has said its word and a while longer."""
    with_it, none = (
        build("ngram", ("speculation=ngram",), "coupled", threads),
        build("none", SIDES["none"], "coupled", threads),
    )
    for side in (with_it, none):
        params = SamplingParams(max_tokens=1_000, temperature=1.0, seed=5, ignore_eos=True)
        side.start(prompts("prose", 8), params)
    told_at, notice, parts = 0, "", []
    while with_it.steps < most_steps:
        marks = [(side.graph.engine.stats().sampled_tokens, side.cpu_s) for side in (with_it, none)]
        for side in (with_it, none):
            side.turn()
        done = [(side.graph.engine.stats().sampled_tokens, side.cpu_s) for side in (with_it, none)]
        parts.append((bool(notice), *((b[0] - a[0]) / (b[1] - a[1]) for a, b in zip(marks, done))))
        if not notice and (notice := " ".join(with_it.graph.engine.take_notices())):
            told_at = with_it.steps
    ratio = {told: [with_it / none for after, with_it, none in parts if after is told] for told in (False, True)}
    record(
        Path(__file__).stem,
        side="ngram",
        family="prose",
        batch=8,
        steps=with_it.steps,
        told_at_step=told_at or None,
        notice=notice,
        **{
            f"cpu_ratio_{name}": round(float(np.median(ratio[told])), 3) if ratio[told] else None
            for told, name in ((False, "before"), (True, "after"))
        },
        **busy(),
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    rest(asked.threads, asked.steps)


if __name__ == "__main__":
    main()
