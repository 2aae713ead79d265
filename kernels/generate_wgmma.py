"""Writes hopper_wgmma.cuh: the warpgroup's matrix product for every width we use. Run it after changing it.

python kernels/generate_wgmma.py
"""

from pathlib import Path

WIDTHS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
HEAD = """// Written by generate_wgmma.py; do not edit.
//
// Wgmma<N>: D[64, N] (+)= A[64, 16] · B[N, 16]ᵀ for bf16, float32 accumulators; thread t of the warpgroup holds, for i < N / 8,
//   d[4i], d[4i+1] = D[16 · (t / 32) + (t % 32) / 4][8i + 2 · (t % 4) + {0, 1}], and d[4i+2], d[4i+3] eight rows below.
// ss: A and B by descriptors; rs: A in registers, a[0] = row (t % 32) / 4, k = 2 · (t % 4) + {0, 1}; a[1] eight rows below;
//   a[2], a[3] the same eight k further. accumulate = 0 ignores what D held.
// TRANS_A, TRANS_B: 0 K-major, 1 MN-major.
// Wgmma8<N>: the same for E4M3, 32 k at a time, both K-major; its accumulators keep fewer bits than float32.
#pragma once
#include "hopper.cuh"

template <int N> struct Wgmma;
template <int N> struct Wgmma8;
"""


def product(width: int, source: str, fp8: bool) -> str:
    """One static function; `source` says where A is."""
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    at = count
    if source == "rs":
        a_text, a_args = f"{{%{at}, %{at + 1}, %{at + 2}, %{at + 3}}}", '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])'
        a_parameter, at = "const u32 (&a)[4]", at + 4
    else:
        a_text, a_args, a_parameter, at = f"%{at}", '"l"(a)', "u64 a", at + 1
    b, accumulate = at, at + 1
    flags, flag_args = "", ""
    if not fp8:
        names = ["TRANS_B"] if source == "rs" else ["TRANS_A", "TRANS_B"]
        flags = "".join(f", %{accumulate + 1 + i}" for i in range(len(names)))
        flag_args = "".join(f', "n"({name})' for name in names)
    kind = "k32.f32.e4m3.e4m3" if fp8 else "k16.f32.bf16.bf16"
    template = (
        ""
        if fp8
        else "template <int TRANS_B = 0> "
        if source == "rs"
        else "template <int TRANS_A = 0, int TRANS_B = 0> "
    )
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        f"  {template}static __device__ __forceinline__ void {source}(\n"
        f"      float (&d)[{count}], {a_parameter}, u64 b, int accumulate) {{\n"
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{accumulate}, 0; "\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{width}{kind} {{{registers}}}, {a_text}, %{b}, p, 1, 1{flags}; }}"\n'
        f"      : {outs}\n"
        f'      : {a_args}, "l"(b), "r"(accumulate){flag_args});\n'
        "  }\n"
    )


def text() -> str:
    parts = [HEAD]
    for width in WIDTHS:
        for name, fp8 in (("Wgmma", False), ("Wgmma8", True)):
            body = "".join(product(width, source, fp8) for source in ("ss", "rs"))
            parts.append(f"template <> struct {name}<{width}> {{\n{body}}};\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "hopper_wgmma.cuh").write_text(text())
