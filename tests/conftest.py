"""Options and fixtures of the whole suite: how much of the long suites runs, and with which seed.

--full runs everything. Without it `slow` tests are left out and `sample(n)` tests run n of their cases, chosen by the
seed that the header prints; --sample-seed=N repeats a run.
"""

import importlib.util
import random
import signal
from collections import defaultdict
from datetime import date

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long suites whole")
    parser.addoption("--time", metavar="FILE", help="on a GPU: also time what kernel tests check, a JSON line a case")
    parser.addoption("--sample-seed", type=int, default=int(f"{date.today():%Y%m%d}"), help="default: today's date")


def pytest_configure() -> None:
    """A suite that a shell started in the background inherits that Ctrl-C is ignored; tests of Ctrl-C need it heard."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str:
    how = "whole" if config.getoption("--full") else "sampled"
    return f"long suites: {how}, --sample-seed={config.getoption('--sample-seed')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _skip_without_devices(items)
    if not config.getoption("--full"):
        left_out = _left_out(items, config.getoption("--sample-seed"))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _left_out(items: list[pytest.Item], seed: int) -> set[pytest.Item]:
    """Slow tests, and the cases of sampled ones that the seed does not choose."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = {item for item in items if item.get_closest_marker("slow")}
    for name, group in cases.items():
        (wanted,) = group[0].get_closest_marker("sample").args
        chosen = random.Random(f"{seed} {name}").sample(group, min(wanted, len(group)))
        left_out |= set(group) - set(chosen)
    return left_out


def _skip_without_devices(items: list[pytest.Item]) -> None:
    for marker, needed in (("gpu", 1), ("multi_gpu", 2)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and _num_cuda_devices() < needed:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device(s)"))


def _num_cuda_devices() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether long suites run whole."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def sample_seed(request: pytest.FixtureRequest) -> int:
    """The seed of everything that is drawn in this run."""
    return int(request.config.getoption("--sample-seed"))
