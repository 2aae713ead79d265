"""`deepinfer plan`: what would run, what it needs, what speaks against it. Touches no device and reads no weights."""

import sys

import msgspec

from deepinfer.cli.streams import printable_json
from deepinfer.config.argv import Invocation
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.config.specs import Spec
from deepinfer.plan import render
from deepinfer.plan.mermaid import mermaid
from deepinfer.plan.resolve import resolve


def run(spec: Spec, invocation: Invocation) -> int:
    """Print the plan in `invocation.format`, or why one of its values is what it is. Raises PlanErrors."""
    plan = resolve(spec, probe(spec), invocation.choices)
    if invocation.explain is not None:
        from deepinfer.cli.explain import explain

        if invocation.format == "mermaid":
            asked = f"explain={invocation.explain} format=mermaid"
            problem = Problem(asked=asked, found="an explanation is no graph", fix=f"plan explain={invocation.explain}")
            raise Refused([problem])
        told = explain(invocation.explain, spec, invocation, plan)
        as_json = invocation.format == "json"
        told_json = msgspec.json.format(msgspec.json.encode(told)).decode()
        print(printable_json(told_json) if as_json else "\n".join(each.text() for each in told))
    elif invocation.format == "json":
        print(printable_json(render.json_text(plan)))
    elif invocation.format == "mermaid":
        print(mermaid(plan))
    else:
        show(render.text(plan, invocation.overrides))
    return ExitCode.OK


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
