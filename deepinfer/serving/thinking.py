"""Whether an answer thinks first: what a request says, what the server does otherwise, and what cannot be together."""

from __future__ import annotations

from typing import Any

from deepinfer.serving.fields import FieldError

# the format knows low 50, high 75 and max 100 of 100 (deepseek-recipe); the names between are those of OpenAI's models
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")


def is_forced(tool_choice: Any) -> bool:
    """Whether an answer has to be a call."""
    return tool_choice == "required" or isinstance(tool_choice, dict)


def thinking_mode(
    asked: bool | None, effort: str | None, *, default: bool, forced_call: bool
) -> tuple[bool, tuple[str, ...]]:
    """(whether to think, notices). An effort asks to think, and "none" not to.

    A forced call is made without thinking, since the format writes its beginning into the prompt. Where only the server's
    default is to think, that is said in a notice; a request that asks for both raises FieldError.
    """
    if effort is not None and effort not in EFFORTS:
        raise FieldError(f"reasoning_effort={effort!r:.40} is none of {', '.join(EFFORTS)}", param="reasoning_effort")
    wanted = None if effort is None else effort != "none"
    if asked is not None and wanted is not None and asked != wanted:
        word = "on" if asked else "off"
        raise FieldError(
            f"reasoning_effort={effort!r} contradicts thinking, which the request turns {word}: give one of them",
            param="reasoning_effort",
        )
    wanted = asked if wanted is None else wanted
    if not forced_call:
        return (default if wanted is None else wanted), ()
    if wanted:
        raise FieldError(
            "a forced tool call (tool_choice) does not go with thinking, since V4.1's format begins the call in the prompt: "
            'turn thinking off with {"thinking": {"type": "disabled"}} or reasoning_effort="none", or say tool_choice="auto"',
            param="tool_choice",
        )
    notice = "thinking, this server's default, is off for this answer: a tool call is forced"
    return False, (notice,) if default and wanted is None else ()
