"""The mixture: which family how often, in which mode, and what is held out."""

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from examples.tiny_model.data import (
    arithmetic,
    code,
    dates,
    definitions,
    drills,
    json_tasks,
    lists,
    recall,
    smalltalk,
    stories,
    tables,
    tools,
)
from examples.tiny_model.data.chat import BOS, EOS, Chat, Turn, render
from examples.tiny_model.data.draws import Draw
from examples.tiny_model.data.task import Task

HELD_OUT_MODULUS = 64
SYSTEM_TEXTS = (
    "You are a friendly assistant.", "You are a helpful assistant.", "Answer briefly.", "Be short and exact.", "You are Tiny, a small model.",
    "You are a helpful, careful assistant. Answer in simple words.", "Help the user.", "You are an assistant that gives short answers.",
)  # fmt: skip


class Document(NamedTuple):
    """One training or evaluation document, still text."""

    family: str
    prompt: str
    answer: str
    is_thinking: bool


class Family(NamedTuple):
    make: Callable[[Draw], Task]
    weight: float  # relative number of documents
    weight_long: float  # the same in the long-context phase
    is_scored: bool = True  # has one right answer, so exact match means something


SHORT_FILLERS = (
    stories.story_chat, tables.table_fact, arithmetic.arithmetic, lists.list_reverse, json_tasks.json_lookup, dates.dates,
    lists.list_sort, definitions.definition, smalltalk.smalltalk,
)  # fmt: skip
LONG_FILLERS = (
    stories.story_chat,
    stories.story_chat,
    stories.story_question,
    json_tasks.json_schema,
    definitions.definition,
    tables.table_fact,
)


def recall_family(fillers: tuple[Callable[[Draw], Task], ...], low: int, high: int) -> Callable[[Draw], Task]:
    return lambda draw: recall.recall(draw, fillers, draw.integer(low, high))


def tool_unneeded(draw: Draw) -> Task:
    other = draw.one((tables.table_fact, arithmetic.arithmetic, definitions.definition, dates.dates))
    return tools.tool_unneeded(draw, other(draw))


FAMILIES: dict[str, Family] = {
    "arithmetic": Family(arithmetic.arithmetic, 17, 12),
    "json_request": Family(json_tasks.json_request, 7, 5),
    "json_schema": Family(json_tasks.json_schema, 7, 5),
    "json_lookup": Family(json_tasks.json_lookup, 4, 3),
    "dates": Family(dates.dates, 7, 5),
    "calendar": Family(dates.calendar, 1, 1),
    "list_sort": Family(lists.list_sort, 13, 10),
    "list_reverse": Family(lists.list_reverse, 5, 4),
    "list_count": Family(lists.list_count, 3, 2),
    "list_ends": Family(lists.list_ends, 1, 1),
    "list_extreme": Family(lists.list_extreme, 4, 3),
    "tool_call": Family(tools.tool_call, 8, 6),
    "tool_result": Family(tools.tool_result, 1.5, 1.5),
    "tool_unneeded": Family(tool_unneeded, 0.7, 0.7),
    "story_plain": Family(stories.story_plain, 4, 3, is_scored=False),
    "story_chat": Family(stories.story_chat, 4, 3, is_scored=False),
    "story_question": Family(stories.story_question, 2, 1.5),
    "table_fact": Family(tables.table_fact, 4, 4),
    "definition": Family(definitions.definition, 6, 6),
    "smalltalk": Family(smalltalk.smalltalk, 4, 4, is_scored=False),
    "likes": Family(smalltalk.likes, 1, 1, is_scored=False),
    "recall_80": Family(recall_family(SHORT_FILLERS, 0, 1), 5, 4),
    "recall_170": Family(recall_family(SHORT_FILLERS, 2, 3), 4, 3),
    "recall_350": Family(recall_family(LONG_FILLERS, 4, 6), 2.5, 2.5),
    "recall_600": Family(recall_family(LONG_FILLERS, 7, 9), 1.3, 2.5),
    "recall_1200": Family(recall_family(LONG_FILLERS, 10, 18), 0, 3.0),
    "recall_1800": Family(recall_family(LONG_FILLERS, 17, 24), 0, 3.0),
    "copy_text": Family(drills.copy_text, 5, 4),
    "spell": Family(drills.spell, 2, 1.5),
    "bind_pairs": Family(drills.bind_pairs, 4, 3),
    "bind_people": Family(drills.bind_people, 3, 2),
    "copy_plain": Family(drills.copy_plain, 3, 2),
    "python_function": Family(code.python_function, 2, 2),
    "fill_in_the_middle": Family(code.fill_in_the_middle, 1.5, 1.5),
}
NAMES = list(FAMILIES)
EARLIER_TURNS_CHANCE = 0.1


