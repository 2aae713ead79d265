"""What the words mean that a plan's text prints and that no key of the configuration is called by."""

from deepinfer.cli.parts import Part
from deepinfer.plan.hardware import CPU_SHARE, DEVICE_SHARE
from deepinfer.plan.quantities import size
from deepinfer.plan.render import rows
from deepinfer.plan.types import Plan, RolePlan

MEANING = {  # section.label → what it says
    "plan.chosen": "the option of each group that some rank goes by",
    "plan.verdict": "how fast, whether it fits, and whether this version can run it",
    "model.growing_cache": "cache that a sequence takes more with every token, over all layers",
    "model.fixed_state": "cache of a sequence that does not grow: windows and carried sums",
    "model.longest": "prompt and answer together, of what config.json allows",
    "model.width": "sizes that config.json fixes",
    "layout.ranks": "a rank is one process with one device; all replicas of all roles together",
    "memory.ranks": "the ranks that this budget is for; they are numbered over the whole plan",
    "memory.used": "what a rank holds of its device: weights, cache, state and workspace",
    "memory.headroom": "usable memory that nothing was planned for; without any, the cache got all of it, which is meant",
    "memory.host": "what a rank holds in the memory of its host",
    "cache.blocks": "pieces of cache that sequences are given and give back, on one attention rank",
    "cache.tokens": "tokens whose keys fit into those blocks",
    "cache.sequences": "requests that run at once; fewer where each is as long as the model allows",
    "cost.first_token": "time until an answer begins, for one prompt that finds the engine idle: no queue",
    "cost.a_user": "how fast one answer grows at the point where decode is run",
    "cost.balanced": "prompt and answer tokens a second of a rank, in a fleet whose roles are all busy",
    "cost.sustains": "traffic that this layout carries when its busiest role has no time to spare but a margin",
    "cost.assumes": "what the model of times takes for granted",
    "fleet.traffic": "requests and tokens of the workload at its peak",
    "fleet.ranks": "ranks that the traffic needs, whole replicas and whole nodes",
    "fleet.if": "what would be needed if a value that nobody published were another",
    "fleet.free": "values of the workload that no model or chip fixes",
    "needs": "the lowest versions that will do, and who says so",
    "decided": "every auto, with the rule that settled it and what came second",
    "digest.ranks": "of all that decides what each rank holds: plans with equal ones lay out the same",
    "digest.numerics": "of all that decides numbers: runs with equal ones give equal texts",
}
OTHERWISE = ("ops", "graph")  # sections whose rows are parts of their own
ABSENT = {  # a section that a plan may be without → what it would say, and when it is there
    "fleet": "ranks that a traffic needs; workload.requests_per_s or workload.tokens_per_day gives one",
    "warning": "nothing to think about again",
    "note": "nothing to tell",
}


def words_of(plan: Plan) -> list[Part]:
    """A part for each label of the plan's text, "section.label", and for sections that are not there."""
    said: dict[str, list[str]] = {}
    for section, label, value in rows(plan):
        if section in OTHERWISE:
            continue
        said.setdefault(f"{section}.{label.replace(' ', '_')}".rstrip("."), []).append(" ".join(value.split()))
    found = [
        Part(key=key, value=" | ".join(dict.fromkeys(values)), because=MEANING.get(key, ""))
        for key, values in said.items()
    ]
    sections = {key.partition(".")[0] for key in said}
    found += [
        Part(key=key, value="not in this plan", because=why) for key, why in ABSENT.items() if key not in sections
    ]
    return [*found, _usable(plan)]


def _usable(plan: Plan) -> Part:
    hardware = dict.fromkeys(role.hardware for role in plan.layout.roles)
    value = " | ".join(f"{size(each.usable_bytes, 5)} of {size(each.memory_bytes, 5)}" for each in hardware)
    because = "; ".join(dict.fromkeys(_share(role) for role in plan.layout.roles))
    lever = "hardware.memory_bytes.value"
    return Part(key="memory.usable", value=value, because=because, lever=lever, others=(_half(plan),))


def _half(plan: Plan) -> int:
    return plan.hardware.memory_bytes // 2


def _share(role: RolePlan) -> str:
    chip = role.hardware
    if chip.kind == "cpu":
        return f"{CPU_SHARE:.0%} of what is free: the rest is the interpreter's, the page cache's and other programs'"
    if chip.usable_bytes < int(chip.memory_bytes * DEVICE_SHARE):
        return "what was free on the fullest device of this machine"
    rest = "the driver's context, communication buffers and fragmentation"
    return f"{DEVICE_SHARE:.0%} of a device, a margin of ours that no key changes: the rest is left to {rest}"
