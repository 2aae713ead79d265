"""What every family of tasks produces."""

from typing import Any, NamedTuple

from examples.tiny_model.data.chat import Turn


class Task(NamedTuple):
    """One thing to learn: a question, its computed answer, and what identifies its values.

    `key` names the drawn values alone, never the phrasing: the held-out split hashes it. An empty key means
    a fact that has to be trained on to be known (the capital of France), which is therefore never held out.
    """

    user: str
    answer: str
    reasoning: str = ""
    key: str = ""
    history: tuple[Turn, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    schema: dict[str, Any] | None = None
    tool_required: bool = False
    is_plain_text: bool = False  # `user` is then the raw text after BOS, outside any chat
