"""config.json: what is read, what is refused, and that everything wrong is said at once."""

from typing import Any

import pytest

from deepinfer.arch.config import ConfigErrors, parse_config


def test_layer_roles_follow_the_source_lists(tiny_a: dict[str, Any]) -> None:
    config = parse_config(tiny_a)
    roles = [config.role(layer) for layer in range(config.num_hidden_layers)]
    assert roles == ["swa", "swa", "full", "reuse", "full", "reuse", "full", "reuse", "reindex", "reuse"]
    assert [config.kv_source(layer) for layer in range(10)] == [None, None, 2, 2, 4, 4, 6, 6, 6, 6]
    assert [config.index_source(layer) for layer in range(10)] == [None, None, 2, 2, 4, 4, 6, 6, 8, 8]
    assert config.boundary == 6


def test_both_spellings_of_pad_key_and_rope_type(tiny_a: dict[str, Any]) -> None:
    text = tiny_a["text_config"]
    expected = parse_config(tiny_a)
    text["engram_pad_id"] = text.pop("engram_pad_token_id")
    text["rope_scaling"]["type"] = text["rope_scaling"].pop("rope_type")
    assert parse_config(tiny_a) == expected


def test_every_problem_is_reported_together(tiny_a: dict[str, Any]) -> None:
    text = tiny_a["text_config"]
    del text["head_dim"]
    text["hidden_size"] = "wide"
    text["scoring_func"] = "softmax"
    text["n_group"] = 4
    tiny_a["quantization_config"]["weight_block_size"] = [128, 128]
    with pytest.raises(ConfigErrors) as caught:
        parse_config(tiny_a)
    report = "\n".join(caught.value.problems)
    for word in ("head_dim is missing", "hidden_size", "scoring_func", "n_group", "weight_block_size"):
        assert word in report


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("compress_ratios", [0, 0, 2], "compress_ratios has 3 entries"),
        ("compress_ratios", [0, 0, 2, 2, 4, 2, 1, 1, 1, 1, 0, 0], "only 0, 1 and 2"),
        ("compress_ratios", [0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0], "reads the keys of layer 4"),
        ("kv_source_layer_ids", [2, 4, 5, 6], "every KV source must also be an index source"),
        ("kv_source_layer_ids", [4, 6], "layer 2 has ratio 2 but no KV"),
        ("candidate_source_layer_id", 8, "candidate_source_layer_id must be a KV source"),
        ("candidate_topk_blocks", 2, "fewer entries than index_topk"),
        ("engram_layer_ids", [1, 7], "below the first ratio-1 layer"),
        ("dspark_target_layer_ids", [7, 8, 10], "does not exist"),
        ("o_groups", 3, "not divisible by o_groups"),
        ("moe_intermediate_size", 100, "multiple of the quantisation group"),
        ("num_experts_per_tok", 9, "exceeds n_routed_experts"),
        ("hc_shifted", False, "only True is implemented"),
    ],
)
def test_impossible_topologies_are_named(tiny_a: dict[str, Any], key: str, value: Any, word: str) -> None:
    tiny_a["text_config"][key] = value
    with pytest.raises(ConfigErrors, match=word):
        parse_config(tiny_a)


def test_another_family_is_refused() -> None:
    with pytest.raises(ConfigErrors, match="deepseek_v3"):
        parse_config({"model_type": "deepseek_v3", "text_config": {}})


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("num_experts_per_tok", 0, "at least 1"),
        ("hc_sinkhorn_iters", 10**9, "change nothing"),
        ("hc_sinkhorn_iters", 10**30, "hc_sinkhorn_iters"),
        ("sliding_window", -1, "sliding_window is -1"),
        ("sliding_window", 2**22, "max_position_embeddings"),
        ("vocab_size", -1, "vocab_size is -1"),
        ("vocab_size", 2, "the vocabulary has 2 tokens"),
        ("compress_rope_theta", float("nan"), "compress_rope_theta is nan"),
        ("rope_theta", 0, "rope_theta is 0"),
        ("rms_norm_eps", -1, "rms_norm_eps is -1"),
        ("swiglu_limit", float("nan"), "swiglu_limit"),
        ("routed_scaling_factor", float("inf"), "routed_scaling_factor"),
        ("candidate_topk_blocks", 10**9, "a sequence has at most"),
        ("index_n_heads", -1, "index_n_heads"),
        ("engram_n_heads", 0, "engram_n_heads"),
        ("engram_num_embeddings", [-1, -1], "every table needs a row"),
        ("engram_max_ngram_size", 1, "from 2 to 8"),
        ("engram_pad_token_id", 5000, "engram_pad_token_id"),
        ("num_nextn_predict_layers", -1, "num_nextn_predict_layers"),
        ("dspark_markov_rank", 0, "dspark_markov_rank"),
    ],
)
def test_numbers_that_cannot_be_are_named(tiny_a: dict[str, Any], key: str, value: Any, word: str) -> None:
    tiny_a["text_config"][key] = value
    with pytest.raises(ConfigErrors, match=word):
        parse_config(tiny_a)


def test_all_impossible_numbers_at_once(tiny_a: dict[str, Any]) -> None:
    tiny_a["text_config"] |= {"head_dim": 0, "rope_theta": -1.0, "index_topk": 0}
    with pytest.raises(ConfigErrors) as caught:
        parse_config(tiny_a)
    assert len(caught.value.problems) == 3
