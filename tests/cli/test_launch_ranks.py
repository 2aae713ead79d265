"""Launches of several ranks on this machine, really started: their answers, and what is left when a rank is lost."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import (
    IMPATIENT,
    LONG,
    SHORT,
    Started,
    free_port,
    is_free,
    launch,
    none_left,
    ranks_of,
    started,
    without_speed,
)

from deepinfer.api import LLM
from deepinfer.cli.generate import DEMO
from deepinfer.config.errors import ExitCode

TORCHRUN = ("launcher=torchrun", f"launcher.python={sys.executable}")
LOST_S = 120.0  # far more than a silence of 8 s and twice the five seconds that the script grants


@pytest.fixture
def port() -> int:
    return free_port()


def at_work(script: Started, folder: Path, ranks: int) -> None:
    """Wait until all ranks are in the midst of their answers: those take minutes, and starting takes seconds."""
    script.until(lambda: script.err.count("deepinfer: rank") == ranks == len(ranks_of(folder)))
    with pytest.raises(subprocess.TimeoutExpired):
        script.ended(8)


@pytest.mark.parametrize(
    ("overrides", "script"),
    [
        (("parallel=ep2",), "run.sh"),
        pytest.param(("parallel=dp2", *TORCHRUN), "all-0/node-0.sh", marks=pytest.mark.slow),
        pytest.param(("parallel=ep4", "speculation=dspark", "cache=prefix"), "run.sh", marks=pytest.mark.slow),
    ],
)
def test_ranks_answer_as_one_process(overrides: tuple[str, ...], script: str, tmp_path: Path, port: int) -> None:
    folder = launch(tmp_path / "launch", *SHORT, *overrides, f"launcher.master_port={port}")
    with started([folder / script], logs=tmp_path / "logs") as (ranks,):
        assert ranks.ended(300) == 0, ranks.err
    with LLM(*SHORT[:2], SHORT[3]) as llm:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in DEMO])
    answers = "\n\n".join(f"> {prompt}\n{out.message.content}" for prompt, out in zip(DEMO, outputs, strict=True))
    assert without_speed(ranks.out) == answers
    assert none_left(folder) and is_free(port)


def killed(rank: int, sent: signal.Signals) -> Callable[[Started, Path], None]:
    return lambda script, folder: os.kill(ranks_of(folder)[rank], sent)


def interrupted(script: Started, folder: Path) -> None:
    os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        (killed(1, signal.SIGKILL), 137, "rank 1 of all-0 was ended by signal 9"),
        (killed(0, signal.SIGKILL), 137, "rank 0 of all-0 was ended by signal 9"),
        (killed(1, signal.SIGSTOP), 1, "gave no sign of life"),
        (killed(0, signal.SIGSTOP), 1, "its driver"),
        (interrupted, 130, "deepinfer: terminated"),
    ],
    ids=["killed", "driver-killed", "frozen", "driver-frozen", "ctrl-c"],
)
def test_a_rank_that_is_lost_ends_the_world(
    fault: Callable[[Started, Path], None], code: int, says: str, tmp_path: Path, port: int
) -> None:
    folder = launch(tmp_path / "launch", *LONG, *IMPATIENT, "parallel=ep2", f"launcher.master_port={port}")
    with started([folder / "run.sh"], logs=tmp_path / "logs") as (ranks,):
        at_work(ranks, folder, 2)
        fault(ranks, folder)
        assert ranks.ended(LOST_S) == code
        assert none_left(folder) and is_free(port)
    assert says in ranks.err + ranks.out


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_torchrun_ends_with_a_rank_that_is_lost(sent: signal.Signals, tmp_path: Path, port: int) -> None:
    """torchrun ends the other ranks itself, after 30 s of patience with one that does not react, and with its own code."""
    folder = launch(tmp_path / "launch", *LONG, *IMPATIENT, "parallel=ep2", *TORCHRUN, f"launcher.master_port={port}")
    with started([folder / "all-0" / "node-0.sh"], logs=tmp_path / "logs") as (ranks,):
        at_work(ranks, folder, 2)
        os.kill(ranks_of(folder)[1], sent)
        assert ranks.ended(LOST_S + 30) == 1
        assert none_left(folder) and is_free(port)


@pytest.mark.slow
def test_a_port_that_somebody_has_is_named_with_another(tmp_path: Path, port: int) -> None:
    folder = launch(tmp_path / "launch", *LONG, *IMPATIENT, "parallel=ep2", f"launcher.master_port={port}")
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        with started([folder / "run.sh"], logs=tmp_path / "logs") as (ranks,):
            assert ranks.ended(240) == ExitCode.NETWORK
    assert f"the meeting place 127.0.0.1:{port} cannot be opened" in ranks.err
    assert f"type: launcher.master_port={port + 1}" in ranks.err and none_left(folder)
