"""How long a command takes before it has said anything: a bare interpreter, raw Hydra, our composition, `plan`, `doctor`.

    python benchmarks/startup.py [--runs 7]

Every figure is a fresh process, wall clock, the runs interleaved; `median_ms` is quoted. `raw_hydra` composes the same tree
with the same overrides and does nothing else; `compose` adds reading the command line and converting to typed Structs;
`compose_ratio` is their quotient inside the process, imports left out.
"""

import json
import statistics
import subprocess
import sys
import time

from record import options, record

OVERRIDES = ["hardware=ascend950", "parallel=ep64"]
RAW = f"""
import time
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
start = time.perf_counter()
with initialize_config_module(version_base="1.3", config_module="deepinfer.conf"):
    OmegaConf.to_container(compose("config", overrides={OVERRIDES}), resolve=True)
print(time.perf_counter() - start)
"""
OURS = f"""
import time
from deepinfer.config import argv
from deepinfer.config.compose import read
start = time.perf_counter()
read(argv.parse({OVERRIDES}))
print(time.perf_counter() - start)
"""
COMMANDS = {
    "interpreter": ["-c", "pass"],
    "raw_hydra": ["-c", RAW],
    "compose": ["-c", OURS],
    "plan": ["-m", "deepinfer", "plan", *OVERRIDES],
    "plan_json": ["-m", "deepinfer", "plan", *OVERRIDES, "format=json"],
    "doctor": ["-m", "deepinfer", "doctor"],
    "help": ["-m", "deepinfer", "--help"],
}


def timed(words: list[str]) -> tuple[float, str]:
    """Wall seconds of a fresh interpreter, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, done.stdout


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    for words in COMMANDS.values():
        timed(words)  # compiles what is not compiled yet
    wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
    inside: dict[str, list[float]] = {"raw_hydra": [], "compose": []}
    for _ in range(runs):
        for name, words in COMMANDS.items():
            seconds, printed = timed(words)
            wall[name].append(seconds)
            if name in inside:
                inside[name].append(float(json.loads(printed)))
    for name, seconds in wall.items():
        record("startup", what=name, median_ms=_ms(statistics.median(seconds)), best_ms=_ms(min(seconds)), runs=runs)
    medians = {name: statistics.median(seconds) for name, seconds in inside.items()}
    record(
        "startup",
        what="compose_ratio",
        raw_hydra_ms=_ms(medians["raw_hydra"]),
        compose_ms=_ms(medians["compose"]),
        ratio=round(medians["compose"] / medians["raw_hydra"], 3),
        runs=runs,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


if __name__ == "__main__":
    main()
