"""What a reader of a plan should know: choices that cost something, and where a checkpoint differs from its name."""

from collections import Counter
from collections.abc import Iterator

from deepinfer.arch.kernel_widths import reasons
from deepinfer.config.clusters import SiteCluster
from deepinfer.config.errors import listed
from deepinfer.config.fused import runs_fused
from deepinfer.config.specs import PrefixCache
from deepinfer.config.surroundings import DistributedExecutor
from deepinfer.plan.differences import differences
from deepinfer.plan.digest import rounding
from deepinfer.plan.layout import valid_expert_degrees
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.roles import hardware_key, key_of
from deepinfer.plan.settle import Case
from deepinfer.plan.types import Layout, RolePlan


def write_notes(case: Case, layout: Layout, ledger: Ledger) -> None:
    """Add notes (for your information) and warnings (think again; each ends with the override that clears it)."""
    ledger.notes += dict.fromkeys([*_notes(case, layout), *_general_kernels(case, layout)])
    ledger.warnings += dict.fromkeys(_warnings(case, layout))


def _notes(case: Case, layout: Layout) -> Iterator[str]:
    if case.config.vision is not None:
        yield "vision tensors are recognised and skipped: text only"
    if absent := case.checkpoint.missing_files:
        count, total = len(absent), len(absent) + len(case.checkpoint.files)
        yield f"{count} of {total} shards are not in {case.checkpoint.folder}, first {absent[0]}; a run may need them"
    yield from _cpu_notes(case, layout)
    for chip in case.chips:
        if chip.name.startswith("Huawei"):
            yield chip.chips_note
    if count := len(differences(case.facts, case.spec.model.name)):
        values = f"{count} value{'s' * (count > 1)}"
        where, name = case.checkpoint.folder, case.spec.model.name
        yield f"config.json in {where} differs from {name} in {values}; the folder's own counts"
    if isinstance(case.spec.cache, PrefixCache):
        tokens = case.spec.cache.block_tokens
        yield f"cache=prefix shares whole blocks: a hit is a multiple of {tokens} tokens, and shorter prompts have none"
    if causes := _otherwise_again(case):
        yield (
            "executor.on_rank_loss=requeue computes answers again, and one that comes out otherwise ends with an error: with "
            f"{listed(causes)} it may; sampling.reproducible=true prevents that"
        )
    if case.numerics.numerics != "full":
        yield f"model.numerics={case.numerics.numerics}: not the published numerics; for comparisons"


def _otherwise_again(case: Case) -> list[str]:
    """Options with which an answer that ranks give again after a restart may differ from the first."""
    executor = case.spec.executor
    if (
        not isinstance(executor, DistributedExecutor)
        or executor.on_rank_loss != "requeue"
        or case.numerics.reproducible
    ):
        return []
    balancer, verify = case.spec.balancer.kind, case.numerics.verify
    possible = {
        f"balancer={balancer}": balancer != "static",  # experts begin where they began, and partial sums with them
        f"speculation.verify={verify}": verify == "rejection",
        "replay.on_hit=bounded": case.approximates_hits,
    }
    return [option for option, differs in possible.items() if differs]


def _cpu_notes(case: Case, layout: Layout) -> Iterator[str]:
    """Ranks on CPUs that share a machine, and a site whose other machines none of them is on."""
    nodes = _cpu_nodes(layout)
    most = max(nodes.values(), default=0)
    for role in layout.roles:
        if role.engram == "host" and role.hardware.kind == "cpu":
            yield "a CPU rank's memory is the host's: engram=host keeps whole n-gram tables with each rank, as replicated does"
    if most > 1:
        shared = "this machine's memory" if len(nodes) == 1 else "the memory of a node"
        yield f"{most} ranks share {shared}"
    site = case.spec.cluster
    machines = (site.num_nodes or 1) if isinstance(site, SiteCluster) else 1
    if len(nodes) == 1 < min(most, machines):
        why = "ranks on CPUs are processes of one machine unless told otherwise"
        yield f"all ranks stand on the first of {machines} nodes: {why}; hardware.node_devices={-(-most // machines)}"


def _cpu_nodes(layout: Layout) -> Counter[int]:
    """Node → its ranks on CPUs."""
    return Counter(rank.node for rank in layout.ranks if layout.role(rank.role).hardware.kind == "cpu")


def _general_kernels(case: Case, layout: Layout) -> Iterator[str]:
    """Groups of operations whose fast kernels do not take the model's widths."""
    for role in layout.roles:
        own = {choice.backend for choice in role.ops} == {"triton"}
        if own and runs_fused(role.hardware.kind, role.hardware.architecture):
            yield from reasons(case.config, block_tokens=case.spec.cache.block_tokens)


def _warnings(case: Case, layout: Layout) -> Iterator[str]:
    for role in layout.roles:
        yield from _warnings_of_role(role, case)
    first, *others = (rounding(role.hardware.architecture, role.ops) for role in layout.roles)
    if any(other != first for other in others):
        yield (
            "prefill and decode round differently on two kinds of chip, so a text is the same only where the same sides "
            f"made it; hardware@{hardware_key('decode')}=same"
        )
    if case.numerics.replay != "none":
        yield f"replay={case.numerics.replay} is an approximation of long prompts; replay=none is exact"
    if case.approximates_hits:
        yield "replay.on_hit=bounded is an approximation after every prefix hit; replay.on_hit=snapshot is exact"
    on_hit = case.numerics.replay_on_hit
    if on_hit != "snapshot" and not isinstance(case.spec.cache, PrefixCache):
        kind = case.spec.cache.kind
        yield f"replay.on_hit={on_hit} does nothing: with cache={kind} no prompt hits an earlier one; replay.on_hit=snapshot"
    if case.numerics.verify == "rejection":
        yield "speculation changes the text of a seed at temperature > 0, not its law; speculation.verify=coupled"
    if case.is_cpu and case.numerics.dtype == "bfloat16":
        yield "CPUs without AMX emulate bfloat16 at a quarter of the speed; model.dtype=float32"
    most, cores = max(_cpu_nodes(layout).values(), default=0), case.facts.machine.cores
    if most > cores > 0:
        yield f"{most} ranks take turns on {cores} core{'s' * (cores > 1)}: the same answers, later; parallel=single"
    if case.is_cpu and case.numerics.threads > case.facts.machine.cores > 0:
        cores = case.facts.machine.cores
        yield f"{case.numerics.threads} threads get in each other's way on {cores} cores; model.threads=auto"


def _warnings_of_role(role: RolePlan, case: Case) -> Iterator[str]:
    chip = role.hardware
    if chip.domain and role.expert > chip.domain_devices:
        yield (
            f"expert groups of {role.expert} span several {chip.domain} domains of {chip.domain_devices}: all-to-all goes "
            f"over the network; {key_of(role.name)}.expert={_widest_inside(role, case)} keeps it inside"
        )
    twins = [choice.op for choice in role.ops if choice.backend == "reference"]
    if twins and chip.kind in ("cuda", "ascend"):
        yield f"{len(twins)} of {len(role.ops)} ops are plain torch with weights in {case.numerics.dtype}; kernels=auto"


def _widest_inside(role: RolePlan, case: Case) -> int:
    """The largest degree that splits ranks and experts evenly and stays on the fastest link."""
    ranks, drafting = role.num_ranks // role.replicas, case.drafting.num_draft_layers > 0
    degrees = valid_expert_degrees(case.config, ranks, role.redundant_experts, drafting=drafting)
    return max(degree for degree in degrees if degree <= role.hardware.domain_devices)
