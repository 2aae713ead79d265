"""The release's widths with few layers and experts: a config.json that one GPU holds, in any format."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from deepinfer.arch.config import parse_config
from deepinfer.arch.engram import engram_tables

ENGRAM_RANGE = 16_000  # hash values of an n-gram head: the release has a thousand times as many
DRAFT_LAYERS = 3


def few_layers(released: dict[str, Any], experts: int) -> dict[str, Any]:
    """Four layers, one of each kind: window only; a source at ratio 2, with engram memory; one that reuses it; ratio 1."""
    raw = deepcopy(released)
    raw["text_config"] |= {
        "num_hidden_layers": 4,
        "compress_ratios": [0, 2, 2, 1, *[0] * DRAFT_LAYERS],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3],
        "candidate_source_layer_id": 3,
        "n_routed_experts": experts,
        "engram_layer_ids": [1],
        "engram_vocab_size": ENGRAM_RANGE,
        "engram_num_embeddings": [1],
        "num_nextn_predict_layers": DRAFT_LAYERS,
        "dspark_target_layer_ids": [1, 2, 3],
        "dspark_n_routed_experts": min(experts, raw["text_config"]["dspark_n_routed_experts"]),
    }
    raw["text_config"]["engram_num_embeddings"] = [table.num_rows for table in engram_tables(parse_config(raw))]
    return raw


def write_config(folder: Path, released: Path, experts: int) -> Path:
    """`folder` with the shortened config of a release's folder, for model.path with model.weights=dummy."""
    raw = few_layers(msgspec.json.decode((released / "config.json").read_bytes()), experts)
    (folder / "config.json").write_text(json.dumps(raw))
    return folder
