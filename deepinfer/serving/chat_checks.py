"""What is plainly wrong with the options of a chat before it is rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.serving.chat_history import ChatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONS = ("thinking", "tools", "tool_choice", "response_format")


_FORMATS = {
    "text": '{"type": "text"}',
    "json_object": '{"type": "json_object"}',
    "json_schema": '{"type": "json_schema", "json_schema": {"name": "…", "schema": {…}}}',
    "regex": '{"type": "regex", "regex": "yes|no"}',
}


def check_options(**options: Any) -> None:
    """Raise ChatError with all that is wrong with what shapes a chat, whatever its messages are."""
    problems = [
        f"a chat has no option {name!r}: there are {', '.join(_OPTIONS)}" for name in options if name not in _OPTIONS
    ]
    thinking, tools, choice = (options.get(name) for name in ("thinking", "tools", "tool_choice"))
    if "thinking" in options and not isinstance(thinking, bool):
        problems.append(f"thinking={thinking!r} is neither True nor False")
    if tools is not None and not isinstance(tools, list | tuple):
        problems.append(f"tools is a {type(tools).__name__}: give a list of tools")
    if not tools and (choice == "required" or isinstance(choice, dict)):
        problems.append(f"tool_choice={choice!r:.80} asks for a call, and there are no tools: give tools too")
    else:
        problems += _choice_problems(choice, tools or (), thinking)
    problems += _format_problems(options.get("response_format"))
    if problems:
        raise ChatError("; ".join(problems), param=_named(problems[0]))


def _named(problem: str) -> str | None:
    """The option that a problem names first."""
    found = [(problem.find(name), name) for name in _OPTIONS if name in problem]
    return min(found)[1] if found else None


def _choice_problems(choice: Any, tools: Any, thinking: Any) -> Iterator[str]:
    """What is wrong with a wish for calls, in words of this page rather than of the library."""
    if choice is None or (isinstance(choice, str) and choice in ("none", "auto")):
        return
    named = choice.get("function", {}) if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if choice != "required" and not (isinstance(choice, dict) and isinstance(name, str)):
        form = '{"type": "function", "function": {"name": "…"}}'
        yield f"tool_choice={choice!r:.80} is no choice: there are 'none', 'auto', 'required' and {form}"
        return
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [str(one.get("name")) for one in functions if isinstance(one, dict)]
    if name is not None and len(names) == len(tools) and name not in names:
        yield f"tool_choice names the function {name!r:.60}, which is none of the tools: there are {', '.join(names):.200}"
    elif thinking is True:
        yield "thinking does not go with a tool_choice that asks for a call: say thinking=false, or tool_choice='auto'"


def _format_problems(wanted: Any) -> Iterator[str]:
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if not isinstance(kind, str) or kind not in _FORMATS:
        yield f"response_format={wanted!r:.80} is none: there are {'; '.join(_FORMATS.values())}"
    elif kind == "json_schema" and "schema" not in (wanted.get(kind) if isinstance(wanted.get(kind), dict) else {}):
        yield f"response_format has no schema: write {_FORMATS[kind]}"
    elif kind == "regex" and not isinstance(wanted.get("regex"), str):
        yield f"response_format has no regex: write {_FORMATS[kind]}"
