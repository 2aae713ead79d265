"""A layer's parts besides attention, by fused operations: experts and n-gram memory.

Legend: T rows · N streams · D hidden · G n-gram slots · P pairs of a row and an expert.
"""

from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.fused.stored_weights import FusedEngramWeights, FusedExpertWeights
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.engram import engram_rows


class FusedExperts:
    """Router, routed experts and the shared expert."""

    def __init__(self, config: V41Config, ops: DeviceOps, weights: FusedExpertWeights) -> None:
        self.config, self.ops, self.weights = config, ops, weights
        self.logits_dtype = weights.bias_E.dtype

    def __call__(self, normed_TD: Tensor, quantised_TD: Tensor) -> Tensor:
        """[T, D] of the site's input, as it is and on the FP8 grid."""
        ops, w, limit = self.ops, self.weights, self.config.swiglu_limit
        logits_TE = ops.bf16_linear(normed_TD, w.gate_ED, self.logits_dtype)
        picks_TX, weights_TX = ops.router(logits_TE, w.bias_E, w.chosen, self.config.routed_scaling_factor)
        pairs = ops.expert_permutation(picks_TX, w.num_experts, weights_TX=weights_TX)
        act_PI = ops.fp4_experts_up(quantised_TD, pairs.rows_P, pairs.starts_E1, pairs.weights_P, w.w13, limit)
        parts_PD = ops.fp4_grouped_linear(act_PI, None, pairs.starts_E1, w.w2)
        shared_TI = ops.swiglu_quantise(ops.fp8_linear(quantised_TD, w.shared_w13), None, limit)
        return ops.combine(parts_PD, pairs.places_TX, ops.fp8_linear(shared_TI, w.shared_w2))


class FusedEngram:
    """Hashed n-gram memory, added to every stream through a gate."""

    def __init__(self, config: V41Config, ops: DeviceOps, weights: FusedEngramWeights) -> None:
        self.config, self.ops, self.weights = config, ops, weights

    def __call__(self, x_TND: Tensor, classes_TG: Tensor) -> Tensor:
        """`classes_TG`: token classes of positions p, p - 1, …; the pad token's class before the sequence."""
        ops, w, c = self.ops, self.weights, self.config
        rows_TR = engram_rows(classes_TG, w.multipliers_G, w.primes_OH, w.offsets_OH)
        memory_TF = ops.engram_gather(w.codes_AK, w.powers_AG, rows_TR).to(x_TND.dtype)
        key_value = ops.fp8_linear(ops.quantise(memory_TF).grid_TD, w.wkv).unflatten(1, (c.hc_mult + 1, c.hidden_size))
        return ops.engram_add(x_TND, key_value[:, :-1], key_value[:, -1], w.q_ND, w.k_ND, c.rms_norm_eps)
