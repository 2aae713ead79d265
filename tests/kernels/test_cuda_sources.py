"""Every CUDA C++ source compiles for Hopper and keeps its registers: with nvcc where it is on the PATH.

NVRTC, where there is no nvcc, says nothing of registers: then a source only compiles. A source with macros names them here, one
set a variant that is worth compiling.
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deepinfer.kernels import cuda_program

KERNELS = Path(cuda_program.__file__).parent
ARCHITECTURE = "sm_90a"
SPILL_BYTES = 8  # a thread: what a producer with few registers may put aside before its loop
MORE_SPILL_BYTES = {  # by the variants' names
    "cuda_markov_step": 160,  # random words, drawn while the product that holds the registers is under way
    "cuda_sample_rows 256 3 12032 0": 160,  # registers are capped so that three blocks share a multiprocessor
    "cuda_sample_rows 256 3 12032 1": 448,  # and a bf16 row is loaded through registers
    "cuda_top_entries 4 32 1 0 2": 128,  # registers are capped so that two blocks share a multiprocessor
}
DENSE = ("SUMS", "TOKENS", "WARPGROUPS", "RESIDENT", "DEPTH", "EACH", "STAGES", "SUMS_BYTES")


def _experts(*sizes: int) -> dict[str, int | str]:
    """A form of cuda_fp4_grouped_linear.py."""
    return dict(zip(("GROUPS", "PRODUCTS", "TILE_ROWS", "FEWER_ROWS", "CUT", "SLOTS", "DELAY"), sizes, strict=True))


MACROS: dict[str, list[dict[str, int | str]]] = {
    "cuda_expert_permutation.cu": [{"CHOSEN": 6, "OWN": 24, "BLOCKS": blocks, "WARPS": 32} for blocks in (1, 8)],
    "cuda_fp4_experts.cu": [
        {"K": 5120, "N_OUT": 4608, "FUSED": 1, **_experts(3, 1, 96, 64, 1, 6, 2)},
        {"K": 2304, "N_OUT": 5120, "FUSED": 0, **_experts(2, 2, 128, 64, 1, 9, 4)},
        {"K": 2304, "N_OUT": 5120, "FUSED": 0, **_experts(4, 1, 40, 24, 0, 8, 2)},
    ],
    "cuda_fp8_linear.cu": [
        dict(zip(DENSE, variant))
        for variant in (
            ("SENT", 8, 2, 2, 2, 1, 4, 20480),
            ("SENT", 64, 2, 2, 1, 1, 3, 20480),
            ("CLUSTER", 96, 2, 2, 1, 1, 5, 0),
            ("CLUSTER", 128, 2, 1, 1, 2, 8, 0),
            ("CLUSTER", 128, 4, 1, 1, 1, 6, 0),
            ("CHAIN", 96, 4, 1, 2, 1, 3, 0),
            ("CHAIN", 256, 2, 1, 1, 1, 5, 0),
            ("SEQUENCE", 192, 2, 1, 1, 1, 6, 0),
        )
    ],
    "cuda_hyper_border.cu": [{"HIDDEN": 5120, "MIX": 1}, {"HIDDEN": 5120, "MIX": 0}],
    "cuda_index_scores.cu": [
        {"ROWS": 1, "WARPGROUPS": 4, "STAGES": 8, "CANDIDATES": 1},
        {"ROWS": 6, "WARPGROUPS": 3, "STAGES": 9, "CANDIDATES": 0},
    ],
    "cuda_markov_step.cu": [
        {"ROW_BLOCKS": 1, "STAGES": 8, "STATE_BYTES": 11264, "BF16": 0},
        {"ROW_BLOCKS": 4, "STAGES": 4, "STATE_BYTES": 11264, "BF16": 0},
    ],
    "cuda_router.cu": [{"EXPERTS": 384, "CHOSEN": 6}],
    "cuda_sample_rows.cu": [
        {"THREADS": 256, "RESIDENT": 3, "STATE_BYTES": 12032, "BF16": 0},
        {"THREADS": 256, "RESIDENT": 3, "STATE_BYTES": 12032, "BF16": 1},
    ],
    "cuda_sparse_attention.cu": [
        {"WINDOW": 128, "SELECTED": 512, "WINDOW_FORMAT": 1, "SELECTED_FORMAT": 2},
        {"WINDOW": 128, "SELECTED": 512, "WINDOW_FORMAT": 0, "SELECTED_FORMAT": 0},
    ],
    "cuda_top_entries.cu": [
        {"CLUSTER": 8, "ELEMENTS": 16, "GROUP": 1, "MAPPED": 0, "BLOCKS": 2},
        {"CLUSTER": 4, "ELEMENTS": 32, "GROUP": 1, "MAPPED": 0, "BLOCKS": 2},
    ],
}


def _name(source: Path, macros: dict[str, int | str]) -> str:
    return " ".join([source.stem, *map(str, macros.values())])


VARIANTS = [
    pytest.param(path, macros, id=_name(path, macros))
    for path in sorted(KERNELS.glob("*.cu"))
    for macros in MACROS.get(path.name, [{}])
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("source", "macros"), VARIANTS)
def test_a_source_compiles_without_spilling(source: Path, macros: dict[str, int | str], tmp_path: Path) -> None:
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    nvcc = shutil.which("nvcc")
    if nvcc is None and importlib.util.find_spec("cuda") is not None:
        assert cuda_program.CudaProgram(source.name, macros).cubin(ARCHITECTURE)
        return
    if nvcc is None:
        pytest.skip("neither nvcc nor NVRTC's bindings (cuda-bindings) are here")
    target = f"-gencode=arch=compute_{ARCHITECTURE[3:]},code={ARCHITECTURE}"
    flags = ["-std=c++17", target, "-cubin", "-Xptxas", "-v", *defines]
    command = [nvcc, *flags, str(source), "-o", str(tmp_path / "cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    spills = [int(stored) for stored in re.findall(r"(\d+) bytes spill stores", said)]
    name = _name(source, macros)
    allowed = next((limit for start, limit in MORE_SPILL_BYTES.items() if name.startswith(start)), SPILL_BYTES)
    assert spills and max(spills) <= allowed, said
    assert "Potential Performance Loss" not in said, said  # such as products that wait for each other
    assert "setmaxnreg ignored" not in said, said
