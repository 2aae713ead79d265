"""The DSpark draft module for an accelerator: what `deepinfer.model.dspark` computes, made of fused operations alone.

Nothing waits for the device, and every shape follows from the number of sequences, so that a round can be one CUDA graph.

Legend: S sequences · Q slots of a block · K of them drafted · T rows · N streams · D hidden · F features · W window ·
V vocabulary · R rank of the bias · X = D + R.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.formats.scales import working_dtype
from deepinfer.model.fused import glue
from deepinfer.model.fused.dispatch import FusedDispatch
from deepinfer.model.fused.dspark_layer import FusedDraftLayer
from deepinfer.model.fused.dspark_rows import BlockRowMaker
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.stored_weights import StoredSource
from deepinfer.model.rope import inverse_frequencies, rope_rows
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.draft_rows import DraftRows, DraftShape, rows_behind
from deepinfer.ops.markov import MarkovStep


class Block(NamedTuple):
    """Last hidden states of a block, before and after the norm."""

    hidden_SQD: Tensor
    normed_SQD: Tensor


class FusedDSpark:
    """The `mtp.*` part of a checkpoint with quantised activations and packed keys. Embedding, head and device are `model`'s.

    `stored`, `ops` and dtypes as for `FusedModel`; `layout` is that of the caches whose rings it is given, with a ring for
    every draft layer. `dispatch` as for `FusedModel`: it begins before every `block`, `block_of` or `serve`.
    """

    def __init__(
        self,
        config: V41Config,
        stored: Mapping[str, Tensor],
        ops: DeviceOps,
        model: FusedModel,
        *,
        layout: CacheLayout,
        dispatch: FusedDispatch | None = None,
    ) -> None:
        layers = config.num_nextn_predict_layers
        assert layout.num_window_layers == config.num_hidden_layers + layers, "the caches have a ring per draft layer"
        assert layout.numerics == "full", "the caches must be laid out for this model"
        self.config, self.ops, self.layout, self.device = config, ops, layout, model.device
        self.wide_dtype, self.dispatch = working_dtype(model.dtype), dispatch
        source = StoredSource(stored, ops, model.device, model.dtype)
        last = f"mtp.{layers - 1}."
        self.embed_VD, self.head_VD = model.embed_VD, model.head_VD
        self.main_proj, self.main_norm_D = source.fp8("mtp.0.main_proj.weight"), source.plain("mtp.0.main_norm.weight")
        self.main_keys = source.fp8(*(f"mtp.{i}.attn.wkv.weight" for i in range(layers)))
        self.norm_D = source.plain(last + "norm.weight")
        self.markov_embed_VR = source.plain(last + "markov_head.embed.weight")
        self.markov_head_VR = source.plain(last + "markov_head.head.weight")
        self.confidence_X = source.plain(last + "confidence_head.proj.weight").view(-1)
        self.layers = [FusedDraftLayer(config, ops, source, number, dispatch) for number in range(layers)]
        ropes_P2F = model.rows.ropes_P2F[False]
        behind = len(ropes_P2F), config.dspark_block_size  # a block may reach behind the last position of a sequence
        frequencies = inverse_frequencies(config, compressed=False)
        behind_Q2F = rope_rows(frequencies, *behind, ropes_P2F.dtype).to(model.device)
        self.ropes_P2F = torch.cat((ropes_P2F, behind_Q2F))
        self._complete = BlockRowMaker(config.dspark_block_size, model.device)

    def observe(self, features_TF: Tensor, positions_T: Tensor, store_T: Tensor, rings: Sequence[Tensor]) -> None:
        """Keys of main-model features into rows `store_T` (int32, -1: nowhere) of every draft layer's ring."""
        ops, c = self.ops, self.config
        main_TD = ops.fp8_linear(ops.quantise(features_TF).grid_TD, self.main_proj)
        grid_TD = ops.norm_quantise(main_TD, self.main_norm_D, c.rms_norm_eps).grid_TD
        keys = ops.fp8_linear(grid_TD, self.main_keys).split(c.head_dim, dim=1)
        rope_T2F = self.ropes_P2F[positions_T]
        for layer, key_TK, ring in zip(self.layers, keys, rings, strict=True):
            ops.norm_rope_store_window(key_TK, layer.weights.kv_norm_K, c.rms_norm_eps, rope_T2F, ring, store_T)

    def block(
        self, newest_S: Tensor, position_S: Tensor, slots_S: Tensor, floor_S: Tensor, rings: Sequence[Tensor]
    ) -> Block:
        """Hidden states of a block behind each sequence's newest token (-1: any) at its position; numbers of int32.

        `slots_S`: whose rings hold its window; `floor_S`: positions before it have no features.
        """
        where = newest_S, position_S, slots_S, floor_S
        return self.block_of(rows_behind(*where, self.ropes_P2F, self.shape(pad=0)), rings)

    def block_of(self, made: DraftRows, rings: Sequence[Tensor]) -> Block:
        """The same of rows that `DeviceOps.draft_rows` made."""
        c, ops, rows = self.config, self.ops, self._complete(made)
        x_TND, out_TD = glue.embed_streams(self.embed_VD, made.token_ids_T, c.hc_mult), None
        ended = glue.first_coefficients(x_TND)
        for layer, ring in zip(self.layers, rings, strict=True):
            x_TND, out_TD, ended = layer(x_TND, out_TD, ended, rows, ring)
        constants = glue.border_constants(c)
        last = ops.hyper_border(x_TND, out_TD, ended, None, self.norm_D, *constants, quantise=False, collapsed=True)
        return Block(
            *(part_TD.unflatten(0, (-1, c.dspark_block_size)) for part_TD in (last.collapsed_TD, last.normed_TD))
        )

    @torch.inference_mode()
    def serve(self) -> None:
        """This rank's part in a round of others, where it drafts for nobody. Launches only."""
        for layer in self.layers:
            layer.experts.serve()

    def shape(self, pad: int) -> DraftShape:
        """What rounds are made for, of sequences with `pad` columns before their first token."""
        c = self.config
        return DraftShape(pad, c.dspark_block_size, c.dspark_noise_token_id, c.sliding_window, self.layout.ring_slots)

    def base_logits(self, normed_SQD: Tensor, depth: int) -> Tensor:
        """[S, depth, V] of a block's first slots, float32 (or float64): what the Markov bias is added to."""
        rows_TD = normed_SQD[:, :depth].reshape(-1, normed_SQD.shape[2])
        return self.ops.bf16_linear(rows_TD, self.head_VD, self.wide_dtype).unflatten(0, (-1, depth))

    def biased(self, base_SV: Tensor, previous_S: Tensor) -> Tensor:
        """Logits [S, V] of one slot behind the token before it."""
        embed_SR = self.markov_embed_VR[previous_S.clamp(min=0)]
        return base_SV + self.ops.bf16_linear(embed_SR, self.markov_head_VR, self.wide_dtype)

    def evidence(self, hidden_SKD: Tensor, previous_SK: Tensor) -> Tensor:
        """[S, K] in each slot's acceptance, before the sigmoid, given the tokens before the slots."""
        embed_SKR = self.markov_embed_VR[previous_SK.clamp(min=0)]
        inputs_TX = torch.cat((hidden_SKD, embed_SKR), 2).flatten(0, 1)
        return self.ops.bf16_linear(inputs_TX, self.confidence_X.unsqueeze(0), self.wide_dtype).view(previous_SK.shape)

    def draft(
        self,
        block: Block,
        newest_S: Tensor,
        seeds_S: Tensor,
        position_S: Tensor,
        temperature_S: Tensor,
        depth: int,
        work: object = None,
    ) -> MarkovStep:
        """Tokens int32 [S, depth] and their evidence float32, drawn with the target's noise of the positions they are for.

        `newest_S` int32, -1: no drafts; `position_S` int64, of the newest token. A sequence's drafts end with the first -1.
        `work` as `DeviceOps.markov_work` makes it.
        """
        base_SKV = self.base_logits(block.normed_SQD, depth)
        out = MarkovStep(
            newest_S.new_empty(len(newest_S), depth), newest_S.new_empty(len(newest_S), depth, dtype=torch.float32)
        )
        previous_S = newest_S
        weights = self.markov_head_VR, self.markov_embed_VR
        for slot in range(depth):
            self.ops.markov_step(
                *(base_SKV[:, slot], *weights, previous_S, block.hidden_SQD[:, slot], self.confidence_X),
                *(seeds_S, position_S, temperature_S),
                work=work,
                ahead=slot + 1,
                out=MarkovStep(*(part[:, slot] for part in out)),
            )
            previous_S = out.token_B[:, slot]
        return out
