"""SGLang's CUDA kernels for DeepSeek-V4.1 as peers: its .cuh files, compiled through tvm-ffi, without SGLang's own package.

The files are found where sglang is installed and built once a machine by nvcc (10 to 20 s each). What its kernels plan ahead,
the top-k's split of long rows, is not timed.

Legend: T rows · J entries · K head dim · F rope frequencies · I inner.
"""

import hashlib
import importlib.machinery
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from deepinfer.kernels.cubin_cache import cubin_folder
from peers_call import Call, Reading, peer
from peers_lmdeploy import swiglu_error
from peers_torch import same_choice
from torch import Tensor

HERE, PACKAGE = "peers_sglang", "sglang"
ROW_BYTES, PAGE = 288, 64


@cache
def compiled(name: str, file: str, functions: tuple[tuple[str, str], ...], fast: bool = False) -> Any:
    """A tvm-ffi module of one of SGLang's files with the named functions. Raises ModuleNotFoundError without either."""
    import tvm_ffi.cpp

    found = importlib.machinery.PathFinder.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("sglang is not installed: bash benchmarks/peer_environment.sh")
    root = Path(found.submodule_search_locations[0], "kernels", "jit")
    exports = [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({export}, ({kernel}));" for export, kernel in functions]
    major, minor = torch.cuda.get_device_capability()
    flags = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}"]
    flags += ["-use_fast_math"] if fast else []
    facts = (version(PACKAGE), version("apache-tvm-ffi"), torch.version.cuda, file, *exports, *flags)
    cubins = cubin_folder()
    if cubins is None:
        raise ModuleNotFoundError("sglang's kernels are built in a cache folder, and there is none: set XDG_CACHE_HOME")
    folder = cubins.with_name("peers") / f"{name}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"
    library = folder / f"peer_{name}.so"
    if not library.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", f"{major}.{minor}a")
        include = f'#include "{root / "csrc" / "deepseek_v4" / file}"'
        tvm_ffi.cpp.build_inline(
            f"peer_{name}",
            cuda_sources="\n".join((include, "namespace sglang {", *exports, "}")),
            extra_cflags=["-std=c++20"],
            extra_cuda_cflags=flags,
            extra_include_paths=[str(root / "include"), str(root / "csrc")],
            build_directory=str(folder),
        )
    return tvm_ffi.load_module(str(library))


@peer(HERE, package=PACKAGE, tolerance=0.0, compare=same_choice)
def sglang_topk(_: ModuleType, scores_TJ: Tensor, count: int) -> Call:
    """topk_v2: raw indices, unordered; ties fall anywhere."""
    kernel = "TopKKernel<true>"
    functions = (("plan", f"{kernel}::plan"), ("run", f"{kernel}::transform_paged"))
    module = compiled("topk", "topk_v2.cuh", functions)
    rows, entries = scores_TJ.shape
    length_T = torch.full((rows,), entries, dtype=torch.int32, device=scores_TJ.device)
    plan = torch.zeros(rows + 1, 2, dtype=torch.int32, device=scores_TJ.device)
    module.plan(length_T, plan, -1)
    out_TS = torch.full((rows, count), -1, dtype=torch.int32, device=scores_TJ.device)

    def call() -> Tensor:
        module.run(scores_TJ, length_T, None, out_TS, 1, plan, None)
        return out_TS

    return call


@peer(HERE, package=PACKAGE, tolerance=0.01)
def sglang_store_main(
    _: ModuleType, kv_TK: Tensor, weight_K: Tensor, eps: float, rope_T2F: Tensor, rows_T: Tensor
) -> Call:
    """c1: norm, rotation, FP4 packing into the same rows of 288 bytes and the latent besides, at ratio 1. No row is hidden."""
    from deepinfer.formats.rows import unpack_main

    kernel = f"FlashCompress1Kernel<512, 64, {PAGE}, deepseek_v4::KVLayout::V41_FP4_NEW, true>::run_decode_fusion"
    module = compiled("c1", "c1.cuh", (("run", kernel),))
    place_T = rows_T.int() + PAGE  # it takes row 0 for padding
    pages = -(-(int(place_T.max()) + 1) // PAGE)
    cache_bytes = torch.full((pages, PAGE * ROW_BYTES), 255, dtype=torch.uint8, device=kv_TK.device)
    latent_TK, weight = torch.empty_like(kv_TK), weight_K.to(torch.bfloat16)
    turns_TX = rope_T2F.float().transpose(1, 2).flatten(1).contiguous()
    position_T = torch.arange(len(kv_TK), dtype=torch.int32, device=kv_TK.device)
    operands = kv_TK, latent_TK, weight, turns_TX, position_T, place_T, cache_bytes, float(eps)

    def call() -> Tensor:
        module.run(*operands)
        return cache_bytes

    return Reading(call, lambda stored: unpack_main(stored.view(-1, ROW_BYTES)[place_T.long()]))


@peer(HERE, package=PACKAGE, tolerance=0.05, compare=swiglu_error)
def sglang_swiglu(_: ModuleType, h_TJ: Tensor, limit: float) -> Call:
    """silu_and_mul_contig_post_quant with groups of 32 and power-of-two scales; it takes no routing weight."""
    kernel = "SiluAndMulContigPostQuantKernel<32, true, false, true, true>::run"
    module = compiled("swiglu", "silu_and_mul_masked_post_quant.cuh", (("run", kernel),), fast=True)
    rows, inner = h_TJ.shape[0], h_TJ.shape[1] // 2
    codes_TI = torch.empty(rows, inner, dtype=torch.float8_e4m3fn, device=h_TJ.device)
    scale = torch.full((rows, inner // 32), torch.nan, device=h_TJ.device)

    def call() -> tuple[Tensor, Tensor]:
        module.run(h_TJ, codes_TI, scale, False, float(limit))
        return codes_TI, scale

    return call
