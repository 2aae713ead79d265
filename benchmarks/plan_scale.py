"""How long `resolve` takes as the layout grows to 1,200 ranks, and the size of the plan.

    python benchmarks/plan_scale.py [--runs 9]

`cold_ms` is the first call of a fresh process (imports left out), `median_ms` later calls in one process. Spec and facts are
there already: composing is measured by startup.py.
"""

import statistics
import subprocess
import sys
import time

from record import options, record

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.plan import render
from deepinfer.plan.resolve import resolve

LAYOUTS = {  # ranks → degrees; GB200 holds the model at every one of them
    8: ("parallel=ep8",),
    64: ("parallel=ep64",),
    128: ("parallel=ep128",),
    1200: ("parallel.attention_dp=1200", "parallel.expert=48"),
}
BASE = ("hardware=gb200",)
COLD = """
import sys, time
from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve
spec = load(*sys.argv[1:])
facts = probe(spec)
start = time.perf_counter()
resolve(spec, facts)
print(time.perf_counter() - start)
"""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    for ranks, degrees in LAYOUTS.items():
        spec = load(*BASE, *degrees)
        facts = probe(spec)
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            plan = resolve(spec, facts)
            seconds.append(time.perf_counter() - start)
        assert plan.layout.num_ranks == ranks
        words = [sys.executable, "-c", COLD, *BASE, *degrees]
        cold = [float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
        start = time.perf_counter()
        text = render.text(plan)
        record(
            "plan_scale",
            ranks=ranks,
            cold_ms=round(statistics.median(cold) * 1e3, 1),
            median_ms=round(statistics.median(seconds) * 1e3, 1),
            text_ms=round((time.perf_counter() - start) * 1e3, 1),
            text_lines=len(text.splitlines()),
            json_bytes=len(plan.to_json()),
            rank_digest=plan.rank_digest,
            numerics_digest=plan.numerics_digest,
            runs=runs,
        )


if __name__ == "__main__":
    main()
