"""How the packages are told apart: versions of the contracts, refusals with a remedy, stubs that refuse.

The package is not here and its kernels are not run: a stub records the calls. What an argument must look like is what the
package's own checks ask for; numbers are checked only where the adapter itself makes them.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from stub_packages import CONTRACTS, Stub, signature, stub_package

from deepinfer.interfaces.kernel_packages import BY_NAME as PACKAGE
from deepinfer.ops import ascend_npu, deepseek_packages


@pytest.mark.parametrize("contract", sorted(CONTRACTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_contract_is_of_the_version_that_the_adapters_name(contract: Path) -> None:
    made = stub_package(contract)
    if made.module.__name__ == ascend_npu.NAME:
        assert made.version == ascend_npu.VERSION and all(hasattr(made.module, name) for name in ascend_npu.NEEDED)
        return
    known = PACKAGE[made.module.__name__]
    assert made.version == known.version
    for dotted, argument in known.marks:
        assert deepseek_packages.has(made.module, dotted, argument)


def test_a_stub_refuses_what_a_function_does_not_have() -> None:
    made = signature([{"name": "a"}, {"name": "b", "default": "None"}])
    for arguments, named in (((), {}), ((1, 2, 3), {}), ((1,), {"c": 2})):
        with pytest.raises(TypeError):
            made.bind(*arguments, **named)


def test_another_chip_another_build_or_nothing_is_refused_with_a_remedy(
    stub: Callable[[str], Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    flash = stub("flash_mla")
    del flash.module.fused_norm_rope_attn_rope_cast  # as in the builds of that name for other chips
    with pytest.raises(ValueError, match="another build than deepinfer-flashmla: pip install"):
        deepseek_packages.package("flash_mla")
    with pytest.raises(ValueError, match=r"deep_ep cannot be imported .*: pip install"):
        deepseek_packages.package("deep_ep")
    monkeypatch.setattr(deepseek_packages, "architecture", lambda: "sm90")
    with pytest.raises(ValueError, match="sm100 or sm103 or ascend950, this machine has sm90"):
        deepseek_packages.package("flash_mla")
    monkeypatch.setattr(deepseek_packages, "architecture", lambda: "ascend950")
    with pytest.raises(ValueError, match="sm100 or sm103, this machine has ascend950"):
        deepseek_packages.package("deep_gemm")


def test_both_switches_for_results_that_do_not_depend_on_the_batch(stub: Callable[[str], Stub]) -> None:
    gemm, tiles = stub("deep_gemm"), stub("tile_kernels")
    deepseek_packages.use_deterministic()
    assert (
        gemm.arguments("use_deterministic_algorithms")
        == {"enabled": True}
        == tiles.arguments("use_deterministic_algorithms")
    )
