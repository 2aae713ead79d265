"""The terminal chat: commands, thinking, interrupts and failures, with an answerer that says what it is told."""

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from deepinfer.cli.chat_backend import AnswerFailed, Messages, OnNews
from deepinfer.cli.chat_talk import Talk, piped_lines
from deepinfer.cli.main import main


class Scripted:
    """Answers in words; an exception among them is raised there."""

    def __init__(self, *answers: list[tuple[str, str] | BaseException]) -> None:
        self.answers, self.heard = list(answers), list[tuple[Messages, bool]]()

    def answer(self, messages: Messages, on_news: OnNews, *, thinking: bool) -> None:
        self.heard.append(([*messages], thinking))
        for piece in self.answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            on_news(*piece)

    def close(self) -> None: ...


def talked(
    backend: Scripted, *lines: str, terminal: bool = False, ending: Callable[[], bool] = lambda: False
) -> tuple[int, str, list[str], Talk]:
    out, said = io.StringIO(), list[str]()
    console = Console(file=out, force_terminal=terminal, color_system="standard" if terminal else None, width=20)
    talk = Talk(backend, console, thinking=False, say=said.append, ending=ending)
    code = talk.run(iter(lines))
    return code, out.getvalue(), said, talk


def test_turns_build_on_one_another_until_they_are_forgotten() -> None:
    backend = Scripted([("He", ""), ("llo", "")], [("Two", "")], [("Three", "")])
    code, out, said, _ = talked(backend, "one", "", "two", "/reset", "/system be brief", "three", "/exit", "never")
    assert (code, out) == (0, "Hello\nTwo\nThree\n")
    assert [message["content"] for message in backend.heard[1][0]] == ["one", "Hello", "two"]
    assert backend.heard[2][0] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "three"},
    ]
    assert said[0] == "forgotten"


def test_an_interrupt_stops_the_answer_and_not_the_chat() -> None:
    backend = Scripted([("Once upon", ""), KeyboardInterrupt()], [("yes", "")])
    code, out, said, talk = talked(backend, "a story", "go on?")
    assert (code, out) == (0, "Once upon\nyes\n") and said == ["stopped; what was said stays"]
    assert talk.messages[1] == {"role": "assistant", "content": "Once upon"}
    with pytest.raises(KeyboardInterrupt):
        talked(Scripted([KeyboardInterrupt()]), "a story", ending=lambda: True)


def test_a_failed_answer_is_told_and_no_part_of_the_conversation() -> None:
    backend = Scripted([("half", ""), AnswerFailed("too long")], [("fine", "")])
    code, out, said, talk = talked(backend, "x", "y")
    assert (code, out, said) == (1, "half\nfine\n", ["too long"])
    assert [message["content"] for message in talk.messages] == ["y", "fine"]


def test_thinking_is_dim_on_a_terminal_and_beside_the_answer_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    pieces: list[tuple[str, str] | BaseException] = [
        ("", "hm "),
        ("", "so"),
        ("It is [b]4[/b] \x1b[31m, a long line", ""),
    ]
    _, out, said, _ = talked(Scripted(pieces), "/thinking", "2+2?", terminal=True)
    assert out == "\x1b[2;3mhm \x1b[0m\x1b[2;3mso\x1b[0m\nIt is [b]4[/b] �[31m, a long line\n"
    assert said == ["thinking is on"]
    backend = Scripted(pieces)
    _, out, _, _ = talked(backend, "/thinking", "2+2?")
    assert out == "It is [b]4[/b] \x1b[31m, a long line\n" and capsys.readouterr().err == "hm so"
    assert backend.heard[0][1] is True


def test_commands_say_what_they_did(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    backend = Scripted([("ü", "")], [("/etc", "")])
    _, _, said, _ = talked(
        backend, "hi", f"/save {file}", "/save", f"/save {tmp_path}", "/nope", "/help", "/etc/passwd says?"
    )
    assert json.loads(file.read_text("utf-8")) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ü"},
    ]
    assert "2 messages" in said[0] and said[1] == "name a file: /save FILE" and "not saved" in said[2]
    assert "there is no /nope" in said[3] and "/system TEXT" in said[4] and len(backend.heard) == 2


def test_lines_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\\\nb\nc\nd\\\n"))
    assert list(piped_lines()) == ["a\nb", "c", "d"]


def test_the_verb_answers_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 347 + 285?\n/exit\n"))
    assert main(["chat", "sampling=greedy"]) == 0
    assert capsys.readouterr().out == "632\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    assert main(["chat", "task.base_url=http://127.0.0.1:9"]) == 1
    assert "deepinfer: http://127.0.0.1:9: " in capsys.readouterr().err
    assert main(["chat", "task.base_url=nonsense"]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err
