"""transformers' `deepseek_v4` with the widths of a V4.1 model, as a side of a benchmark: eager, or with CUDA graphs.

V4 is not V4.1, and `DIFFERENCES` says in what. The model takes no static cache: its cache grows by a copy in each step, and the
shapes with it, so that a step as a whole cannot be a CUDA graph. Its parts of fixed shape can: hyper-connections, norms, router
with experts. `graphs` replays their eager kernels, `parts` those that torch.compile makes of hyper-connections and norms.
`whole` is torch.compile with symbolic shapes and no graphs, which takes minutes.
"""

import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from deepinfer.arch.config import V41Config

Forward = Callable[..., Any]
DIFFERENCES = (
    "no engram memory",
    "four tokens to a compressed entry (ours: layers of two and of one)",
    "keys and an index of its own in every compressed layer (ours share those of a source layer)",
    "nothing quantised (ours: experts in FP4, other matrices in FP8, caches of both)",
    "attention over all entries with a mask (ours gathers what the index chose)",
    "random weights",
    "no sampler (the likeliest token, which stays on the device)",
)
SAME = (
    "vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads head_dim q_lora_rank o_groups "
    "o_lora_rank num_experts_per_tok n_routed_experts sliding_window index_n_heads index_head_dim index_topk hc_mult "
    "hc_sinkhorn_iters qk_rope_head_dim max_position_embeddings pad_token_id"
).split()


def absent() -> str:
    """Why there is no peer, with what to type; nothing where there is one."""
    if find_spec("transformers") is None:
        return "no transformers; type: pip install -e '.[bench]'"
    if find_spec("transformers.models.deepseek_v4") is None:
        found = _version("transformers")
        return f"transformers {found} has no deepseek_v4; type: pip install -U 'transformers>=5.17'"
    return ""


def same_widths(config: V41Config) -> dict[str, Any]:
    """Keywords of DeepseekV4Config: what both models have, and each compressed layer as V4's compressed sparse attention."""
    ratios = config.compress_ratios[: config.num_hidden_layers]
    return {
        **{name: getattr(config, name) for name in SAME},
        "layer_types": ["compressed_sparse_attention" if ratio else "sliding_attention" for ratio in ratios],
        "mlp_layer_types": ["moe"] * len(ratios),
    }


def build(config: V41Config, device: str, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    torch.manual_seed(0)
    with torch.device(device):
        return DeepseekV4ForCausalLM._from_config(DeepseekV4Config(**same_widths(config)), dtype=dtype).eval()


class Replayed:
    """A call on one tensor as CUDA graphs, one for each shape, captured when it first comes; other arguments are not read.

    Results stay valid until the next call.
    """

    def __init__(self, call: Forward, pool: Any) -> None:
        self.call, self.pool = call, pool
        self.graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, torch.Tensor, Any]] = {}

    def __call__(self, given: torch.Tensor, *_: Any, **__: Any) -> Any:
        if given.shape not in self.graphs:
            self.graphs[given.shape] = self._captured(given)
        graph, taken, result = self.graphs[given.shape]
        taken.copy_(given)
        graph.replay()
        return result

    def _captured(self, given: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, Any]:
        taken, graph = given.clone(), torch.cuda.CUDAGraph()
        self.call(taken)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            result = self.call(taken)
        return graph, taken, result


FIXED = ("attn_hc", "ffn_hc", "input_layernorm", "post_attention_layernorm")
FIXED_INSIDE = ("self_attn.q_a_norm", "self_attn.q_b_norm", "self_attn.kv_norm")


def compiled(model: torch.nn.Module, how: str) -> Forward:
    """The forward pass of a copy that shares the weights: with graphs of its parts of fixed shape, or compiled as a whole."""
    if how == "whole":
        torch._dynamo.config.recompile_limit = 64  # one for each place of a token in its group of four
        return torch.compile(model.forward, dynamic=True)
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    model, pool = deepcopy(model, shared), torch.cuda.graph_pool_handle()
    for layer in model.model.layers:
        for name in (*FIXED, *FIXED_INSIDE, "mlp"):
            part = layer.get_submodule(name)
            call = torch.compile(part.forward, dynamic=True) if how == "parts" and name in FIXED else part.forward
            part.forward = Replayed(call, pool)
    return model.forward


class Peer:
    """A running batch: greedy answers to prompts int64 [B, tokens], decoded by `forward`.

    `prefill_s`: until every one had a token; it is eager.
    """

    def __init__(self, model: torch.nn.Module, forward: Forward, prompts: np.ndarray) -> None:
        self.forward = forward
        ids = torch.from_numpy(prompts).to(next(model.parameters()).device)
        started_s = time.perf_counter()
        with torch.inference_mode():
            self._take(model(input_ids=ids, use_cache=True, logits_to_keep=1))
        self.ids.cpu()
        self.prefill_s = time.perf_counter() - started_s

    @torch.inference_mode()
    def step(self) -> None:
        self._take(self.forward(input_ids=self.ids, past_key_values=self.cache, use_cache=True))

    def end(self) -> None:
        del self.cache

    @property
    def newest(self) -> list[int]:
        """The newest token of every answer."""
        return self.ids[:, 0].tolist()

    def _take(self, out: Any) -> None:
        self.cache, self.ids = out.past_key_values, out.logits[:, -1:].argmax(-1)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"
