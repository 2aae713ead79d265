"""`deepinfer doctor`: what this machine has, and what each hardware target and library lacks here and how to get it."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from deepinfer.cli.doctor_kernels import OPTIONS, kernel_findings
from deepinfer.cli.doctor_ranks import rank_findings
from deepinfer.cli.streams import printable_json
from deepinfer.config.argv import Invocation
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import chip_sheets, probe
from deepinfer.config.libraries import Library
from deepinfer.config.machine import Machine
from deepinfer.config.probes import MachineFacts, probe_machine
from deepinfer.config.specs import Spec
from deepinfer.plan.prerequisites import Finding, Target, libraries, targets
from deepinfer.plan.resolve import resolve

Row = tuple[str, ...]
GAP = "  "
PLAN_ONLY = "plan only: no code in this version"


def run(spec: Spec, invocation: Invocation) -> int:
    """Print the report for this machine. Always 0: nothing was asked of the machine, so nothing can be missing."""
    if invocation.format == "mermaid":
        asked, found = "doctor format=mermaid", "a report is no graph"
        raise Refused([Problem(asked=asked, found=found, fix="doctor format=json")])
    typed = [override.partition("=")[2] for override in invocation.overrides if override.startswith("hardware=")]
    only = typed[-1] if typed else "auto"
    if only != "auto" and all(sheet["kind"] == "virtual" for sheet in _sheets(only).values()):
        why = "a chip that exists nowhere asks nothing of a machine" if only == "virtual" else ""
        raise Refused([Problem(asked=f"doctor hardware={only}", found="no target to look at", why=why, fix="doctor")])
    ranks = _ranks(spec, invocation) if spec.parallel.num_ranks > 1 else []
    print_report(report_json(only=only, ranks=ranks) if invocation.format == "json" else None, only=only, ranks=ranks)
    return ExitCode.OK


def _ranks(spec: Spec, invocation: Invocation) -> list[Finding]:
    """What the layout that was asked for would find here. Raises Refused where it cannot be planned."""
    facts = probe(spec)
    return rank_findings(resolve(spec, facts, invocation.choices), facts.machine)


def print_report(
    json: str | None = None, machine: Machine | None = None, only: str = "auto", ranks: Sequence[Finding] = ()
) -> None:
    """The report as text: rich tables on a terminal, plain columns elsewhere; or `json`, as it is.

    `only` names the one hardware target to tell of, with the libraries of its ops; "auto" tells of all. `ranks` are findings
    of `rank_findings`.
    """
    if json is not None:
        print(printable_json(json))
        return
    for title, columns, rows in tables(machine, only, ranks):
        if sys.stdout.isatty():
            _rich_table(title, columns, rows)
        else:
            print("\n".join(_plain_table(title, rows)), end="\n\n")


def report_json(machine: Machine | None = None, only: str = "auto", ranks: Sequence[Finding] = ()) -> str:
    """Everything as JSON: machine, targets and kernels (option → findings), libraries (distribution → finding), and of a
    layout of several ranks, what they would find."""
    facts = probe_machine(machine)
    report = {
        "machine": facts,
        "targets": {target.option: target for target in targets(_sheets(only), facts)},
        "kernels": kernel_findings(facts, _backends(only)),
        "libraries": {library.name: finding for library, finding in libraries(facts)},
    }
    if ranks:
        report["ranks"] = ranks
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def tables(
    machine: Machine | None = None, only: str = "auto", ranks: Sequence[Finding] = ()
) -> list[tuple[str, Row, list[Row]]]:
    """Title, column names and rows of each table of the report; libraries only where it is not about one target."""
    facts = probe_machine(machine)
    found = targets(_sheets(only), facts)
    report = [
        ("this machine", ("what", "found"), _machine_rows(facts)),
        ("several ranks here", ("what", "state", "needs", "found", "to get it"), _rank_rows(ranks)),
        ("hardware targets", ("target", "state", "name", "lacks"), [_target_row(target) for target in found]),
        ("what targets lack", ("what", "needs", "found", "for", "to get it"), _lacking_rows(found)),
        ("kernels", ("kernels", "what", "state", "needs", "found", "to get it"), _kernel_rows(facts, only)),
        ("libraries", ("library", "state", "needs", "found", "for", "to get it"), _library_rows(facts)),
    ]
    if only != "auto":
        del report[-1]
    return [table for table in report if table[2]]


def _sheets(only: str) -> dict[str, dict[str, Any]]:
    sheets = chip_sheets()
    return sheets if only == "auto" else {only: sheets[only]} if only in sheets else {}


def _backends(only: str) -> tuple[str, ...]:
    """Those that a target's ops can take; of no target in particular, all."""
    return (
        OPTIONS if only == "auto" else tuple(name for sheet in _sheets(only).values() for name in sheet["op_backends"])
    )


def _kernel_rows(facts: MachineFacts, only: str) -> list[Row]:
    return [
        (f"kernels={option}", f.what, "ready" if f.met else "lacks", f.needs, f.found or "-", f.how)
        for option, findings in kernel_findings(facts, _backends(only)).items()
        for f in findings
    ]


def _rank_rows(ranks: Sequence[Finding]) -> list[Row]:
    return [(f.what, "ready" if f.met else "lacks", f.needs, f.found or "-", f.how) for f in ranks]


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


def _target_row(target: Target) -> Row:
    lacks = ", ".join(finding.what for finding in target.findings if not finding.met)
    return (target.option, _state(target), target.name, lacks or "-")


def _lacking_rows(found: Sequence[Target]) -> list[Row]:
    """Every missing thing once, with the targets that ask for it."""
    askers: dict[Row, list[str]] = {}
    for target in found:
        for f in target.findings:
            if not f.met:
                askers.setdefault((f.what, f.needs, f.found or "-", f.how), []).append(target.option)
    return [(what, needs, there, " ".join(options), how) for (what, needs, there, how), options in askers.items()]


def _state(target: Target) -> str:
    if target.ready:
        return "ready"
    if not target.built:
        return PLAN_ONLY
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

    colours = {"ready": "green", "lacks": "red", "not ready": "red", PLAN_ONLY: "yellow", "optional": "dim"}
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(cell, style=colours.get(cell, "")) for cell in row)
        )  # as it stands: '.[sm100]' is no markup
    Console().print(table, "")
