"""Two hosts: network namespaces with an address, a host name and an end of one link each, and a launch over both."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from launched import IMPATIENT, LONG, SHORT, launch, none_left, ranks_of, started, without_speed

from deepinfer.cli.generate import DEMO
from deepinfer.config.errors import ExitCode

INTERFACE = "link0"
ADDRESSES = ("10.231.7.1", "10.231.7.2")
SITE = (
    "cluster=blank",
    f"cluster.hosts=[{','.join(ADDRESSES)}]",
    f"cluster.interface={INTERFACE}",
    "hardware.node_devices=1",
    "launcher=torchrun",
    f"launcher.python={sys.executable}",
)
LOST_S = 30.0  # silence of 3 s, then what the ranks and torchrun take to end


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Hosts:
    """`names` are those of the namespaces, and of the hosts in them."""

    names: tuple[str, str]

    def run(self, host: int, *command: str | Path) -> list[str | Path]:
        """The words that run a command on a host."""
        inside = ["sh", "-c", f'hostname {self.names[host]}; exec "$@"', "sh"]
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", *inside, *command]

    def cut(self) -> None:
        ip("-n", self.names[1], "link", "set", INTERFACE, "down")


@pytest.fixture
def hosts(worker_id: str) -> Iterator[Hosts]:
    first, second = names = (f"di-{worker_id}-a", f"di-{worker_id}-b")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second)
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            for link in ("lo", INTERFACE):
                ip("-n", name, "link", "set", link, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(names)
        why = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"network namespaces cannot be made here: {why.strip()}")
    yield Hosts(names)
    _remove(names)


@pytest.fixture
def worker_id(request: pytest.FixtureRequest) -> str:
    """Of pytest-xdist; "main" without it."""
    return getattr(request.config, "workerinput", {}).get("workerid", "main")


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_a_world_over_two_hosts_answers_as_one_process(hosts: Hosts, tmp_path: Path) -> None:
    from deepinfer.api import LLM

    folder = launch(tmp_path / "two", *SHORT, *SITE, "parallel=ep2")
    scripts = [hosts.run(host, folder / "all-0" / f"node-{host}.sh") for host in range(2)]
    with started(*scripts, logs=tmp_path / "logs") as (first, second):
        assert (first.ended(120), second.ended(30)) == (0, 0), first.err + second.err
        assert f"meets the others at {ADDRESSES[0]}:29500 by interface {INTERFACE}" in second.err
    with LLM(*SHORT[:2], SHORT[3]) as llm:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in DEMO])
    answers = "\n\n".join(f"> {prompt}\n{out.message.content}" for prompt, out in zip(DEMO, outputs, strict=True))
    assert without_speed(first.out) == answers and second.out == ""
    assert none_left(folder)


@pytest.mark.slow
def test_a_link_that_is_cut_in_the_midst_of_answers(hosts: Hosts, tmp_path: Path) -> None:
    folder = launch(tmp_path / "two", *LONG, *SITE, *IMPATIENT, "parallel=ep2")
    scripts = [hosts.run(host, folder / "all-0" / f"node-{host}.sh") for host in range(2)]
    with started(*scripts, logs=tmp_path / "logs") as (first, second):
        for script in (first, second):
            script.until(lambda script=script: "deepinfer: rank" in script.err)  # type: ignore[misc]
        with pytest.raises(subprocess.TimeoutExpired):
            first.ended(8)  # all is well, and they are at it
        hosts.cut()
        assert first.ended(LOST_S) != 0 and second.ended(LOST_S) != 0
    assert f"rank 1 (host {hosts.names[1]}" in first.out and "gave no sign of life" in first.out
    assert first.out.count("error: ") == len(DEMO)  # every request has its end, with the reason
    assert f"rank 1 (host {hosts.names[1]}) ends: its driver at {ADDRESSES[0]} was silent for" in second.err
    assert none_left(folder)


@pytest.mark.slow
def test_a_host_that_never_comes(hosts: Hosts, tmp_path: Path) -> None:
    """Ranks without torchrun's agents, as Slurm starts them: who did not come is said, where it was awaited, and by whom."""
    folder = launch(tmp_path / "two", *LONG, *SITE, *IMPATIENT, "executor.join_timeout_s=3", "parallel=ep2")
    place = [f"MASTER_ADDR={ADDRESSES[0]}", "MASTER_PORT=29500", f"GLOO_SOCKET_IFNAME={INTERFACE}"]
    rank = ["RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", sys.executable, "-m", "deepinfer", "rank"]
    words = hosts.run(0, "env", *place, *rank, f"plan={folder}/plan.json", "role=all", "replica=0")
    with started(words, logs=tmp_path / "logs") as (alone,):
        assert alone.ended(60) == ExitCode.NETWORK
    assert f"rank 1 of 2 (device 0 of node 1) did not come to {ADDRESSES[0]}:29500 within 3 s" in alone.err
    assert f"host {hosts.names[0]}" in alone.err and f"address {ADDRESSES[0]}, interface {INTERFACE}" in alone.err
    assert "Traceback" not in alone.err and not ranks_of(folder)
