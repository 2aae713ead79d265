"""launcher=ray on a real cluster: two Ray nodes on this machine, with one core each, and a world of a rank on each of them."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import IMPATIENT, LONG, SHORT, Started, free_port, launch, none_left, ranks_of, started

from deepinfer.cli.generate import DEMO

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
pytestmark = pytest.mark.slow
START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", "--disable-usage-stats")
SMALL = "--object-store-memory=80000000"  # bytes; nothing of ours goes there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two nodes."""
    address = f"127.0.0.1:{free_port()}"
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # sockets lie there, and their paths must be short
    head = [*START, SMALL, "--head", f"--port={address.partition(':')[2]}", "--node-ip-address=127.0.0.1"]
    head += ["--include-dashboard=false", f"--temp-dir={folder}"]
    logs = tmp_path_factory.mktemp("ray")
    with started(head, logs=logs / "head") as (first,):
        first.until(lambda: "--block" in first.err + first.out, within_s=60)
        with started([*START, SMALL, f"--address={address}"], logs=logs / "worker") as (second,):
            second.until(lambda: "--block" in second.err + second.out, within_s=60)
            yield address
            for node in (second, first):
                os.killpg(node.process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.ended(30)  # what is left then is killed
    shutil.rmtree(folder, ignore_errors=True)


def driver(folder: Path, cluster: str, *overrides: str) -> list[str | Path]:
    """A launch of a rank on each of two nodes; the words that start it."""
    of_ray = ("launcher=ray", f"launcher.address={cluster}", f"launcher.python={sys.executable}", "launcher.wait_s=60s")
    port = f"launcher.master_port={free_port()}"
    launch(folder, *overrides, *of_ray, port, "parallel=ep2", "hardware.node_devices=1")
    return [sys.executable, folder / "start.py"]


def test_two_nodes_answer(cluster: str, tmp_path: Path) -> None:
    mark = f"LAUNCHED_AS={tmp_path.name}"
    words = driver(tmp_path / "launch", cluster, *SHORT, f"launcher.env.{mark}")
    with started(words, logs=tmp_path / "logs") as (run,):
        assert run.ended(120) == 0, run.err + run.out
    for rank in range(2):
        assert f"rank {rank} of 2 of all-0 (device 0 of node {rank})" in run.out + run.err
    assert all(f"> {prompt}" in run.out for prompt in DEMO) and "632" in run.out
    assert none_left(mark)


def lose_a_rank(run: Started, mark: str) -> None:
    os.kill(ranks_of(mark)[1], signal.SIGKILL)


def lose_the_driver(run: Started, mark: str) -> None:
    run.process.kill()


@pytest.mark.parametrize("lose", [lose_a_rank, lose_the_driver])
def test_what_is_lost_takes_all_with_it(lose: object, cluster: str, tmp_path: Path) -> None:
    mark = f"LAUNCHED_AS={tmp_path.name}"
    words = driver(tmp_path / "launch", cluster, *LONG, *IMPATIENT, f"launcher.env.{mark}")
    with started(words, logs=tmp_path / "logs") as (run,):
        run.until(lambda: len(ranks_of(mark)) == 2)
        lose(run, mark)  # type: ignore[operator]
        assert run.ended(60) != 0
        assert none_left(mark, within_s=30)
