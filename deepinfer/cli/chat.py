"""`deepinfer chat`: talk with the model in the terminal, or through a pipe, a line a turn.

Answers go to stdout, everything else to stderr.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from deepinfer.api import plan_to_run
from deepinfer.cli.chat_backend import Here, There
from deepinfer.cli.chat_talk import Talk, piped_lines, typed_lines
from deepinfer.cli.other_server import read_key, refuse_no_address
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.tasks import Chat
from deepinfer.plan import render
from deepinfer.sampling.params import asked_sampling

if TYPE_CHECKING:
    from types import FrameType

    from deepinfer.cli.chat_backend import Backend
    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec


def run(spec: Spec, invocation: Invocation) -> int:
    """Talk until the input ends. Raises Refused for what cannot be planned or run."""
    assert isinstance(spec.task, Chat), "this is the verb of this task"
    from rich.console import Console

    backend = _there(spec.task) if spec.task.base_url else _here(spec, invocation)
    typed = sys.stdin.isatty() and sys.stdout.isatty()
    ending = _Ending()
    try:
        with ending:
            talk = Talk(
                backend,
                Console(file=sys.stdout, highlight=False),
                thinking=spec.task.thinking,
                say=_say,
                ending=lambda: ending.asked or not typed,
            )
            if typed:
                _edit_lines()
                _say("/help tells what there is besides talking")
            return talk.run(typed_lines("> ", _say, lambda: ending.asked) if typed else piped_lines())
    except UnicodeDecodeError as error:
        found = f"stdin holds bytes that are not {error.encoding}"
        raise Refused([Problem(asked="stdin", found=found, why="a question is text", code=ExitCode.OTHER)]) from error
    finally:
        backend.close()


def _there(task: Chat) -> Backend:
    assert task.base_url is not None, "asked before"
    refuse_no_address(task.base_url)
    return There(task.base_url, api_key=read_key(task.api_key_file))


def _here(spec: Spec, invocation: Invocation) -> Backend:
    plan = plan_to_run(spec, invocation.choices, invocation.overrides)
    print(render.summary(plan), file=sys.stderr, flush=True)

    from deepinfer.api import LLM

    llm = LLM.from_plan(plan, asked=asked_sampling(invocation.overrides))
    for notice in llm.take_notices():
        _say(notice)
    noticed: set[str] = set()

    def say_once(text: str) -> None:
        if text not in noticed:
            noticed.add(text)
            _say(text)

    return Here(llm, say_once)


def _edit_lines() -> None:
    """Arrows and a history of this chat, where Python was built with readline."""
    if importlib.util.find_spec("readline") is not None:
        importlib.import_module("readline")


def _say(text: str) -> None:
    print(f"deepinfer: {text}" if "\n" not in text else text, file=sys.stderr, flush=True)


class _Ending:
    """While entered, tells SIGTERM and SIGHUP from Ctrl-C: they end the chat, whoever handles them."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Ending:
        in_main = threading.current_thread() is threading.main_thread()
        for each in (signal.SIGTERM, signal.SIGHUP) if in_main else ():
            before = signal.getsignal(each)
            if callable(before):
                self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._before[signal.Signals(number)](number, frame)
