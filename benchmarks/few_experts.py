"""The released model with few experts and small n-gram tables, which one GPU holds; a tiny one to check a script on a CPU."""

import argparse
import json
from pathlib import Path

import torch
from msgspec import structs

from deepinfer.arch.config import V41Config, parse_config
from deepinfer.config.facts import shipped_folder
from deepinfer.engine.rank_slice.share import RankShare

TINY = Path(__file__).parents[1] / "tests" / "fixtures" / "k6_config.json"
TABLE_ROWS = 1_000_000  # of an n-gram table


def config_of(asked: argparse.Namespace, device: torch.device) -> tuple[V41Config, RankShare]:
    """A model of the released widths with `asked.experts` experts, and the whole of it as one share; a tiny one on a CPU."""
    folder = TINY if device.type == "cpu" else shipped_folder("v41_flash") / "config.json"
    config = parse_config(json.loads(folder.read_text()))
    if device.type != "cpu":
        config = structs.replace(config, n_routed_experts=asked.experts, dspark_n_routed_experts=asked.experts)
    share = RankShare(
        ranks=1,
        experts=config.n_routed_experts,
        draft_experts=config.dspark_n_routed_experts,
        table_rows=tuple(min(TABLE_ROWS, rows) for rows in config.engram_num_embeddings),
        host_tables=False,
    )
    return config, share
