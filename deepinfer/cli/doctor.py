"""`deepinfer doctor`: what this machine has, and what each hardware target and library lacks here and how to get it."""

import sys
from collections.abc import Iterable, Sequence

import msgspec

from deepinfer.config.argv import Invocation
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import chip_sheets
from deepinfer.config.libraries import Library
from deepinfer.config.machine import Machine
from deepinfer.config.probes import MachineFacts, probe_machine
from deepinfer.config.specs import Spec
from deepinfer.plan.prerequisites import Finding, Target, libraries, targets

Row = tuple[str, ...]
GAP = "  "


def run(spec: Spec, invocation: Invocation) -> int:
    """Print the report for this machine. Always 0: nothing was asked of the machine, so nothing can be missing."""
    if invocation.format == "mermaid":
        asked, found = "doctor format=mermaid", "a report is no graph"
        raise Refused([Problem(asked=asked, found=found, fix="doctor format=json")])
    print_report(report_json() if invocation.format == "json" else None)
    return ExitCode.OK


def print_report(json: str | None = None, machine: Machine | None = None) -> None:
    """The report as text: rich tables on a terminal, plain columns elsewhere; or `json`, as it is."""
    if json is not None:
        print(json)
        return
    for title, columns, rows in tables(machine):
        if sys.stdout.isatty():
            _rich_table(title, columns, rows)
        else:
            print("\n".join(_plain_table(title, rows)), end="\n\n")


def report_json(machine: Machine | None = None) -> str:
    """Everything as JSON: machine, targets (option → findings), libraries (distribution → finding)."""
    facts = probe_machine(machine)
    report = {
        "machine": facts,
        "targets": {target.option: target for target in targets(chip_sheets(), facts)},
        "libraries": {library.name: finding for library, finding in libraries(facts)},
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def tables(machine: Machine | None = None) -> list[tuple[str, Row, list[Row]]]:
    """Title, column names and rows of each table of the report."""
    facts = probe_machine(machine)
    return [
        ("this machine", ("what", "found"), _machine_rows(facts)),
        ("hardware targets", ("target", "state", "what", "needs", "found", "to get it"), _target_rows(facts)),
        ("libraries", ("library", "state", "needs", "found", "for", "to get it"), _library_rows(facts)),
    ]


def _machine_rows(facts: MachineFacts) -> list[Row]:
    rows: list[Row] = [
        ("system", f"{facts.system} {facts.architecture}"),
        ("python", facts.python),
        ("cores", f"{facts.cores}"),
        ("memory", f"{facts.memory_bytes / 1e9:.1f} GB, {facts.available_bytes / 1e9:.1f} GB free"),
    ]
    for device in facts.devices:
        memory = f", {device.memory_bytes / 1e9:.1f} GB" if device.memory_bytes else ""
        rows.append(("device", f"{device.name}{memory}"))
    if not facts.devices:
        rows.append(("device", "none found"))
    return [*rows, *sorted(facts.toolkits.items())]


def _target_rows(facts: MachineFacts) -> list[Row]:
    rows: list[Row] = []
    for target in targets(chip_sheets(), facts):
        rows.append((target.option, _state(target), "", target.name, "", ""))
        rows += [("", "lacks", f.what, f.needs, f.found or "-", f.how) for f in target.findings if not f.met]
    return rows


def _state(target: Target) -> str:
    if target.ready:
        return "ready"
    if not target.built:
        return "plan only"
    return "not ready"


def _library_rows(facts: MachineFacts) -> list[Row]:
    return [_library_row(library, finding) for library, finding in libraries(facts)]


def _library_row(library: Library, finding: Finding) -> Row:
    state = "ready" if finding.met else "lacks" if not library.extra else "optional"
    return (library.name, state, finding.needs, finding.found or "-", library.why, finding.how)


def _plain_table(title: str, rows: Sequence[Row]) -> Iterable[str]:
    """Columns padded with spaces, no frame: made for grep and diff."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    yield title
    for row in rows:
        yield GAP + GAP.join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _rich_table(title: str, columns: Row, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ready": "green", "lacks": "red", "not ready": "red", "plan only": "yellow", "optional": "dim"}
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(cell, style=colours.get(cell, "")) for cell in row)
        )  # as it stands: '.[sm100]' is no markup
    Console().print(table, "")
