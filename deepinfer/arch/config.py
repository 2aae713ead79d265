"""config.json of a V4.1 checkpoint as one typed, checked value.

Field names are those of the released `text_config`. Everything a shape or a layer role depends on is here, so the plan, the
checkpoint reader and the model read the same facts.
"""

from typing import Any, Literal

import msgspec

from deepinfer.arch.ranges import range_problems
from deepinfer.arch.topology import topology_problems

Role = Literal["swa", "full", "reindex", "reuse"]


class ConfigErrors(ValueError):
    """Everything wrong with a config.json; `problems` holds one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("config.json: " + "; ".join(problems))
        self.problems = problems


class YarnScaling(msgspec.Struct, frozen=True, kw_only=True):
    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


class VisionConfig(msgspec.Struct, frozen=True, kw_only=True):
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    patch_size: int
    downsample_ratio: int


class V41Config(msgspec.Struct, frozen=True, kw_only=True):
    """The text model (and just enough of the vision tower to know its tensors)."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    rms_norm_eps: float
    max_position_embeddings: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: YarnScaling
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    vision: VisionConfig | None = None

    def ratio(self, layer: int) -> int:
        """Compression ratio of trunk layer `layer`: 0 (window only), 2 or 1 tokens per entry."""
        return self.compress_ratios[layer]

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed keys `layer` reads: the nearest source at or before it; None for a window-only layer."""
        return self._nearest(self.kv_source_layer_ids, layer)

    def index_source(self, layer: int) -> int | None:
        """The layer whose top-k list `layer` uses; None for a window-only layer."""
        return self._nearest(self.index_source_layer_ids, layer)

    def role(self, layer: int) -> Role:
        """Which of the four kinds of layer `layer` is."""
        if self.ratio(layer) == 0:
            return "swa"
        if layer in self.kv_source_layer_ids:
            return "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"

    @property
    def boundary(self) -> int:
        """The first ratio-1 layer: bounded replay drops prompt rows from here on. The layer count where there is none."""
        trunk = self.compress_ratios[: self.num_hidden_layers]
        return trunk.index(1) if 1 in trunk else self.num_hidden_layers

    @property
    def boundary_cuts_drafter(self) -> bool:
        """Whether the draft module reads features from both sides of the boundary."""
        return len({layer < self.boundary for layer in self.dspark_target_layer_ids}) > 1

    @property
    def num_window_layers(self) -> int:
        """Layers with a sliding-window ring of their own: the trunk and the draft layers."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def heads_per_group(self) -> int:
        return self.num_attention_heads // self.o_groups

    def _nearest(self, sources: tuple[int, ...], layer: int) -> int | None:
        if self.ratio(layer) == 0:
            return None
        return max((s for s in sources if s <= layer), default=None)


# value that the release fixes → where it lies; another value would silently compute something else, so it is refused
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
}
_FIXED_QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
_OPTIONAL_FIXED: dict[str, Any] = {
    "hc_shifted": True,
    "use_fp4_sparse_kv": True,
    "dspark_target_attn_input": True,
}
_V4_ONLY = (
    "num_hash_layers",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "v_head_dim",
)
# other spelling → ours
_TWINS = {"engram_pad_id": "engram_pad_token_id"}
_TOP_LEVEL = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")


def parse_config(raw: dict[str, Any]) -> V41Config:
    """Read a released config.json (already parsed from JSON).

    Raises ConfigErrors with every problem found: wrong family, missing keys, wrong types, values this code would compute
    differently from the release, and layer lists that contradict each other.
    """
    if raw.get("model_type") != "deepseek_v41" or not isinstance(raw.get("text_config"), dict):
        which = "a" if isinstance(raw.get("text_config"), dict) else "no"
        raise ConfigErrors(
            [f"model_type is {raw.get('model_type')!r} with {which} text_config; only 'deepseek_v41' is known"]
        )
    problems: list[str] = []
    text = {_TWINS.get(key, key): value for key, value in raw["text_config"].items()}
    _check_fixed(raw, text, problems)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(V41Config):
        if field.name == "vision":
            values["vision"] = _vision(raw.get("vision_config"), problems)
            continue
        source = raw if field.name in _TOP_LEVEL else text
        if field.name not in source:
            problems.append(f"{field.name} is missing")
            continue
        value = source[field.name]
        if field.name == "rope_scaling":
            value = _yarn(value, problems)
        try:
            values[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            problems.append(f"{field.name}: {error}")
    if problems:
        raise ConfigErrors(problems)
    config = V41Config(**values)
    problems = range_problems(config) or topology_problems(config)
    if problems:
        raise ConfigErrors(problems)
    return config


def _check_fixed(raw: dict[str, Any], text: dict[str, Any], problems: list[str]) -> None:
    for key, wanted in _FIXED.items():
        if text.get(key, wanted) != wanted:
            problems.append(f"{key} is {text[key]!r}; only {wanted!r} is implemented")
    for key, wanted in _OPTIONAL_FIXED.items():
        if text.get(key, raw.get(key, wanted)) != wanted:
            problems.append(f"{key} is {text.get(key, raw.get(key))!r}; only {wanted!r} is implemented")
    quantization = raw.get("quantization_config")
    if not isinstance(quantization, dict):
        problems.append("quantization_config is missing")
    else:
        for key, wanted in _FIXED_QUANTIZATION.items():
            if quantization.get(key) != wanted:
                problems.append(
                    f"quantization_config.{key} is {quantization.get(key)!r}; only {wanted!r} is implemented"
                )
    for key in _V4_ONLY:
        if text.get(key):
            problems.append(f"{key} belongs to V3/V4 and has no meaning in V4.1")
    index_k = text.get("index_k_source_layer_ids", text.get("kv_source_layer_ids"))
    if index_k != text.get("kv_source_layer_ids"):
        problems.append(
            "index_k_source_layer_ids differs from kv_source_layer_ids; separate index-key owners are not implemented"
        )


def _yarn(value: Any, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value.get("rope_type", value.get("type"))
    if kind != "yarn":
        problems.append(f"rope_scaling type is {kind!r}; only 'yarn' is implemented")
    return {key: item for key, item in value.items() if key not in ("rope_type", "type")}


def _vision(value: Any, problems: list[str]) -> VisionConfig | None:
    if not isinstance(value, dict) or not value.get("num_hidden_layers"):
        return None
    try:
        return msgspec.convert(value, VisionConfig)
    except msgspec.ValidationError as error:
        problems.append(f"vision_config: {error}")
        return None
