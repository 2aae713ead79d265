"""Which settings change how much a rank holds before its first cache block, and by how much each: reckoned, not guessed."""

from collections.abc import Iterator

from msgspec import Struct, structs

from deepinfer.config.specs import Scheduler
from deepinfer.plan.engram_place import place_tables
from deepinfer.plan.layout import lay_out, valid_expert_degrees
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.memory import Scene, fixed_bytes, rank_groups, scene_of, weight_items
from deepinfer.plan.roles import OPTIONS, RoleCase, choose, key_of
from deepinfer.plan.types import Layout

GB = 1e9
DEGREES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_LEVERS = 3
LEAST_BYTES = GB / 20  # less is no lever; it would show as 0.0 GB


class Lever(Struct, frozen=True, kw_only=True):
    """An override as typed, and how many bytes fewer the fullest rank then holds."""

    typed: str
    saved_bytes: int


def levers_text(scene: Scene, layout: Layout) -> str:
    """For a message: "a rank would hold less with parallel=ep4 (-218.9 GB), …"; empty where nothing helps."""
    found = levers(scene, layout)
    told = ", ".join(f"{lever.typed} (-{lever.saved_bytes / GB:.1f} GB)" for lever in found)
    return f"a rank would hold less with {told}" if told else ""


def levers(scene: Scene, layout: Layout) -> list[Lever]:
    """At most three settings of this role that save most, each alone, the best first."""
    place = next(role.engram for role in layout.roles if role.name == scene.role.name)
    now = held_bytes(scene, place)
    saved = [Lever(typed=typed, saved_bytes=now - held) for typed, held in _changes(scene, place)]
    worth = [lever for lever in saved if lever.saved_bytes >= LEAST_BYTES]
    return sorted(worth, key=lambda lever: -lever.saved_bytes)[:MOST_LEVERS]


def held_bytes(scene: Scene, place: str) -> int:
    """Bytes that the fullest rank of one replica holds on its device, with the n-gram tables at `place`."""
    one = structs.replace(scene.role, replicas=1)
    layout = lay_out((one,), scene.case.config, scene.case.hardware, {one.name: place})
    return max(fixed_bytes(scene, weight_items(scene, rank, plan)) for plan, rank, _ in rank_groups(layout))


def _changes(scene: Scene, place: str) -> Iterator[tuple[str, int]]:
    """Overrides, and what the fullest rank holds with each; tables whose place is "auto" settle anew."""
    role, case = scene.role, scene.case
    yield from _more_ranks(scene)
    if place != "host" and not role.is_cpu and any(case.config.engram_num_embeddings):
        yield f"{key_of(role.name)}.engram=host", held_bytes(scene, "host")
    if case.drafting.num_draft_layers:
        none = structs.replace(case.drafting, kind="none", depth=0, verify_length=0, backtrack=0, num_draft_layers=0)
        bare = scene_of(structs.replace(case, drafting=none), role, scene.ops)
        yield "speculation=none", held_bytes(bare, place_tables(bare, Ledger()))
    for typed, scheduler in _smaller_steps(case.spec.scheduler, 1 + case.drafting.depth):
        smaller = _with(scene, scheduler)
        yield typed, held_bytes(smaller, place_tables(smaller, Ledger()))


def _more_ranks(scene: Scene) -> Iterator[tuple[str, int]]:
    """Experts over more ranks: over as many as fit, or over the next possible degree where none does."""
    role, tried = scene.role, []
    if role.is_cpu:  # ranks on CPUs are processes of one machine and share its memory
        return
    for degree in DEGREES:
        wider = _spread(role, degree)
        redundant = role.parallel.redundant_experts
        drafting = scene.case.drafting.num_draft_layers > 0
        if degree <= role.parallel.expert or degree not in valid_expert_degrees(
            scene.case.config, degree, redundant, drafting=drafting
        ):
            continue
        other = scene_of(scene.case, wider, scene.ops)
        tried.append((typed_degrees(role, degree), held_bytes(other, place_tables(other, Ledger()))))
        if tried[-1][1] <= scene.usable_bytes:
            yield tried[-1]
            return
    yield from tried[:1]


def _spread(role: RoleCase, degree: int) -> RoleCase:
    parallel = structs.replace(role.parallel, attention_dp=degree, context=1, expert=degree)
    return structs.replace(role, replicas=1, parallel=parallel)


def typed_degrees(role: RoleCase, degree: int) -> str:
    """An option of conf/parallel where the degrees at hand are those of one, which it then replaces; else key by key."""
    now, key = role.parallel, key_of(role.name)
    if now.attention_dp == now.expert and now.context == 1 and degree in OPTIONS:
        return choose(role.name, OPTIONS[degree])
    context = "" if now.context == 1 else f" {key}.context=1"
    return f"{key}.attention_dp={degree}{context} {key}.expert={degree}"


def fitting_steps(scene: Scene, place: str) -> str:
    """What to type so that a rank holds its weights and one step: fewer sequences, or also fewer rows; "" if nothing does."""
    scheduler, rows_each = scene.case.spec.scheduler, 1 + scene.case.drafting.depth
    most = scheduler.max_num_batched_tokens // rows_each
    fewer = [sequences for sequences in _halves(scheduler.max_num_seqs) if sequences <= most]
    tried = [{"max_num_seqs": sequences} for sequences in fewer]
    for rows in _halves(scheduler.max_num_batched_tokens):
        sequences = next((each for each in fewer if each * rows_each <= rows), 0)
        if not sequences:
            break  # fewer rows have no room for one either
        keys = {"max_num_seqs": sequences, "max_num_batched_tokens": rows, "max_prefill_tokens": rows}
        tried.append({key: value for key, value in keys.items() if value < getattr(scheduler, key)})
    for keys in tried:
        if held_bytes(_with(scene, structs.replace(scheduler, **keys)), place) <= scene.usable_bytes:
            return " ".join(f"scheduler.{key}={value}" for key, value in keys.items())
    return ""


def _with(scene: Scene, scheduler: Scheduler) -> Scene:
    spec = structs.replace(scene.case.spec, scheduler=scheduler)
    return scene_of(structs.replace(scene.case, spec=spec), scene.role, scene.ops)


def _halves(number: int) -> list[int]:
    """Powers of two below a number, falling."""
    powers = [1 << bits for bits in range(number.bit_length())]
    return [power for power in reversed(powers) if power < number]


def _smaller_steps(scheduler: Scheduler, rows_each: int) -> Iterator[tuple[str, Scheduler]]:
    """Half as many sequences at once; half as many rows in a step, where the sequences leave room for it."""
    sequences, rows = scheduler.max_num_seqs // 2, scheduler.max_num_batched_tokens // 2
    if sequences:
        yield f"scheduler.max_num_seqs={sequences}", structs.replace(scheduler, max_num_seqs=sequences)
    if rows >= scheduler.max_num_seqs * rows_each:
        keys = {"max_num_batched_tokens": rows, "max_prefill_tokens": min(rows, scheduler.max_prefill_tokens)}
        changed = {key: value for key, value in keys.items() if value != getattr(scheduler, key)}
        typed = " ".join(f"scheduler.{key}={value}" for key, value in changed.items())
        yield typed, structs.replace(scheduler, **changed)
