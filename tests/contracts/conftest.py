"""`stub(name)`: one of DeepSeek's packages as a module that records calls, on a machine that seems to have a B200."""

from collections.abc import Callable

import pytest
from stub_packages import CONTRACTS, Stub, install, stub_package

from deepinfer.interfaces.kernel_packages import BY_NAME
from deepinfer.ops import deepseek_packages


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Stub]:
    """The package of that import name in the version that the adapters were written against."""
    monkeypatch.setattr(deepseek_packages, "architecture", lambda: "sm100")
    deepseek_packages.package.cache_clear()

    def make(name: str) -> Stub:
        made = stub_package(CONTRACTS / f"{name}_{BY_NAME[name].version}.json")
        install(made, monkeypatch)
        return made

    return make
