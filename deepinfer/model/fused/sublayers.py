"""A layer's parts besides attention, by fused operations: experts and n-gram memory.

Legend: T rows · N streams · D hidden · G n-gram slots · X chosen experts · P pairs of a row and an expert · I inner.
"""

from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.fused.beside import beside
from deepinfer.model.fused.dispatch import FusedDispatch
from deepinfer.model.fused.stored_weights import FusedEngramWeights, FusedExpertWeights
from deepinfer.model.fused.tables import FusedLookup, FusedTables
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.expert_permutation import Permutation


class FusedExperts:
    """Router, routed experts and, beside them where rows are few, the shared expert.

    `layer` counts the trunk's, then the draft module's; `dispatch` None: all experts are here.
    """

    def __init__(
        self,
        config: V41Config,
        ops: DeviceOps,
        weights: FusedExpertWeights,
        layer: int = 0,
        dispatch: FusedDispatch | None = None,
    ) -> None:
        self.config, self.ops, self.weights = config, ops, weights
        self.logits_dtype = weights.bias_E.dtype
        self.elsewhere = None if dispatch is None else dispatch.layer(layer, weights, self.routed)

    def __call__(self, normed_TD: Tensor, quantised_TD: Tensor) -> Tensor:
        """[T, D] of the site's input, as it is and on the FP8 grid."""
        if self.elsewhere is not None:
            return self._spread(normed_TD, quantised_TD)
        with beside(quantised_TD) as branch:
            shared_TD = self.shared(quantised_TD)
        pairs = self.route(normed_TD)
        parts_PD = self.routed(quantised_TD, pairs)
        branch.join()
        return self.ops.combine(parts_PD, pairs.places_TX, shared_TD)

    def serve(self) -> None:
        """This layer's part in others' steps, where this rank has no rows."""
        if self.elsewhere is not None:
            self.elsewhere.serve()

    def _spread(self, normed_TD: Tensor, quantised_TD: Tensor) -> Tensor:
        """The shared expert runs while rows travel and, where they are few, beside what becomes of them."""
        assert self.elsewhere is not None
        finish = self.elsewhere.start(quantised_TD, *self.choose(normed_TD))
        with beside(quantised_TD) as branch:
            shared_TD = self.shared(quantised_TD)
        parts = finish()
        branch.join()
        return self.ops.combine(parts.parts_PD, parts.places_TY, shared_TD)

    def shared(self, quantised_TD: Tensor) -> Tensor:
        """The shared expert's rows [T, D]."""
        w, product = self.weights, self.ops.fp8_linear
        return product(
            self.ops.swiglu_quantise(product(quantised_TD, w.shared_w13), None, self.config.swiglu_limit), w.shared_w2
        )

    def route(self, normed_TD: Tensor) -> Permutation:
        """Pairs of a row and an expert by expert, and which of them are each row's."""
        picks_TX, weights_TX = self.choose(normed_TD)
        return self.ops.expert_permutation(picks_TX, self.weights.num_experts, weights_TX=weights_TX)

    def choose(self, normed_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Experts of each row and their weights [T, X]."""
        w = self.weights
        logits_TE = self.ops.bf16_linear(normed_TD, w.gate_ED, self.logits_dtype)
        return self.ops.router(logits_TE, w.bias_E, w.chosen, self.config.routed_scaling_factor)

    def routed(self, quantised_TD: Tensor, pairs: Permutation) -> Tensor:
        """Rows [P, D] of the pairs."""
        ops, w = self.ops, self.weights
        assert pairs.weights_P is not None
        act_PI = ops.fp4_experts_up(
            quantised_TD, pairs.rows_P, pairs.starts_E1, pairs.weights_P, w.w13, self.config.swiglu_limit
        )
        return ops.fp4_grouped_linear(act_PI, None, pairs.starts_E1, w.w2)


class FusedEngram:
    """Hashed n-gram memory, added to every stream through a gate."""

    def __init__(
        self,
        config: V41Config,
        ops: DeviceOps,
        weights: FusedEngramWeights,
        number: int = 0,
        tables: FusedTables | None = None,
    ) -> None:
        """`number`: which of the tables this is; `tables` None: all of its rows are here."""
        self.config, self.ops, self.weights = config, ops, weights
        self.elsewhere: FusedLookup | None = None
        if tables is not None:
            self.elsewhere = tables.table(number, self._found, len(weights.codes_AK), weights.primes_OH.numel())

    def __call__(self, x_TND: Tensor, ngram_ids_TG: Tensor, classes_V: Tensor, pad_class: int) -> Tensor:
        """`ngram_ids_TG`: tokens of positions p, p - 1, …; -1 before the sequence, where the pad token's class stands."""
        ops, w, c = self.ops, self.weights, self.config
        rows_TR = ops.ngram_rows(ngram_ids_TG, classes_V, pad_class, w.multipliers_G, w.primes_OH, w.offsets_OH)
        memory_TF = (self._found if self.elsewhere is None else self.elsewhere)(rows_TR).to(x_TND.dtype)
        if not len(memory_TF):  # others were served
            return x_TND
        key_value = ops.fp8_linear(ops.quantise(memory_TF).grid_TD, w.wkv).unflatten(1, (c.hc_mult + 1, c.hidden_size))
        return ops.engram_add(x_TND, key_value[:, :-1], key_value[:, -1], w.q_ND, w.k_ND, c.rms_norm_eps)

    def serve(self) -> None:
        """This table's part in others' steps, where this rank has no rows."""
        if self.elsewhere is not None:
            self.elsewhere.serve()

    def _found(self, rows_TR: Tensor) -> Tensor:
        """bfloat16 [T, F] of rows of the table here, by numbers int64 [T, R]; -1: zeros."""
        return self.ops.engram_gather(self.weights.codes_AK, self.weights.powers_AG, rows_TR)
