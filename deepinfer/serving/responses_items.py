"""Items of the Responses API to messages: thinking, text and calls of one turn become one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.serving.chat_ask import function_call
from deepinfer.serving.fields import FieldError, check_inner, field, kind_of, needed

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = ("input_text", "output_text", "text")
_ITEMS = "message, reasoning, function_call and function_call_output"
_TOLD = "thinking is told in full, as reasoning_text"
# of each item: fields that are read, fields that an answer has and that say nothing new, fields that could only be empty
_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[Any, str]]]] = {
    "message": (("role", "content"), ("phase",), {}),
    "reasoning": (("content",), ("summary",), {"encrypted_content": (None, _TOLD)}),
    "function_call": (("call_id", "name", "arguments", "namespace"), ("caller",), {}),
    "function_call_output": (("call_id", "output"), ("caller",), {}),
}
_BETWEEN = "\n\n"  # parts of one message, as DeepSeek's library joins them


class Turns:
    """Builds the messages of a conversation from its items, in their order."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._calls: set[str] = set()
        self._is_open = True  # whether the assistant's newest message was cut, or begun by hand
        self._unanswered: dict[str, str] = {}  # call id -> place of the call
        self._of_response: dict[
            str, dict[str, Any]
        ] = {}  # id of an earlier response -> the message that its calls are in

    def add(self, items: Sequence[Any], where: str = "input") -> None:
        """Raises FieldError naming the item that cannot be read."""
        for number, item in enumerate(items):
            place = f"{where}[{number}]"
            if not isinstance(item, dict):
                raise FieldError(f"{place} is {kind_of(item)}: an item is an object", param=place)
            self._item(item, place)

    def end(self) -> list[dict[str, Any]]:
        """The messages. A last one of the assistant is continued unless it is complete. Raises FieldError naming a call that
        nothing answers."""
        for call_id, place in self._unanswered.items():
            raise FieldError(
                f"{place} calls a tool, and no function_call_output has call_id={call_id!r:.60}", param=place
            )
        if self.messages and self.messages[-1]["role"] == "assistant" and not self._is_open:
            self.messages[-1]["prefix"] = False
        return self.messages

    def _item(self, item: dict[str, Any], place: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        readers = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._call,
            "function_call_output": self._output,
        }
        if not isinstance(kind, str) or kind not in readers:
            why = f"{place}.type={kind!r:.80} is not supported: there are {_ITEMS}"
            raise FieldError(why, param=f"{place}.type", code="unsupported_item")
        used, hints, unbuilt = _NAMES[kind]
        check_inner(item, ("type", *used), place, hints=("id", "status", *hints), unbuilt=unbuilt)
        readers[kind](item, place)

    def _message(self, item: dict[str, Any], place: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise FieldError(f"{place}.role={role!r:.60}: there are {', '.join(_ROLES)}", param=f"{place}.role")
        text = text_of(item.get("content"), f"{place}.content")
        if role != "assistant":
            self.messages.append({"role": _ROLES[role], "content": text})
            return
        message = self._assistant()
        self._is_open = item.get("status") != "completed"
        if message["content"]:
            text = message["content"] + _BETWEEN + text
        message["content"] = text

    def _reasoning(self, item: dict[str, Any], place: str) -> None:
        parts = field(item, "content", list[dict[str, Any]], where=f"{place}.", default=[])
        text = "\n".join(str(part.get("text") or "") for part in parts if part.get("type") == "reasoning_text")
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and not last["content"] and not last.get("tool_calls"):
            last["reasoning_content"] = "\n".join(filter(None, [last.get("reasoning_content"), text]))
        else:
            self.messages.append({"role": "assistant", "content": "", "reasoning_content": text})

    def _call(self, item: dict[str, Any], place: str) -> None:
        if item.get("namespace"):
            raise FieldError(f"{place}.namespace is not supported: give functions names of their own", param=place)
        call_id, name, arguments = (
            needed(item, key, str, where=f"{place}.") for key in ("call_id", "name", "arguments")
        )
        response = response_of(item.get("id"))
        message = self._of_response.get(response) if response else None
        if message is None:
            message = self._assistant()
        message.setdefault("tool_calls", []).append(function_call(call_id, name, arguments))
        self._calls.add(call_id)
        self._unanswered[call_id] = place
        if response:
            self._of_response[response] = message

    def _output(self, item: dict[str, Any], place: str) -> None:
        call_id = needed(item, "call_id", str, where=f"{place}.")
        if call_id not in self._calls:
            why = f"{place}.call_id={call_id!r:.60} is of no function_call before it: send that item too"
            raise FieldError(why, param=f"{place}.call_id")
        self._unanswered.pop(call_id, None)
        output = item.get("output")
        text = output if isinstance(output, str) else text_of(output, f"{place}.output")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _assistant(self) -> dict[str, Any]:
        """The assistant's message that is being built, or a new one."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant":
            return last
        self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def response_of(item_id: Any) -> str:
    """The response that made an output item, from the item's id (fc_resp_…_3); "" for ids of other makers."""
    if not isinstance(item_id, str) or "_resp_" not in item_id:
        return ""
    return item_id.partition("_")[2].rpartition("_")[0]


def text_of(content: Any, place: str) -> str:
    """Text of a message: a str, or parts. Raises FieldError naming the part that is none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError(f"{place} is {kind_of(content)}: give a text or a list of parts", param=place)
    return _BETWEEN.join(_part(part, f"{place}[{number}]") for number, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS:
        check_inner(part, ("type", "text"), place, hints=("annotations", "logprobs"))
        return str(needed(part, "text", str, where=f"{place}."))
    if kind == "refusal":
        check_inner(part, ("type", "refusal"), place)
        return str(needed(part, "refusal", str, where=f"{place}."))
    what = {"input_image": "an image", "input_file": "a file", "input_audio": "audio"}.get(str(kind), f"{kind!r:.60}")
    why = f"{place} is {what}: only text is read so far (input_text, output_text); leave that part out"
    raise FieldError(why, param=place, code="unsupported_content")
