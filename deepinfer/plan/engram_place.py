"""Where the n-gram tables live: with every rank, spread over the ranks, or in the hosts' memory."""

from msgspec import structs

from deepinfer.plan.layout import lay_out
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.memory import Scene, fixed_bytes, rank_groups, weight_items
from deepinfer.plan.roles import key_of

GB = 1e9


def place_tables(scene: Scene, ledger: Ledger) -> str:
    """The place of the tables for the role of `scene`; an "auto" is settled by what fits."""
    parallel = scene.role.parallel
    if parallel.engram != "auto":
        return parallel.engram
    key = f"{key_of(scene.role.name)}.engram"
    if not sum(scene.case.config.engram_num_embeddings):
        return "replicated"
    if parallel.num_ranks == 1:
        if scene.role.is_cpu or _spare(scene, "replicated") >= 0:
            ledger.decide(key, "replicated", "one rank holds the whole tables")
            return "replicated"
        return _on_host(key, scene, ledger)
    if scene.role.is_cpu or _spare(scene, "sharded") >= 0:
        share = _table_bytes(scene) / parallel.num_ranks / GB
        rule = f"rows spread over {parallel.num_ranks} ranks take {share:.2f} GB of each"
        ledger.decide(key, "sharded", rule, runner_up="host", estimate=_host_traffic(scene))
        return "sharded"
    return _on_host(key, scene, ledger)


def _on_host(key: str, scene: Scene, ledger: Ledger) -> str:
    rule = f"{_table_bytes(scene) / GB:.1f} GB of tables do not fit beside the other weights"
    ledger.decide(key, "host", rule, runner_up="sharded", estimate=_host_traffic(scene))
    return "host"


def _spare(scene: Scene, place: str) -> int:
    """Bytes left on the fullest rank of one replica."""
    one = structs.replace(scene.role, replicas=1)
    layout = lay_out((one,), scene.case.config, scene.case.hardware, {one.name: place})
    groups = rank_groups(layout)
    return scene.usable_bytes - max(fixed_bytes(scene, weight_items(scene, rank, plan)) for plan, rank, _ in groups)


def _table_bytes(scene: Scene) -> int:
    row = scene.weights.engram_row_bytes(scene.held["engram"], scene.case.numerics.dtype)
    return row * sum(scene.case.config.engram_num_embeddings)


def _host_traffic(scene: Scene) -> str:
    config = scene.case.config
    rows = len(config.engram_layer_ids) * (config.engram_max_ngram_size - 1) * config.engram_n_heads
    row = scene.weights.engram_row_bytes(scene.held["engram"], scene.case.numerics.dtype)
    return f"{rows} rows of {row} B a token would cross the host link"
