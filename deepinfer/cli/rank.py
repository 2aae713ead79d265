"""`deepinfer rank plan=FILE role=R replica=N`: one rank of a plan that `launch` wrote down.

Nothing is composed or decided here. Which rank this is, torchrun, Slurm and their like say in RANK, WORLD_SIZE and LOCAL_RANK.
What is wrong for all ranks of a world, its rank 0 says once; what is wrong on one node, the first rank there says. The others
end with the same exit code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from deepinfer.cli.rank_plan import AGAIN, read_plan, weight_problems
from deepinfer.config.env import Foreign, foreign
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.config.facts import Facts
from deepinfer.config.probes import probe_machine
from deepinfer.config.runnable import NOT_BUILT, not_built
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.launch.worlds import World, worlds_of
from deepinfer.plan.prerequisites import missing_libraries
from deepinfer.plan.require import missing

if TYPE_CHECKING:
    from deepinfer.config.argv import CommandLine
    from deepinfer.plan.types import Plan, RankPlan

WORDS = ("plan", "role", "replica")
MOST_PORT = 65_535
GRACE_S = 5.0  # in which the rank that speaks starts and says what is wrong
TASKS = ("serve", "generate")  # what ranks can be told to do


def run(line: CommandLine, problems: Sequence[Problem] = ()) -> int:
    """Check that this process is a rank of the plan, say which, and do the plan's task.

    `problems` are those of the command line. Raises Refused with everything that stands against it; on a rank that does not
    speak, returns its exit code.
    """
    problems = [*problems, *line.problems, *_line_problems(line)]
    if problems:
        raise Refused(problems)
    place = foreign()
    if problems := list(_variable_problems(place)):
        raise Refused(problems)  # of this process alone
    try:
        plan = read_plan(line.words["plan"])
        world = _world(plan, line.words["role"], line.words["replica"])
        _check_world_size(world, place)
    except Refused as refused:
        return _refuse(refused, place, speaks=not place.rank)
    rank = plan.layout.ranks[world.first_rank + (place.rank or 0)]
    on_node = [each for each in plan.layout.ranks[world.first_rank :][: world.size] if each.node == rank.node]
    try:
        _check_place(rank, on_node, world, place)
    except Refused as refused:
        return _refuse(refused, place, speaks=True)
    try:
        _check_node(plan, on_node, world)
    except Refused as refused:
        return _refuse(refused, place, speaks=rank is on_node[0])
    print(_introduced(plan, rank, world), file=sys.stderr)
    try:
        _check_built(plan)
    except Refused as refused:
        return _refuse(refused, place, speaks=rank.rank == world.first_rank)
    if world.size == 1:
        return _served(plan, world.replica) if plan.task == "serve" else _generate(plan)
    from deepinfer.cli.rank_world import take_part

    return take_part(plan, plan.layout.ranks[world.first_rank :][: world.size], place)


def _line_problems(line: CommandLine) -> list[Problem]:
    """Words that are missing, and options: a rank has none."""
    why = "a rank takes everything from its plan"
    options = [text for text in line.overrides if text != "task=rank"]
    options += [f"{key}={text}" for key, text in line.texts.items()] + list(line.flags)
    problems = [Problem(asked=f"rank {text}", found="rank has no options", why=why, fix=AGAIN) for text in options]
    absent = [word for word in WORDS if word not in line.words]
    if absent:
        found = f"no {listed(f'{word}=' for word in absent)}"
        fix = "deepinfer rank plan=plan.json role=all replica=0"
        problems.append(Problem(asked="rank", found=found, why="the files of launch give them", fix=fix))
    return problems


def _variable_problems(place: Foreign) -> Iterator[Problem]:
    """What no launcher sets: other ranks may have got it right, so this one speaks for itself."""
    fix = "start it by the files of deepinfer launch, as they are"
    for name, text in place.not_numbers.items():
        why = "ranks and ports are whole numbers from 0"
        yield Problem(asked=f"{name}={text!r}", found="no whole number", why=why, fix=fix, code=ExitCode.PLAN)
    if place.master_port is not None and not 0 < place.master_port <= MOST_PORT:
        asked, why = f"MASTER_PORT={place.master_port}", f"ports count from 1 to {MOST_PORT}"
        yield Problem(asked=asked, found="no port", why=why, fix=fix, code=ExitCode.PLAN)
    for name, number, of, size in (
        ("RANK", place.rank, "WORLD_SIZE", place.world_size),
        ("LOCAL_RANK", place.local_rank, "LOCAL_WORLD_SIZE", place.local_world_size),
    ):
        if number is not None and size is not None and number >= size:
            why = f"{size} ranks count from 0 to {size - 1}" if size else "there is no rank in none"
            found = f"{of} is {size}"
            yield Problem(asked=f"{name}={number}", found=found, why=why, fix=fix, code=ExitCode.PLAN)


def _world(plan: Plan, role: str, replica: str) -> World:
    worlds = worlds_of(plan)
    for world in worlds:
        if (world.role, str(world.replica)) == (role, replica):
            return world
    known = listed(f"role={world.role} replica={world.replica}" for world in worlds[:8])
    raise Refused([Problem(asked=f"role={role} replica={replica}", found="not in the plan", why=f"there is {known}")])


def _check_world_size(world: World, place: Foreign) -> None:
    """The process group is as large as the replica. A replica of one rank needs nobody to say so."""
    alone = world.size == 1 and place.rank is None and place.world_size is None
    if alone or (place.world_size == world.size and place.rank is not None):
        return
    found = {"RANK": place.rank, "WORLD_SIZE": place.world_size}
    said = " and ".join(f"{name} is {'not set' if value is None else value}" for name, value in found.items())
    why = f"{world.name} has {world.size} rank{'s' * (world.size != 1)} on {world.num_nodes} node{'s' * (world.num_nodes != 1)}"
    fix = "start it by the files of deepinfer launch, as they are"
    raise Refused([Problem(asked=world.name, found=said, why=why, fix=fix, code=ExitCode.PLAN)])


def _check_place(rank: RankPlan, on_node: Sequence[RankPlan], world: World, place: Foreign) -> None:
    """The launcher put as many ranks on each node as the plan does, in its order."""
    planned = on_node.index(rank)
    if place.local_rank is None or place.local_rank == planned:
        return
    found = f"LOCAL_RANK is {place.local_rank}, and rank {place.rank} is number {planned} of its node in the plan"
    why = f"{world.name} has {', '.join(map(str, dict.fromkeys(world.node_ranks)))} ranks a node"
    raise Refused([Problem(asked=world.name, found=found, why=why, fix=AGAIN, code=ExitCode.PLAN)])


def _check_node(plan: Plan, on_node: Sequence[RankPlan], world: World) -> None:
    """This machine has the devices, libraries and weights for its ranks."""
    role = structs.replace(plan.layout.role(world.role), num_ranks=len(on_node))
    mine = structs.replace(plan, layout=structs.replace(plan.layout, roles=(role,)))
    problems = weight_problems(plan)
    machine = probe_machine()
    problems += missing_libraries(plan, machine)
    lacks = missing(mine, Facts(machine=machine, checkpoints={}))
    if lacks:
        found = lacks.replace("This plan", f"node {on_node[0].node} of the plan", 1).removesuffix(".")
        problems.append(Problem(asked=world.name, found=found, code=ExitCode.DEVICE))
    if problems:
        raise Refused(problems)


def _check_built(plan: Plan) -> None:
    """Everything that the plan asks for and this version cannot do, by name."""
    from deepinfer.engine.unbuilt import refuse_unbuilt

    problems = []
    if plan.task not in TASKS:
        found, fix = f"ranks do {listed(TASKS)}", "deepinfer launch task.run=generate out=DIR"
        asked = f"a plan whose task is {plan.task}"
        problems.append(Problem(asked=asked, found=found, fix=fix, code=ExitCode.PLAN))
    elif plan.task in NOT_BUILT["task.kind"]:
        problems.append(not_built(f"task.run={plan.task}", "deepinfer launch task.run=generate out=DIR"))
    try:
        refuse_unbuilt(plan)
    except Refused as refused:
        problems += refused.problems
    if problems:
        raise Refused(problems)


def _refuse(refused: Refused, place: Foreign, *, speaks: bool) -> int:
    """Raise on the rank that speaks. Any other waits until that is said: launchers end all ranks when the first one ends."""
    if speaks:
        raise refused
    try:
        time.sleep(GRACE_S)
    except KeyboardInterrupt:
        return refused.exit_code
    if not place.local_rank:
        print(
            f"deepinfer: rank {place.rank} does not start; the first rank of its world or node says why",
            file=sys.stderr,
        )
    return refused.exit_code


def _introduced(plan: Plan, rank: RankPlan, world: World) -> str:
    """One line: who this is, where it stands, what it holds."""
    slots = f"expert slots {rank.experts[0]}-{rank.experts[1] - 1}"
    where = f"device {rank.device} of node {rank.node}"
    group = f"attention_dp {rank.attention_dp}, context {rank.context}, {slots}"
    return (
        f"deepinfer: rank {rank.rank - world.first_rank} of {world.size} of {world.name} ({where}): {group}; "
        f"task {plan.task}, plan {plan.rank_digest}"
    )


def _served(plan: Plan, replica: int) -> int:
    """Serve with the settings of launch."""
    from deepinfer.cli.serve_launched import serve_launched

    return serve_launched(plan, replica)[0]


def _generate(plan: Plan) -> int:
    """Answer the shipped prompts. The sampling is the plan's as it stands, so the chat format changes none of it."""
    from deepinfer.api import LLM
    from deepinfer.cli.generate import demo

    with LLM.from_plan(plan, asked=frozenset(SamplingParams.__struct_fields__)) as llm:
        return demo(llm, thinking=False)
