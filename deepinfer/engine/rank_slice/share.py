"""What one rank of many holds of a model, as a model of its own: a config with its experts and its rows of tables alone."""

from dataclasses import dataclass

from msgspec import structs

from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import engram_tables


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """Attention, router, shared expert, streams, embedding and head are whole; routed experts and n-gram rows are a part."""

    ranks: int  # of the group that shares the experts
    experts: int  # routed experts of a layer that the rank holds
    draft_experts: int
    table_rows: tuple[int, ...]  # of the n-gram table of each engram layer
    host_tables: bool  # the tables lie in locked memory of the host


def share_config(config: V41Config, share: RankShare) -> V41Config:
    """`config` with the rank's numbers of experts and table rows.

    The n-gram hash is that of tables as small as the rank's: as many rows of a token, spread as evenly.
    """
    small = structs.replace(config, n_routed_experts=share.experts, dspark_n_routed_experts=share.draft_experts)
    return _with_tables(small, share.table_rows) if share.table_rows else small


def _with_tables(config: V41Config, most: tuple[int, ...]) -> V41Config:
    """With as many rows of a head of one n-gram length as leave every table within `most`: sizes are primes above a bound."""
    bound = min(most) // ((config.engram_max_ngram_size - 1) * config.engram_n_heads)
    while True:
        small = structs.replace(config, engram_vocab_size=max(2, bound))
        rows = tuple(table.num_rows for table in engram_tables(small))
        if bound <= 2 or all(size <= limit for size, limit in zip(rows, most, strict=True)):
            return structs.replace(small, engram_num_embeddings=rows)
        bound -= max(1, bound // 1000)
