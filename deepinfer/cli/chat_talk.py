"""A conversation in the terminal: lines in, answers out while they grow, and commands that begin with a slash."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from deepinfer.cli.chat_backend import AnswerFailed
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from deepinfer.cli.chat_backend import Backend, Messages

HELP = """\
/help           this
/reset          forget what was said; the system message stays
/system TEXT    what the model is told before all else, from the next answer on; without TEXT none
/thinking       think before answering, or no longer
/save FILE      the conversation as JSON, in the form that Chat Completions takes
/exit           leave; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ goes on in the next."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a model's words must not steer a terminal


class Talk:
    """`say` prints what is no answer. `ending` tells that whoever interrupts wants the chat to end, not an answer."""

    def __init__(
        self,
        backend: Backend,
        console: Console,
        *,
        thinking: bool,
        say: Callable[[str], None],
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.messages: Messages = []
        self.thinking, self.failed = thinking, False
        self._system = ""
        self._backend, self._console, self._say, self._ending = backend, console, say, ending
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: say(HELP),
            "/reset": self._reset,
            "/system": self._tell_system,
            "/thinking": self._switch_thinking,
            "/save": self._save,
        }

    def run(self, lines: Iterator[str]) -> int:
        """Until the lines end, or /exit. 1 where an answer failed, else 0."""
        for line in lines:
            word, _, rest = line.strip().partition(" ")
            if word in ("/exit", "/quit"):
                break
            if word in self._commands:
                self._commands[word](rest.strip())
            elif re.fullmatch(r"/[a-z]+", word):
                self._say(f"there is no {word}: /help lists what there is")
            elif line.strip():
                self._turn(line)
        return ExitCode.OTHER if self.failed else ExitCode.OK

    def _turn(self, text: str) -> None:
        """One question and its answer, which an interrupt cuts: what was said until then stays said."""
        asked = [*self.messages, {"role": "user", "content": text}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        said: list[str] = []
        printer = _Printer(self._console)

        def news(content: str, reasoning: str) -> None:
            said.append(content)
            printer.add(content, reasoning)

        try:
            self._backend.answer([*system, *asked], news, thinking=self.thinking)
        except AnswerFailed as error:
            printer.end()
            self.failed = True
            self._say(str(error))
            return
        except KeyboardInterrupt:
            printer.end()
            if self._ending():
                raise
            self._say("stopped; what was said stays")
        printer.end()
        self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]

    def _reset(self, _: str) -> None:
        self.messages = []
        self._say("forgotten")

    def _tell_system(self, text: str) -> None:
        self._system = text
        self._say("the system message holds from the next answer on" if text else "there is no system message now")

    def _switch_thinking(self, _: str) -> None:
        self.thinking = not self.thinking
        self._say("thinking is on" if self.thinking else "thinking is off")

    def _save(self, name: str) -> None:
        if not name:
            self._say("name a file: /save FILE")
            return
        system = [{"role": "system", "content": self._system}] if self._system else []
        try:
            path = user_path(name, "/save")
            path.write_text(json.dumps([*system, *self.messages], ensure_ascii=False, indent=2) + "\n", "utf-8")
        except (OSError, UnicodeEncodeError) as error:
            self._say(f"not saved: {error}")
        except Refused as refused:
            self._say(f"not saved: {refused.problems[0].found}")
        else:
            self._say(f"saved: {len(self.messages)} messages in {path}")


class _Printer:
    """Thinking dim, the answer plain, a line break between them and one at the end."""

    def __init__(self, console: Console) -> None:
        self._console, self._last, self._was_thinking = console, "\n", False

    def add(self, content: str, reasoning: str) -> None:
        if reasoning and not self._console.is_terminal:  # a pipe gets answers and nothing else
            sys.stderr.write(reasoning)
        elif reasoning:
            self._was_thinking = True
            self._write(reasoning, "dim italic")
        if content:
            if self._was_thinking:
                self.end()
                self._was_thinking = False
            self._write(content, "")

    def end(self) -> None:
        if self._last != "\n":
            self._write("\n", "")

    def _write(self, text: str, style: str) -> None:
        shown = _CONTROLS.sub("�", text.replace("\r\n", "\n")) if self._console.is_terminal else text
        self._console.print(shown, end="", style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)
        self._console.file.flush()
        self._last = text[-1]


def typed_lines(prompt: str, say: Callable[[str], None], ending: Callable[[], bool]) -> Iterator[str]:
    """What a person types, edited with readline; Ctrl-C drops the line, Ctrl-D ends."""
    parts: list[str] = []
    while True:
        try:
            line = input("… " if parts else prompt)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if ending():
                raise
            parts = []
            say("/exit or Ctrl-D leaves")
            continue
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield "\n".join([*parts, line])
        parts = []


def piped_lines() -> Iterator[str]:
    """Lines of a file or a pipe, joined where one ends in a backslash."""
    parts: list[str] = []
    for line in sys.stdin:
        line = line.rstrip("\n")
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield "\n".join([*parts, line])
        parts = []
    if parts:
        yield "\n".join(parts)
