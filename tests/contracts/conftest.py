"""Packages as modules that record calls: `stub(name)` of DeepSeek's on a machine that seems to have a B200; `npu` is torch_npu
on one that seems to have an Ascend 950, whose products are computed from what they are given."""

from collections.abc import Callable, Iterator

import mx_products
import pytest
from stub_packages import CONTRACTS, Stub, install, stub_package

from deepinfer.interfaces.kernel_packages import BY_NAME
from deepinfer.ops import ascend_npu, deepseek_packages


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


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(deepseek_packages, "architecture", lambda: "ascend950")
    ascend_npu.npu.cache_clear()
    made = stub_package(CONTRACTS / f"{ascend_npu.NAME}_{ascend_npu.VERSION}.json")
    install(made, monkeypatch)
    made.answers |= {
        "npu_quant_matmul": mx_products.quant_matmul,
        "npu_grouped_matmul": mx_products.grouped_matmul,
        "npu_weight_quant_preprocess": lambda weight, weight_scale, **_: (weight, weight_scale, None, None),
    }
    yield made
    ascend_npu.npu.cache_clear()
