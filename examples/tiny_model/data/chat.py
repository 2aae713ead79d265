"""The V4.1 chat format in plain Python: the same text deepseek-recipe renders, fast enough to render on the fly."""

import json
from typing import Any, NamedTuple

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK, THINK_END = "<think>", "</think>"
DSML = "｜DSML｜"
FIM_BEGIN, FIM_HOLE, FIM_END = "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"

# Ids 0, 1, 2; the engram hash asserts that the pad token is id 2.
LEADING_SPECIALS = (BOS, EOS, PAD)
# The last ids of the vocabulary, in this order.
TRAILING_SPECIALS = (
    SYSTEM, USER, ASSISTANT, THINK, THINK_END, DSML, "<｜latest_reminder｜>", "<｜image｜>", "<｜ref｜>", "<｜/ref｜>", "<｜box｜>",
    "<｜/box｜>", "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>", FIM_BEGIN, FIM_HOLE, FIM_END,
)  # fmt: skip

CALLS_HEADER = f"\n\n<{DSML} calls>\n"
EFFORT_HEADER = "Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
TOOLS_HEADER = f"""

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_FOOTER = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
SCHEMA_HEADER = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


class Turn(NamedTuple):
    """One user message and the assistant's reply. `reasoning` is what the reply thinks before it answers."""

    user: str
    answer: str
    reasoning: str = ""


class Chat(NamedTuple):
    """A conversation whose last turn is the one to learn."""

    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    schema: dict[str, Any] | None = None
    thinking: bool = False
    effort: int = 75
    tool_required: bool = False


def tool_calls_text(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """The DSML block that calls each (tool name, arguments) of `calls`."""
    lines = [CALLS_HEADER]
    for tool_name, arguments in calls:
        lines.append(f'<{DSML} invoke name="{tool_name}">\n')
        for key, value in arguments.items():
            is_string = isinstance(value, str)
            text = value if is_string else json.dumps(value)
            flag = "true" if is_string else "false"
            lines.append(f'<{DSML} parameter name="{key}" string="{flag}">{text}</{DSML} parameter>\n')
        lines.append(f"</{DSML} invoke>\n")
    lines.append(f"</{DSML} calls>")
    return "".join(lines)


def system_text(chat: Chat) -> str:
    text = EFFORT_HEADER.format(effort=chat.effort) if chat.thinking else ""
    text += chat.system
    if chat.tools:
        text += TOOLS_HEADER + "\n".join(json.dumps(tool) for tool in chat.tools) + TOOLS_FOOTER
    if chat.schema is not None:
        text += SCHEMA_HEADER + json.dumps(chat.schema)
    return text


def render(chat: Chat) -> tuple[str, str]:
    """Return (prompt, answer) of a chat; the answer ends with the end-of-sentence token.

    Earlier reasoning is dropped from the history unless tools are present, as deepseek-recipe does it.
    """
    assert not (chat.thinking and chat.tool_required), "deepseek-recipe refuses a required call in thinking mode"
    system = system_text(chat)
    parts = [BOS, SYSTEM, system] if system else [BOS]
    for turn in chat.turns[:-1]:
        keep = chat.thinking and bool(chat.tools)
        opening = f"{THINK}{turn.reasoning}{THINK_END}" if keep else THINK_END
        parts += [USER, turn.user, ASSISTANT, opening, turn.answer, EOS]
    last = chat.turns[-1]
    parts += [USER, last.user, ASSISTANT]
    if chat.thinking:
        return "".join(parts) + THINK, f"{last.reasoning}{THINK_END}{last.answer}{EOS}"
    prompt = "".join(parts) + THINK_END
    if chat.tool_required:
        return prompt + CALLS_HEADER, last.answer[len(CALLS_HEADER) :] + EOS
    return prompt, last.answer + EOS
