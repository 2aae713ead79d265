"""The table of docs/clusters.md: every file of conf/cluster as it plans on a machine that has none of the devices."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from deepinfer.cli.help import options, purpose
from deepinfer.config.clusters import SiteCluster, Verified
from deepinfer.config.compose import load_with_choices
from deepinfer.config.facts import probe
from deepinfer.config.probes import MachineFacts
from deepinfer.plan.cost.types import Figure
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan, RolePlan

PAGE = Path(__file__).parent / "clusters.md"
BEGIN, END = "<!-- generated: python docs/generate.py -->\n", "<!-- end of generated -->\n"
READER = MachineFacts(  # the same on every machine that makes the page
    system="linux", architecture="x86_64", python="3.12.0", cores=8, memory_bytes=16 * 2**30, available_bytes=16 * 2**30
)
NO_SITE = ("none", "blank")  # the default, and what files of one's own build on
POOL = "kv_pool"
COSTED = "v41_flash"  # what the tiny model would reach on such devices helps nobody
HEADS = (
    "| `cluster=` | role | chip | ranks | nodes | attention × experts | n-gram tables | weights and work | cache | usable "
    "| tokens of cache |",
    "|---|---|---|--:|--:|---|---|--:|--:|--:|--:|",
)
COST_HEADS = (
    "| `cluster=` | load | prompt tokens/s/GPU, computed | prompt tokens/s/GPU, with hits | answer tokens/s/GPU "
    "| tokens/s/user | time to first token | label |",
    "|---|---|--:|--:|--:|--:|--:|---|",
)
COSTS = (
    "prefill_tokens_per_s_per_gpu",
    "prompt_tokens_per_s_per_gpu",
    "decode_tokens_per_s_per_gpu",
    "tokens_per_s_per_user",
    "ttft_s",
)


def render() -> str:
    """The page with its generated part made anew; what people wrote around it stays."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE.name} has lost its markers"
    return before + begin + "\n" + table() + "\n" + end + after


def table() -> str:
    """One paragraph and one row for each cluster, then what the costed ones cost."""
    plans = {name: plan_of(name) for name in options("cluster") if name not in NO_SITE}
    told = [f"- `cluster={name}`: {purpose('cluster', name)} {_verified(plans[name][0].verified)}" for name in plans]
    rows = [row for name, (_, plan) in plans.items() for row in _rows(name, plan)]
    costs = [
        _costs(name, plan) for name, (_, plan) in plans.items() if plan.model.name == COSTED and plan.cost.headline
    ]
    parts = [told, [*HEADS, *rows], [*COST_HEADS, *costs] if costs else []]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def plan_of(name: str) -> tuple[SiteCluster, Plan]:
    """Site and plan of one file of conf/cluster."""
    spec, choices = load_with_choices(f"cluster={name}", "task=plan")
    assert isinstance(spec.cluster, SiteCluster), f"cluster={name} is no site"
    facts = msgspec.structs.replace(probe(spec), machine=READER)
    return spec.cluster, resolve(spec, facts, choices)


def _rows(name: str, plan: Plan) -> Iterator[str]:
    """One row for each role. Bytes and tokens are of one rank, the fullest of its role."""
    for role in plan.layout.roles:
        memory = next(memory for memory in plan.memory if memory.role == role.name)
        pool = memory.item(POOL).num_bytes
        host = f" + {_gb(memory.host_bytes)} on the host" if memory.host_bytes else ""
        cells = (
            f"`{name}`",
            role.name,
            role.hardware.name,
            f"{role.num_ranks}",
            f"{len({rank.node for rank in plan.layout.ranks if rank.role == role.name})}",
            _layout(role),
            role.engram,
            _gb(memory.device_bytes - pool) + host,
            _gb(pool),
            _gb(role.hardware.usable_bytes),
            f"{memory.num_blocks * plan.cache.block_tokens:,}",
        )
        yield f"| {' | '.join(cells)} |"


def _layout(role: RolePlan) -> str:
    """ "4 × (8 × 8)" for four groups of eight attention ranks with experts over eight."""
    context = f" × context {role.context}" if role.context > 1 else ""
    spare = f" + {role.redundant_experts} spare" if role.redundant_experts else ""
    degrees = f"{role.attention_dp}{context} × {role.expert}{spare}"
    return f"{role.replicas} × ({degrees})" if role.replicas > 1 else degrees


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _verified(verified: Verified | str) -> str:
    if isinstance(verified, str):
        return f"*{verified}*"
    return f"*verified {verified.date}, commit {verified.commit}, {verified.hardware}: {verified.what}*"


def _costs(name: str, plan: Plan) -> str:
    figures = [plan.cost.figure(figure) for figure in COSTS]
    labels = dict.fromkeys(_label(figure) for figure in figures)
    values = [f"{figure.value:.2g} s" if figure.unit == "s" else f"{figure.value:,.3g}" for figure in figures]
    cells = (f"`{name}`", plan.choices["workload"], *map(_plain, values), ", ".join(labels))
    return f"| {' | '.join(cells)} |"


def _label(figure: Figure) -> str:
    """ "calibrated (sm90's)" where another architecture's shares stand in."""
    return f"{figure.label} ({figure.stand_in}'s)" if figure.stand_in else figure.label


def _plain(text: str) -> str:
    """ "1.16e+05" as "116,000"."""
    return f"{float(text):,.0f}" if "e" in text and not text.endswith("s") else text
