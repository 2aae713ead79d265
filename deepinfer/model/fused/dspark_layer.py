"""One layer of the draft module, by fused operations: its queries see a window of the ring and all keys of their own block.

Legend: T rows · N streams · D hidden · R latent dim · H heads · K head dim.
"""

from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.fused import glue
from deepinfer.model.fused.attention import project_out
from deepinfer.model.fused.dispatch import FusedDispatch
from deepinfer.model.fused.dspark_rows import BlockRows
from deepinfer.model.fused.stored_weights import StoredSource, fused_attention, fused_experts, fused_site
from deepinfer.model.fused.sublayers import FusedExperts
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.hyper_border import Border, Coefficients


class FusedDraftLayer:
    """Layer `number` of the draft module."""

    def __init__(
        self,
        config: V41Config,
        ops: DeviceOps,
        source: StoredSource,
        number: int,
        dispatch: FusedDispatch | None = None,
    ) -> None:
        prefix, layer = f"mtp.{number}.", config.num_hidden_layers + number
        self.config, self.ops = config, ops
        self.attn_site, self.ffn_site = fused_site(source, prefix, "attn"), fused_site(source, prefix, "ffn")
        self.weights = fused_attention(source, config, prefix, layer)
        held = range(config.dspark_n_routed_experts) if dispatch is None else dispatch.experts_of(layer)
        experts = fused_experts(source, prefix, held, config.dspark_num_experts_per_tok)
        self.experts = FusedExperts(config, ops, experts, layer, dispatch)

    def __call__(
        self, x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients, rows: BlockRows, ring: Tensor
    ) -> tuple[Tensor, Tensor, Coefficients]:
        """The streams, output and coefficients with which the layer's second site ends; given those of the site before it."""
        begun, coefficients = self._begin(x_TND, out_TD, ended, self.attn_site.site, self.attn_site.norm_D)
        out_TD = self.attend(begun.quantised_TD, rows, ring)
        begun, coefficients = self._begin(begun.x_TND, out_TD, coefficients, self.ffn_site.site, self.ffn_site.norm_D)
        return begun.x_TND, self.experts(begun.normed_TD, begun.quantised_TD), coefficients

    def attend(self, quantised_TD: Tensor, rows: BlockRows, ring: Tensor) -> Tensor:
        """[T, D] of the site's input on the FP8 grid. The block's keys live in a scratch store, as the ring would hold them."""
        ops, w, c = self.ops, self.weights, self.config
        low = ops.fp8_linear(quantised_TD, w.down)
        latent_TR = ops.norm_quantise(low[:, : c.q_lora_rank], w.q_norm, c.rms_norm_eps).grid_TD
        slots = c.dspark_block_size
        scratch = ring.new_empty(len(low) // slots, slots, ring.shape[2])
        norm = w.kv_norm_K, c.rms_norm_eps
        ops.norm_rope_store_window(low[:, c.q_lora_rank :], *norm, rows.rope_T2F, scratch, rows.store_T)
        q_THK = ops.fp8_linear(latent_TR, w.up).unflatten(1, (c.num_attention_heads, c.head_dim))
        keys = ring, rows.window_rows_TW, scratch, rows.own_rows_TB
        out_THK = ops.sparse_attention(q_THK, *keys, w.sink_H, c.head_dim**-0.5, rows.rope_T2F)
        return project_out(ops, c, w, out_THK)

    def _begin(
        self, x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients, site: object, norm_D: Tensor
    ) -> tuple[Border, Coefficients]:
        c = self.config
        constants = glue.border_constants(c)
        begun = self.ops.hyper_border(x_TND, out_TD, ended, site, norm_D, *constants)
        assert begun.coefficients is not None
        return begun, begun.coefficients
