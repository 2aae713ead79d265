"""Between the model's text and its reader: a call passes once it is whole and well-formed, never before.

Policy, the same in all dialects. Calls are delivered one by one. From the first that is malformed (cut off, of an unknown
tool, with broken values) on, the block is text: it stays in the answer's text where no call was delivered before it, else it
is left out, since nothing can follow calls. Either way `problems` says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from deepinfer.serving.call_shape import CLOSING, INVOKE, INVOKE_END, OPENING, Malformed, checked_call
from deepinfer.serving.markers import CALL_MARKER, THINK_END, as_letters

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_NAME = 256  # characters; the library takes names of up to 64
# outside: looking for a marker · block: between calls · call: inside one · text: markers are letters · over: nothing follows
_State = Literal["outside", "block", "call", "text", "over"]


class CallGuard:
    """Reads one answer. `tools` maps names to schemas; without tools, markers are letters.

    `opened`: the prompt has written the beginning of the block. `one_call`: the answer is `full` after its first call.
    """

    def __init__(self, tools: Mapping[str, Any], *, opened: bool = False, one_call: bool = False) -> None:
        self.problems: list[str] = []
        self.num_calls = 0
        self.full = False
        self._tools = tools
        self._one_call = one_call
        self._state: _State = ("block" if opened else "outside") if tools else "text"
        self._prelude = f"\n\n{OPENING}\n" if opened else ""  # of the block, read before its first call
        self._judged = ""  # what the model wrote of a block before its first call
        self._held = [""]  # text that cannot be judged yet, in pieces
        self._marked = False  # the held text was not looked at since a marker came

    def push(self, text: str) -> str:
        """What of the text so far may be read now."""
        if self._state == "text":
            return self._as_text(text)
        if self._state == "over":
            self._left_out(text)
            return ""
        if self._state == "outside":
            return self._outside(text)
        self._hold(text)
        return "" if self._state == "call" and not self._marked else self._advance()

    def finish(self) -> str:
        """The rest, once the answer has ended."""
        held = "".join(self._held)
        if self._state == "outside":
            return held
        if self._state not in ("block", "call"):
            return ""
        if self._state == "block" and self.num_calls and CLOSING.startswith(held.strip()):
            return ""
        return self._malformed("the answer ended inside of it" if self._judged + held else "the answer is empty")

    def _outside(self, text: str) -> str:
        """Ordinary text, all but a last "<", which may begin a marker's tag."""
        if self._held[0]:
            text, self._held = self._held[0] + text, [""]
        at = text.find(CALL_MARKER)
        if at < 0:
            if not text.endswith("<"):
                return text
            self._held = ["<"]
            return text[:-1]
        begin = at - 1 if text.startswith("<", at - 1) and at else at
        self._state, self._held, self._prelude, self._judged = "block", [text[begin:]], "", ""
        return text[:begin] + self._advance()

    def _hold(self, text: str) -> None:
        """A long value is looked at when a marker has come, not at every token."""
        self._marked = self._marked or CALL_MARKER in text or THINK_END in text  # markers come whole
        self._held.append(text)

    def _advance(self) -> str:
        """Go through what is held as far as it can be judged."""
        held, out = "".join(self._held), ""
        while self._state in ("block", "call"):
            self._held = [held]
            try:
                news, rest = self._between(held) if self._state == "block" else self._inside(held)
            except Malformed as error:
                return out + self._malformed(str(error))
            if rest is None:
                return out
            out, held = out + news, rest
        self._held = [""]
        self._left_out(held)
        return out

    def _between(self, held: str) -> tuple[str, str | None]:
        """(text to be read, rest); the rest is None where more has to come first. Raises Malformed.

        A judgement depends on what comes first in the text, never on how much of it is there.
        """
        text = held.lstrip()
        if text.startswith(CLOSING) and self.num_calls:
            self._state = "over"
            return CLOSING, text[len(CLOSING) :]
        if text.startswith(OPENING) and not self._prelude and not self.num_calls:
            self._prelude, self._judged = f"{OPENING}\n", OPENING
            return "", text[len(OPENING) :]
        if text.startswith(INVOKE):
            return self._begin(held, text)
        if any(tag.startswith(text) for tag in (OPENING, INVOKE, CLOSING)):
            return "", None
        raise Malformed("what the block holds is no call")

    def _begin(self, held: str, text: str) -> tuple[str, str | None]:
        written, end, _ = text[len(INVOKE) :].partition('">')
        name = written.partition("\n")[0][:_MAX_NAME]
        if not end and name == written:
            return "", None
        if name != written or name not in self._tools:
            known = ", ".join(self._tools)
            raise Malformed(f"it names {name!r:.80}, which is none of the tools: there are {known:.200}")
        self._judged += held[: len(held) - len(text)]
        self._name, self._state = name, "call"
        return "", text

    def _inside(self, held: str) -> tuple[str, str | None]:
        begin = len(INVOKE) + len(self._name) + 2
        end = held.find(INVOKE_END, begin)
        if any(0 <= held.find(tag, begin) < (end if end >= 0 else len(held)) for tag in (INVOKE, CLOSING, THINK_END)):
            raise Malformed("it is not closed")
        if end < 0:
            self._marked = held.rfind(">") < held.rfind(CALL_MARKER)
            return "", None
        text = self._prelude + checked_call(self._name, held[begin:end], self._tools[self._name])
        self._prelude = self._judged = ""
        self.num_calls += 1
        self.full = self._one_call
        self._state = "over" if self.full else "block"
        return text, "" if self.full else held[end + len(INVOKE_END) :]

    def _malformed(self, why: str) -> str:
        held, self._held = self._judged + "".join(self._held), [""]
        told = "it is left out" if self.num_calls else "it stays text"
        self.problems.append(f"call {self.num_calls} of the answer is malformed, so {told}: {why}")
        if self.num_calls:
            self._state = "over"
            return ""
        self._state = "text"
        return self._as_text(held)

    def _as_text(self, text: str) -> str:
        """Markers are letters, up to where thinking ends."""
        thought, end, rest = text.partition(THINK_END)
        if not end:
            return as_letters(text)
        self._state = "outside" if self._tools else "text"
        return as_letters(thought) + end + (self.push(rest) if rest else "")

    def _left_out(self, text: str) -> None:
        if text.strip() and not self.problems:
            self.problems.append("text behind the calls is left out: nothing follows calls in V4.1's format")