def is_held_out(key: str) -> bool:
    """Whether a document with these values is kept for evaluation. Facts (empty key) never are."""
    return bool(key) and zlib.crc32(key.encode()) % HELD_OUT_MODULUS == 0


def document(family: str, task: Task, draw: Draw, thinking: bool | None = None) -> Document:
    """Render a task. `thinking` forces a mode; by default half of what can be reasoned about is thinking."""
    if task.is_plain_text:
        return Document(family, BOS + task.user, task.answer + EOS, False)
    if thinking is None:
        thinking = draw.chance(0.5)
    thinking = thinking and bool(task.reasoning)
    system = draw.one(SYSTEM_TEXTS) if draw.chance(0.3) else ""
    turns = (*task.history, Turn(task.user, task.answer, task.reasoning))
    effort = 75 if draw.chance(0.8) else draw.one((50, 100))
    required = task.tool_required and not thinking
    prompt, answer = render(Chat(turns, system, task.tools, task.schema, thinking, effort, required))
    return Document(family, prompt, answer, thinking)


def with_earlier_turns(draw: Draw, task: Task) -> Task:
    """Now and then something else was talked about before."""
    if task.history or task.tools or task.schema or task.is_plain_text or not draw.chance(EARLIER_TURNS_CHANCE):
        return task
    earlier = [draw.one(SHORT_FILLERS)(draw) for _ in range(draw.integer(1, 2))]
    return task._replace(history=tuple(Turn(other.user, other.answer, other.reasoning) for other in earlier))


def training_documents(seed: int, long_context: bool = False) -> Iterator[Document]:
    """Endless training documents, without the held-out values and the reserved templates."""
    draw = Draw(seed)
    weights = [f.weight_long if long_context else f.weight for f in FAMILIES.values()]
    while True:
        for name in draw.rng.choices(NAMES, weights, k=256):
            task = FAMILIES[name].make(draw)
            if not is_held_out(task.key):
                yield document(name, with_earlier_turns(draw, task), draw)


def evaluation_family(name: str, count: int, seed: int, unseen_templates: bool = False) -> dict[str, list[Document]]:
    """`count` documents per mode of one family. Keys are "family" and "family/think".

    Held-out values with known templates, or any values with reserved templates: the template itself is then what is new.
    """
    draw = Draw(zlib.crc32(f"{seed}{name}{unseen_templates}".encode()), unseen_templates)
    modes = (False,) if name in ("copy_plain", "fill_in_the_middle") else (False, True)
    result: dict[str, list[Document]] = {}
    for thinking in modes:
        found: list[Document] = []
        while len(found) < count:
            task = FAMILIES[name].make(draw)
            if unseen_templates or not task.key or is_held_out(task.key):
                found.append(document(name, task, draw, thinking))
        result[name + ("/think" if thinking else "")] = found
    return result


def evaluation_documents(count: int, seed: int, unseen_templates: bool = False) -> dict[str, list[Document]]:
    """`evaluation_family` of every scored family."""
    result: dict[str, list[Document]] = {}
    for name, family in FAMILIES.items():
        if family.is_scored:
            result |= evaluation_family(name, count, seed, unseen_templates)
    return result
