"""Lists: sort, reverse, count, first and last, smallest and largest."""

from typing import Any

from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task

SORT = Phrases(
    seen=(
        "Sort: {x}", "Sort this list: {x}", "Put in order: {x}", "Order these: {x}", "Sort these items: {x}", "{x}\nSort them.",
        "Please sort {x}", "Arrange in order: {x}", "Sort the list {x}.", "Give the sorted list: {x}", "Sorted, please: {x}",
        "Bring into order: {x}", "What is the sorted order of {x}?", "Sort ascending: {x}", "Put these in order: {x}",
        "Sort from small to large: {x}", "Can you sort {x}?",
    ),
    unseen=("Order this list: {x}", "I want these sorted: {x}", "Here is a list: {x}\nSort it."),
)  # fmt: skip
REVERSE = Phrases(
    seen=(
        "Reverse: {x}", "Reverse this list: {x}", "Write backwards: {x}", "Give in reverse order: {x}", "{x}\nReverse them.",
        "Please reverse {x}", "Turn the list around: {x}", "Reverse the list {x}.", "From last to first: {x}",
        "List in reverse: {x}", "The reverse of {x}?", "Put in reverse order: {x}", "Reverse these items: {x}",
        "Write the list backwards: {x}", "Can you reverse {x}?",
    ),
    unseen=("Flip the order: {x}", "I want these in reverse: {x}", "Here is a list: {x}\nReverse it."),
)  # fmt: skip
COUNT = Phrases(
    seen=(
        "How many items: {x}", "Count: {x}", "Count the items: {x}", "How many: {x}", "{x}\nHow many are there?",
        "How many items are in {x}?", "Count these: {x}", "Number of items in {x}?", "How long is the list {x}?",
        "How many things do I have: {x}?", "Please count {x}", "Tell me how many: {x}", "Count the list {x}.",
        "How many words or numbers are here: {x}", "What is the count of {x}?",
    ),
    unseen=("Say how many items this is: {x}", "How many entries: {x}", "Here is a list: {x}\nCount it."),
)  # fmt: skip
ENDS = Phrases(
    seen=(
        "First and last of: {x}", "First and last: {x}", "{x}\nFirst and last?", "Give the first and the last of {x}",
        "What are the first and last items of {x}?", "Name the first and last: {x}", "The first and the last item: {x}",
        "Tell me the first and last of {x}.", "Which are first and last in {x}?", "Show first and last of {x}",
        "Find the first and last item: {x}", "First item and last item of {x}?",
    ),
    unseen=("Which items are at the ends, first and last: {x}", "I want the first and last of {x}"),
)  # fmt: skip
EXTREME = Phrases(
    seen=(
        "{m} of: {x}", "The {w} number: {x}", "Find the {m}: {x}", "Find the {w} number: {x}", "Which is the {w}: {x}",
        "What is the {w} of {x}?", "{x}\nWhich is the {w}?", "Give me the {m} of {x}.", "What is the {m} of {x}?",
        "The {w} of these: {x}", "Pick the {w}: {x}", "Tell me the {w} number in {x}.", "{w} number in {x}?",
        "Which number is the {w}: {x}?", "From {x}, take the {w}.", "Show the {m}: {x}",
    ),
    unseen=("Say which one is the {w}: {x}", "I need the {w} of {x}", "Here are numbers: {x}\nGive the {w}."),
)  # fmt: skip


def items(draw: Draw) -> list[Any]:
    """All numbers or all words."""
    count = draw.integer(3, 7)
    if draw.chance(0.5):
        return [draw.integer(0, 99 if draw.chance(0.8) else 999) for _ in range(count)]
    chosen: list[str] = []
    while len(chosen) < count:
        word = draw.word()
        if word not in chosen:
            chosen.append(word)
    return chosen


def joined(values: list) -> str:
    return ", ".join(map(str, values))


def build(draw: Draw, phrases: Phrases, values: list, answer: str, reasoning: str, **slots: str) -> Task:
    text = joined(values)
    question = draw.phrase(phrases).format(x=text, **slots)
    question = question[0].upper() + question[1:]
    return Task(draw.ask(question, can_end=False), answer, reasoning, text)


def list_sort(draw: Draw) -> Task:
    values = items(draw)
    rest, lines = list(values), []
    while len(rest) > 1:
        smallest = min(rest)
        lines.append(f"{joined(rest)}: {smallest}")
        rest.remove(smallest)
    lines.append(f"{rest[0]}")
    return build(draw, SORT, values, joined(sorted(values)), "\n".join(lines))


def list_reverse(draw: Draw) -> Task:
    values = items(draw)
    numbered = ", ".join(f"{i + 1} {value}" for i, value in enumerate(values))
    return build(draw, REVERSE, values, joined(values[::-1]), numbered)


def list_count(draw: Draw) -> Task:
    values = items(draw)
    numbered = ", ".join(f"{i + 1} {value}" for i, value in enumerate(values))
    return build(draw, COUNT, values, str(len(values)), numbered)


def list_ends(draw: Draw) -> Task:
    values = items(draw)
    return build(draw, ENDS, values, f"{values[0]} and {values[-1]}", f"The list has {len(values)} items.")


def list_extreme(draw: Draw) -> Task:
    values = [draw.integer(0, 999) for _ in range(draw.integer(3, 7))]
    largest = draw.chance(0.5)
    best, lines = values[0], []
    for value in values[1:]:
        better = max(best, value) if largest else min(best, value)
        lines.append(f"{best}, {value}: {better}")
        best = better
    slots = {"m": "max", "w": draw.one(("largest", "biggest", "highest"))}
    if not largest:
        slots = {"m": "min", "w": draw.one(("smallest", "lowest", "smallest"))}
    return build(draw, EXTREME, values, str(best), "\n".join(lines), **slots)
