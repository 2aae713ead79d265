"""One trunk or draft layer's parts besides attention: hyper-connection sites, experts, engram.

Legend: T rows · N streams · D hidden · G n-gram slots.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.dispatch import Activation, ExpertDispatch, RowLookup
from deepinfer.model.layer_weights import EngramWeights, ExpertWeights, HyperWeights
from deepinfer.ops import Ops
from deepinfer.ops.arithmetic import working


class Site:
    """A place where a sublayer reads the streams and writes back to them."""

    def __init__(self, config: V41Config, ops: Ops, weights: HyperWeights) -> None:
        self.config, self.ops, self.weights = config, ops, weights

    def __call__(self, x_TND: Tensor, mix_TN: Tensor, body: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """New streams, and the read weights for the *next* site; `mix_TN` are those of the previous one."""
        ops, w, c = self.ops, self.weights, self.config
        raw_TC = ops.linear(working(x_TND.flatten(1)), w.fn_CX)
        read_TN, mixing_TMN, write_TN = ops.hyper_coefficients(
            x_TND, raw_TC, w.base_C, w.scale_3, c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters
        )
        return ops.hyper_mix(x_TND, body(self.read(x_TND, mix_TN)), mixing_TMN, write_TN), read_TN

    def read(self, x_TND: Tensor, mix_TN: Tensor) -> Tensor:
        """The sublayer's input [T, D]."""
        return self.ops.rms_norm(self.ops.hyper_collapse(x_TND, mix_TN), self.weights.norm_D, self.config.rms_norm_eps)


class Experts:
    """Router, routed experts and the shared expert of layer `layer`, which counts the trunk's, then the draft module's."""

    def __init__(
        self,
        config: V41Config,
        ops: Ops,
        weights: ExpertWeights,
        numerics: str,
        layer: int,
        dispatch: ExpertDispatch | None = None,
    ) -> None:
        """`dispatch` None: all experts are here."""
        self.config, self.ops, self.weights = config, ops, weights
        self.quantise = ops.quantise_activation if numerics == "full" else lambda x: x
        here = LocalExperts(ops, weights, self.activate)
        self.routed = here if dispatch is None else dispatch.layer(layer, weights, self.activate)

    def __call__(self, x_TD: Tensor) -> Tensor:
        ops, w, c = self.ops, self.weights, self.config
        scores_TE = ops.router_scores(ops.linear(working(x_TD), w.gate_ED))
        picks_TX, weights_TX = ops.choose_experts(scores_TE, w.bias_E, w.chosen, c.routed_scaling_factor)
        quantised_TD = self.quantise(x_TD)
        routed_TD = self.routed.start(quantised_TD, picks_TX, weights_TX)
        shared_TD = ops.linear(self.activate(ops.linear(quantised_TD, w.shared_w13), None), w.shared_w2)
        return routed_TD() + shared_TD

    def serve(self) -> None:
        """This layer's part in the forward passes of other ranks, where this one has no rows."""
        self.routed.serve()

    def activate(self, h: Tensor, weight: Tensor | None) -> Tensor:
        """The routing weight multiplies before the quantiser, and so before w2."""
        return self.quantise(self.ops.swiglu(h, weight, self.config.swiglu_limit))


class LocalExperts:
    """The `LayerDispatch` of a rank that has all experts of the layer."""

    def __init__(self, ops: Ops, weights: ExpertWeights, activate: Activation) -> None:
        self.ops, self.weights, self.activate = ops, weights, activate

    def start(self, x_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor) -> Callable[[], Tensor]:
        ops, w = self.ops, self.weights
        return lambda: ops.routed_experts(x_TD, picks_TX, weights_TX, w.w13, w.w2, self.activate)

    def serve(self) -> None:
        """Nobody's rows come here."""


class Engram:
    """Hashed n-gram memory, added to every stream through a gate."""

    def __init__(
        self,
        config: V41Config,
        ops: Ops,
        weights: EngramWeights,
        numerics: str,
        lookup: RowLookup | None = None,
    ) -> None:
        """`lookup` None: all rows of the table are here."""
        self.config, self.ops, self.weights = config, ops, weights
        self.quantise = ops.quantise_activation if numerics == "full" else lambda x: x
        self.lookup = lookup or weights.table_RD.__getitem__

    def __call__(self, x_TND: Tensor, classes_TG: Tensor) -> Tensor:
        """`classes_TG`: token classes of positions p, p - 1, …; the pad token's class before the sequence."""
        ops, w, c = self.ops, self.weights, self.config
        rows_TR = ops.engram_rows(classes_TG, w.multipliers_G, w.primes_OH, w.offsets_OH)
        memory_TF = self.lookup(rows_TR).flatten(1)
        key_value = ops.linear(self.quantise(memory_TF), w.wkv_NF).unflatten(1, (c.hc_mult + 1, c.hidden_size))
        return ops.engram_add(x_TND, key_value[:, :-1], key_value[:, -1], w.q_ND, w.k_ND, c.rms_norm_eps)

    def serve(self) -> None:
        """This layer's part in the forward passes of other ranks, where this one has no rows."""
        self.lookup(torch.zeros(0, self.weights.offsets_OH.numel(), dtype=torch.int64))
