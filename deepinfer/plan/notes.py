"""What a reader of a plan should know: choices that cost something, and where a checkpoint differs from its name."""

from collections.abc import Iterator

from deepinfer.plan.differences import differences
from deepinfer.plan.layout import widest_link
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.settle import Case
from deepinfer.plan.types import Layout, OpChoice


def write_notes(case: Case, ops: tuple[OpChoice, ...], layout: Layout, ledger: Ledger) -> None:
    """Add notes (for your information) and warnings (think again; each ends with the override that clears it)."""
    ledger.notes += _notes(case)
    ledger.warnings += _warnings(case, ops, layout)


def _notes(case: Case) -> Iterator[str]:
    if case.config.vision is not None:
        yield "vision tensors are recognised and skipped: text only"
    if absent := case.checkpoint.missing_files:
        count, total = len(absent), len(absent) + len(case.checkpoint.files)
        yield f"{count} of {total} shards are not in {case.checkpoint.folder}, first {absent[0]}; a run may need them"
    if case.is_cpu and case.num_ranks > 1:
        yield f"{case.num_ranks} ranks share this machine's memory"
    if case.option == "ascend950" or case.chip.name.startswith("Huawei"):
        yield case.chip.chips_note
    if count := len(differences(case.facts, case.spec.model.name)):
        values = f"{count} value{'s' * (count > 1)}"
        where, name = case.checkpoint.folder, case.spec.model.name
        yield f"config.json in {where} differs from {name} in {values}; the folder's own counts"
    if case.numerics.numerics != "full":
        yield f"model.numerics={case.numerics.numerics}: not the published numerics; for comparisons"


def _warnings(case: Case, ops: tuple[OpChoice, ...], layout: Layout) -> Iterator[str]:
    domain, devices = widest_link(case.chip)
    if domain and any(role.expert > devices for role in layout.roles):
        widest = max(role.expert for role in layout.roles)
        yield (
            f"expert groups of {widest} span several {domain} domains of {devices}: all-to-all goes over the network; "
            f"parallel.expert={devices} keeps it inside"
        )
    twins = [choice.op for choice in ops if choice.backend == "reference"]
    if twins and case.chip.kind in ("cuda", "ascend"):
        yield f"{len(twins)} of {len(ops)} ops are plain torch with weights in {case.numerics.dtype}; kernels=auto"
    if case.numerics.replay == "compact":
        yield "replay=compact is an approximation of long prompts; replay=none is exact"
    if case.numerics.verify == "rejection":
        yield "speculation changes the text of a seed at temperature > 0, not its law; speculation.verify=coupled"
    if case.is_cpu and case.numerics.dtype == "bfloat16":
        yield "CPUs without AMX emulate bfloat16 at a quarter of the speed; model.dtype=float32"
    if case.is_cpu and case.numerics.threads > case.facts.machine.cores > 0:
        cores = case.facts.machine.cores
        yield f"{case.numerics.threads} threads get in each other's way on {cores} cores; model.threads=auto"
