"""Type every command of README.md and docs/*.md, as a reader would, and say which did not work.

python docs/run_commands.py [--python PYTHON] [PAGE …]

Commands stand in `sh` blocks. They run with PYTHON (an installed wheel, say), page by page in an empty folder of their own
and without a network; blocks that begin with ```LANGUAGE file=PATH are written to PATH there first. A command ends with exit
code 0, unless its comment says `exits N`; one that asks for an accelerator and runs may also end with 4, "device missing".
A server, which does not end by itself, is told to once it is ready.

Three kinds do not run, and are counted apart as checked only: targets of make and scripts of the checkout
(`python benchmarks/…`, `python -m pytest tests/…`), which must be there; and lines of pip and git, whose words are all that
is read.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXITS = re.compile(r"#.*\bexits (\d+)")
NOWHERE = "http://127.0.0.1:9"  # a port where nobody listens
NO_DEVICE = 4
PAGES_AT_ONCE = 2
SLOWEST_S = 300


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Language, file name (or "") and text of every fenced block."""
    yield from BLOCK.findall(page.read_text("utf-8"))


def commands(text: str) -> Iterator[str]:
    """The commands of a block: one a line, a backslash at the end goes on."""
    for line in text.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ").strip()
        if command and not command.startswith("#"):
            yield command


class Outcome(NamedTuple):
    """What came of a page: how many commands ran, how many were only looked at, and a sentence for each fault."""

    run: int
    checked: int
    faults: list[str]


def check_page(page: Path, python: str) -> Outcome:
    """Type the commands of a page, in its order."""
    run, checked, faults = 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        found = list(blocks(page))
        for _, file, text in found:
            if file:
                target = Path(folder, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, "utf-8")
        for command in (line for language, _, text in found if language == "sh" for line in commands(text)):
            plain = re.split(r"\s#\s?", command, maxsplit=1)[0].strip()
            looked_at = _looked_at(plain)
            fault = _run(plain, EXITS.search(command), folder, python) if looked_at is None else looked_at
            run, checked = run + (looked_at is None), checked + (looked_at is not None)
            faults += [f"{page.name}: {command}\n    {fault}"] if fault else []
    return Outcome(run, checked, faults)


def _looked_at(plain: str) -> str | None:
    """None for a command that is to run; else what is wrong with one that is only checked, empty where nothing is."""
    if plain.startswith("make "):
        done = subprocess.run([*shlex.split(plain), "--dry-run"], capture_output=True, cwd=ROOT, check=False)
        return "" if done.returncode == 0 else "no such target"
    script = re.match(r"(?:python|bash|python -m pytest) ((?:benchmarks|examples|docs|tests)/\S+)", plain)
    if script:
        return "" if (ROOT / script[1]).exists() else "no such script"
    return "" if plain.startswith(("pip ", "python -m pip ", "git ")) else None


def _is_server(plain: str) -> bool:
    return re.search(r"\bdeepinfer serve\b", plain) is not None and "new_key=" not in plain


def _until_ready(server: subprocess.Popen[str]) -> str:
    """Everything that a server said, which is told to end when it is ready."""
    said = []
    timer = threading.Timer(SLOWEST_S, server.kill)
    timer.start()
    for line in server.stderr or ():
        said.append(line)
        if line.startswith("deepinfer: ready"):
            server.terminate()
    server.wait()
    timer.cancel()
    return "".join(said)


def _serve(plain: str, folder: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What came of a server, at a port that nobody else has unless the page says which."""
    port = "" if "serving.port=" in plain else " serving.port=0"
    command = ["bash", "-c", f"exec {plain}{port}"]
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as server:
        said = _until_ready(server)
    return subprocess.CompletedProcess(command, server.returncode, "", said)


def _run(plain: str, exits: re.Match[str] | None, folder: str, python: str) -> str:
    bin_folder = str(Path(python).parent)
    env = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    env |= {"PATH": f"{bin_folder}{os.pathsep}{env['PATH']}", "HTTPS_PROXY": NOWHERE, "HTTP_PROXY": NOWHERE}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/.hf", "PYTHONPATH": ""}
    try:
        if _is_server(plain):
            done = _serve(plain, folder, env)
        else:
            done = subprocess.run(
                ["bash", "-c", plain],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=SLOWEST_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"not ended after {SLOWEST_S} s"
    wanted = {int(exits[1])} if exits else {0}
    if not exits and "hardware=" in plain and " plan " not in plain:
        wanted.add(NO_DEVICE)
    if done.returncode in wanted and "Traceback" not in done.stderr:
        return ""
    return f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that deepinfer is installed for")
    parser.add_argument("pages", nargs="*", type=Path, help="README.md and all of docs/ where none is given")
    given = parser.parse_args()
    pages = [page.resolve() for page in given.pages] or PAGES
    with ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda page: check_page(page, os.path.abspath(given.python)), pages))
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    run, checked = sum(outcome.run for outcome in outcomes), sum(outcome.checked for outcome in outcomes)
    print("\n".join(faults), file=sys.stderr)
    print(f"{run} run, {checked} checked only (make, scripts of the checkout, pip, git)")
    print(f"commands: {run + checked - len(faults)} passed, {len(faults)} failed")
    return int(bool(faults) or not run)


if __name__ == "__main__":
    sys.exit(main())
