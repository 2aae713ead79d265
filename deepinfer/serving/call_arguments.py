"""What a caller of the library may hand over in more than one form, brought into one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from deepinfer.config.errors import Problem, Refused
from deepinfer.config.overrides import as_override
from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import validate
from deepinfer.serving.jobs import is_conversation, is_ids

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_prompts(prompts: Any) -> list[Any]:
    """One prompt or some of them, as a list; what is in it is judged one by one. Raises ValueError where nothing can be."""
    if isinstance(prompts, str | dict) or is_ids(prompts):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray | set | frozenset):
        raise ValueError(
            f"prompts is a {type(prompts).__name__}: give a text, a list of token ids, or a list of such prompts"
        )
    return list(prompts)


def as_conversations(messages: Any) -> list[Any]:
    """One conversation or some of them, as a list. Raises ValueError where it is neither."""
    if isinstance(messages, str) or is_conversation(messages):
        return [messages]
    if not isinstance(messages, list | tuple):
        raise ValueError(
            f"messages is a {type(messages).__name__}: give a text, a list of messages such as "
            '[{"role": "user", "content": "…"}], or a list of such conversations'
        )
    return [messages] if messages and isinstance(messages[0], dict) else list(messages)


def one_each(params: SamplingParams | Sequence[SamplingParams], number: int, vocab_size: int) -> list[SamplingParams]:
    """Parameters for each of `number` prompts. Raises ValueError where those for all are wrong, or not as many as prompts."""
    if not isinstance(params, list | tuple):
        one = cast(SamplingParams, params)
        validate(one, vocab_size)
        return [one] * number
    if len(params) != number:
        raise ValueError(f"{len(params)} SamplingParams for {number} prompts: give one for all, or one for each")
    return list(params)


def all_overrides(overrides: Sequence[Any], keywords: dict[str, Any]) -> tuple[str, ...]:
    """Both ways of saying it as overrides of the command line; a keyword that is None says nothing."""
    odd = [item for item in overrides if not isinstance(item, str)]
    if odd:
        why = "overrides are texts as on the command line"
        raise Refused(
            Problem(asked=repr(item)[:80], found=f"a {type(item).__name__}", why=why, fix='"model=v41_tiny"')
            for item in odd
        )
    return (*overrides, *(as_override(key, value) for key, value in keywords.items() if value is not None))
