"""Compiled loops for a CPU, each bit-equal to its torch twin; what gains nothing from one stays the twin."""

import dataclasses
import importlib.util

import torch
from torch import Tensor

from deepinfer.ops.record import Ops
from deepinfer.ops.reference import reference


def available() -> bool:
    """Whether the compiler of these loops is installed."""
    return importlib.util.find_spec("numba") is not None


def native() -> Ops:
    """float32 only. The first use of a loop compiles it, about a second; the result is cached beside the source.

    Raises ValueError when numba is not installed.
    """
    if not available():
        raise ValueError("kernels=native needs numba, which is not installed: pip install numba, or kernels=reference")
    from deepinfer.kernels import (
        cpu_best_entries,
        cpu_choose_experts,
        cpu_fp4_rows,
        cpu_fp8_rows,
        cpu_hyper_coefficients,
        cpu_hyper_collapse,
        cpu_hyper_mix,
        cpu_index_scores,
        cpu_read_rows,
        cpu_rms_norm,
        cpu_rotate,
        cpu_routed_experts,
        cpu_swiglu,
    )

    twins = reference()
    writers = {
        "window": cpu_fp8_rows.write_window,
        "main": cpu_fp4_rows.write_main,
        "index": cpu_fp4_rows.write_index,
    }

    def write_rows(kind: str, store_ABR: Tensor, outer_T: Tensor, inner_T: Tensor, x_TK: Tensor) -> None:
        if kind == "plain":
            twins.write_rows(kind, store_ABR, outer_T, inner_T, x_TK)
        else:
            writers[kind](store_ABR, outer_T, inner_T, x_TK)

    return dataclasses.replace(
        twins,
        name="native",
        dtypes=frozenset((torch.float32,)),
        rms_norm=cpu_rms_norm.rms_norm,
        quantise_activation=cpu_fp8_rows.quantise_activation,
        quantise_index=cpu_fp4_rows.quantise_index,
        rotate=cpu_rotate.rotate,
        hyper_coefficients=cpu_hyper_coefficients.hyper_coefficients,
        hyper_collapse=cpu_hyper_collapse.hyper_collapse,
        hyper_mix=cpu_hyper_mix.hyper_mix,
        write_rows=write_rows,
        read_rows=cpu_read_rows.read_rows,
        index_scores=cpu_index_scores.index_scores,
        best_entries=cpu_best_entries.best_entries,
        candidate_blocks=cpu_best_entries.candidate_blocks,
        keep_candidates=cpu_best_entries.keep_candidates,
        choose_experts=cpu_choose_experts.choose_experts,
        swiglu=cpu_swiglu.swiglu,
        routed_experts=cpu_routed_experts.routed_experts,
    )
