"""A line as kernel tests write it, for tests of what is made of lines."""

from typing import Any


def line(op: str = "fp8_linear", case: str = "out N=5120 K=8192 T=4096", **values: Any) -> dict[str, Any]:
    return {
        "op": op,
        "case": case,
        "variant": "invariant",
        "target": "≥ 600 TF",
        "median_us": 540.0,
        "p10_us": 535.0,
        "p90_us": 550.25,
        "tflops": 636.3,
        "gbytes_per_s": 300.0,
        "floor_us": 435.0,
        "bound": "compute",
        "share": 0.8,
        "peers_us": {"cublas_bf16": 486.0},
        "ratios": {"cublas_bf16": 0.9},
        "absent": {"deep_gemm_fp8": "deep_gemm is not installed"},
        "device": "NVIDIA H200",
        "cuda": "13.0",
        "commit": "abc1234",
        "test": "test_fp8_linear.py::test_speed",
        "versions": {"torch": "2.11.0", "triton": "3.6.0", "lmdeploy": "0.18.0"},
    } | values
