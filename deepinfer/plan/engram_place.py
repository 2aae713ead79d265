"""Where the n-gram tables live: with every rank, spread over the ranks, or in the hosts' memory."""

from deepinfer.config.specs import Parallel
from deepinfer.plan.layout import lay_out
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.memory import Scene, fixed_bytes, rank_groups, weight_items
from deepinfer.plan.roles import key_of

GB = 1e9


def place_tables(scene: Scene, ledger: Ledger) -> dict[str, str]:
    """The place of the tables for each role; an "auto" is settled by what fits."""
    return {role: _place(scene, role, parallel, ledger) for role, _, parallel in scene.case.roles}


def _place(scene: Scene, role: str, parallel: Parallel, ledger: Ledger) -> str:
    if parallel.engram != "auto":
        return parallel.engram
    key = f"{key_of(role)}.engram"
    if not sum(scene.case.config.engram_num_embeddings):
        return "replicated"
    if parallel.num_ranks == 1:
        if scene.case.is_cpu or _spare(scene, role, parallel, "replicated") >= 0:
            ledger.decide(key, "replicated", "one rank holds the whole tables")
            return "replicated"
        return _on_host(key, scene, ledger)
    if scene.case.is_cpu or _spare(scene, role, parallel, "sharded") >= 0:
        share = _table_bytes(scene) / parallel.num_ranks / GB
        rule = f"rows spread over {parallel.num_ranks} ranks take {share:.2f} GB of each"
        ledger.decide(key, "sharded", rule, runner_up="host", estimate=_host_traffic(scene))
        return "sharded"
    return _on_host(key, scene, ledger)


def _on_host(key: str, scene: Scene, ledger: Ledger) -> str:
    rule = f"{_table_bytes(scene) / GB:.1f} GB of tables do not fit beside the other weights"
    ledger.decide(key, "host", rule, runner_up="sharded", estimate=_host_traffic(scene))
    return "host"


def _spare(scene: Scene, role: str, parallel: Parallel, place: str) -> int:
    """Bytes left on the fullest rank of one replica."""
    layout = lay_out(((role, 1, parallel),), scene.case.config, scene.case.chip, {role: place})
    groups = rank_groups(layout)
    return scene.usable_bytes - max(fixed_bytes(scene, weight_items(scene, rank, plan)) for plan, rank, _ in groups)


def _table_bytes(scene: Scene) -> int:
    row = scene.weights.engram_row_bytes(scene.resident["engram"], scene.case.numerics.dtype)
    return row * sum(scene.case.config.engram_num_embeddings)


def _host_traffic(scene: Scene) -> str:
    config = scene.case.config
    rows = len(config.engram_layer_ids) * (config.engram_max_ngram_size - 1) * config.engram_n_heads
    row = scene.weights.engram_row_bytes(scene.resident["engram"], scene.case.numerics.dtype)
    return f"{rows} rows of {row} B a token would cross the host link"
