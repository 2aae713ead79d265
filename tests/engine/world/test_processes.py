"""Ranks as processes: what threads cannot show. The answers of several are those of one, and whatever ends, ends all of it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer.api import LLM, SamplingParams

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "tiny_a"
SMALL = (
    "hardware=cpu",
    f"model.path={GOLDEN}",
    "model.max_model_len=512",
    "scheduler.max_num_seqs=8",
    "model.threads=1",
    "sampling=reproducible",
)
QUICK = ("executor=distributed", "executor.heartbeat_s=0.5", "executor.silence_s=15")
ENDLESS = SamplingParams(max_tokens=60, seed=1, temperature=1.0, ignore_eos=True)
PATIENCE_S = 240.0


def prompts() -> tuple[list[list[int]], list[SamplingParams]]:
    shared = [7 + i % 90 for i in range(140)]
    found = [[0, 5, 9], [0, *shared], [0, *shared[:70]], [0, 44], [0, *shared], [0, *[11] * 40]]
    return found, [
        SamplingParams(max_tokens=12, seed=i, temperature=0.9 * (i % 2), n=1 + i // 5) for i in range(len(found))
    ]


def answers(llm: LLM) -> list:
    asked, params = prompts()
    outputs = llm.generate(asked, params) + llm.generate(asked, params)  # the second time with cached prefixes
    assert all(output.error is None for output in outputs)
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_gone(pids: list[int]) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def test_answers_of_ranks_that_share_experts_are_those_of_one_and_survive_a_killed_rank(capfd):
    """Drafts, cached prefixes and steps ahead; then one rank is killed while it answers, and all are started again."""
    options = ("speculation=dspark", "speculation.cost_curve=none", "cache=prefix", "scheduler.async_depth=1")
    with LLM(*SMALL, *options) as llm:
        expected, alone = answers(llm), llm.generate([[0, 5, 9]], ENDLESS)[0].outputs[0].token_ids
    requeue = (*QUICK, "executor.on_rank_loss=requeue")
    with LLM(*SMALL, *options, *requeue, "parallel=ep2") as llm:
        assert answers(llm) == expected
        stats = llm.engine.stats()
        assert stats.prefix.hits > 0
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
        assert stats.steps_ahead > 0
        first = llm.engine.world.children.pids()
        told: list[int] = []
        for event in llm.stream([0, 5, 9], ENDLESS):
            if len(told) < 10 <= len(told) + len(event.token_ids):
                os.kill(first[1], signal.SIGKILL)
            told += event.token_ids
        assert (event.finish_reason, told) == ("length", alone)
        assert set(llm.engine.world.children.pids()).isdisjoint(first)
        second = llm.engine.world.children.pids()
    assert all_gone([*first, *second])
    said = capfd.readouterr().err
    assert f"rank 1 (host {socket.gethostname()}, pid {first[1]}) was killed by signal 9 (SIGKILL) while " in said


def test_a_frozen_rank_ends_all_requests_by_name_and_leaves_nothing_behind():
    with LLM(*SMALL, *QUICK, "parallel=dp2") as llm:
        pids, ports = llm.engine.world.children.pids(), [llm.engine.world.lines.listener.port]
        news = llm.stream([0, 5, 9], ENDLESS)
        next(news)
        os.kill(pids[1], signal.SIGSTOP)
        (*_, event) = news
        assert event.finish_reason == "error"
        assert event.error.startswith(f"rank 1 (host {socket.gethostname()}, pid {pids[1]}) gave no sign of life for ")
        (refused,) = llm.generate([[0, 5]], ENDLESS)
        assert refused.error == f"this LLM is broken: {event.error}; make a new one"
    assert all_gone(pids)
    for port in ports:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1.0)


DRIVER = """
import sys
from deepinfer.api import LLM, SamplingParams
if __name__ == "__main__":
    with LLM(*sys.argv[1:]) as llm:
        print(*llm.engine.world.children.pids(), flush=True)
        for event in llm.stream([0, 5, 9], SamplingParams(max_tokens=400, seed=1, ignore_eos=True)):
            print("news", flush=True)
"""


@pytest.mark.parametrize(
    "ends", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["killed", "interrupted"]
)
def test_no_rank_outlives_its_driver(ends):
    command = [sys.executable, "-c", DRIVER, *SMALL, *QUICK, "parallel=dp2", "parallel.engram=replicated"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    assert driver.stdout.readline() == "news\n"
    driver.send_signal(ends)
    driver.wait(PATIENCE_S)
    assert all_gone(pids)
    driver.stdout.close()


@pytest.mark.slow
def test_ranks_of_an_llm_that_nobody_closed_end():
    llm = LLM(*SMALL, *QUICK, "parallel=dp2", "parallel.engram=replicated")
    pids = llm.engine.world.children.pids()
    del llm
    gc.collect()
    assert all_gone(pids)
