"""`deepinfer plan`: what would run, what it needs, what speaks against it. Touches no device and reads no weights."""

import sys
from collections.abc import Callable, Iterator

import msgspec

from deepinfer.cli.streams import printable_json
from deepinfer.config.argv import Invocation
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.config.specs import Spec
from deepinfer.plan import render
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan, PlanErrors

DIFFERS = ExitCode.OTHER  # as of diff(1): 0 for equal plans, 1 for others; what cannot be planned has codes of its own


def run(spec: Spec, invocation: Invocation) -> int:
    """Print the plan in `invocation.format`, why one of its values is what it is, or how it differs from another.

    Raises Refused for words that exclude each other, PlanErrors for what cannot be planned.
    """
    if problems := list(_clashes(invocation)):
        raise Refused(problems)
    if invocation.explain is not None:
        return _explain(invocation.explain, spec, invocation)
    plan = resolve(spec, probe(spec), invocation.choices)
    if invocation.diff is not None:
        return _diff(invocation.diff, invocation, plan)
    _PRINT[invocation.format](plan, invocation)
    return ExitCode.OK


def _clashes(invocation: Invocation) -> Iterator[Problem]:
    explain, diff, form = invocation.explain, invocation.diff, invocation.format
    if explain is not None and diff is not None:
        asked = f"explain={explain} diff={diff}"
        yield Problem(
            asked=asked, found="two questions at once", why="each has its own answer", fix=f"plan diff={diff}"
        )
    for word, value, what in (("explain", explain, "an explanation"), ("diff", diff, "a comparison")):
        if value is not None and form not in ("text", "json"):
            found, why = f"{what} is no {form}", "it comes as text or json"
            yield Problem(asked=f"{word}={value} format={form}", found=found, why=why, fix=f"plan {word}={value}")
    if invocation.out is not None:
        why, fix = "out= is the folder of a sweep", f"deepinfer -m plan … out={invocation.out}"
        yield Problem(asked=f"out={invocation.out}", found="one plan writes no files", why=why, fix=fix)


def _explain(key: str, spec: Spec, invocation: Invocation) -> int:
    """Of a configuration that cannot be planned, who set what can still be told; then the refusal follows."""
    from deepinfer.cli.explain import explain
    from deepinfer.cli.what_if import Settled

    facts = probe(spec)
    try:
        plan, refused = resolve(spec, facts, invocation.choices), None
    except PlanErrors as error:
        plan, refused = None, error
    told = explain(key, spec, invocation, Settled(plan=plan, machine=facts.machine) if plan else None)
    _show_json(told) if invocation.format == "json" else print("\n".join(each.text() for each in told))
    if refused:
        raise refused
    return ExitCode.OK


def _diff(file: str, invocation: Invocation, plan: Plan) -> int:
    from deepinfer.cli.plan_diff import difference

    told = difference(file, invocation, plan)
    _show_json(told) if invocation.format == "json" else print(told.text())
    return DIFFERS if told.changes else ExitCode.OK


def _show_json(told: object) -> None:
    print(printable_json(msgspec.json.format(msgspec.json.encode(told)).decode()))


def _mermaid(plan: Plan, _: Invocation) -> None:
    from deepinfer.plan.mermaid import mermaid

    print(mermaid(plan))


def _ranks(plan: Plan, _: Invocation) -> None:
    from deepinfer.plan.ranks import rank_lines

    print("\n".join(rank_lines(plan)))


_PRINT: dict[str, Callable[[Plan, Invocation], None]] = {
    "text": lambda plan, invocation: show(render.text(plan, invocation.overrides)),
    "json": lambda plan, _: print(printable_json(render.json_text(plan))),
    "mermaid": _mermaid,
    "ranks": _ranks,
}


def show(text: str) -> None:
    """Print plan text: plain into files and pipes, section names dimmed and warnings marked on a terminal."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)  # rich itself honours NO_COLOR
    for line in text.splitlines():
        section = line[: render.SECTION]
        style = "bold yellow" if section.strip() == "warning" else "dim"
        console.print(Text.assemble((section, style), line[render.SECTION :]))
