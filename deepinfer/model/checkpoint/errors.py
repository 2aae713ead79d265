"""What can be wrong with a checkpoint or with fetching one. `exit_code` is the process's last word for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

SHOWN_PER_KIND = 12  # a checkpoint of the wrong model would otherwise list 96,085 names


class CheckpointErrors(ValueError):
    """Everything wrong with one checkpoint. `kinds` maps a heading to its findings, `problems` lists them all."""

    exit_code = 5

    def __init__(self, path: Path | str, kinds: Mapping[str, Sequence[str]]) -> None:
        self.path = Path(path)
        self.kinds = {kind: tuple(findings) for kind, findings in kinds.items() if findings}
        assert self.kinds, "an error names at least one problem"
        self.problems = [f"{kind}: {finding}" for kind, findings in self.kinds.items() for finding in findings]
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> list[str]:
        lines = [f"checkpoint {self.path}: {len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"]
        for kind, findings in self.kinds.items():
            lines.append(f"  {kind} ({len(findings)}):")
            lines += [f"    {finding}" for finding in findings[:SHOWN_PER_KIND]]
            if len(findings) > SHOWN_PER_KIND:
                lines.append(f"    … and {len(findings) - SHOWN_PER_KIND} more")
        return lines


class HubError(OSError):
    """Weights could not be fetched: what was asked, what was found, why, and what to do about it."""

    exit_code = 7

    def __init__(self, *, asked: str, found: str, why: str, fix: str) -> None:
        self.asked, self.found, self.why, self.fix = asked, found, why, fix
        super().__init__(f"cannot {asked}\n    {found}: {why}\n    {fix}")
