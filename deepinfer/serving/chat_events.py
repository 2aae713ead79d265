"""The stream of a chat: the engine's events with content and thinking apart, and the whole message at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer.sampling.outputs import StreamEvent
    from deepinfer.serving.chat_reader import ChatReader
    from deepinfer.serving.jobs import Desk, Job


def chat_events(desk: Desk, job: Job, notices: tuple[str, ...], events: Iterator[StreamEvent]) -> Iterator[StreamEvent]:
    """Events of a chat job from those of its tokens, one for one. The first carries `notices`."""
    readers: dict[int, ChatReader] = {}
    token_ids: dict[int, list[int]] = {}
    for event in events:
        reader = readers.setdefault(event.index, desk.reader(job))
        told = token_ids.setdefault(event.index, [])
        told += event.token_ids
        content, reasoning = reader.push(event.token_ids, last=event.finish_reason is not None)
        message = None
        if event.finish_reason and event.error is None:
            message = desk.message(job, told, event.finish_reason)
        yield msgspec.structs.replace(event, text=content, reasoning=reasoning, message=message, notices=notices)
        notices = ()
