"""Seeded draws of values and phrasings."""

import datetime
import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from examples.tiny_model.data import words

T = TypeVar("T")

GREETINGS = (
    "Please ", "Hi! ", "Hello, ", "Hey, ", "Can you help me? ", "Quick question: ", "Thanks for helping. ", "I need help. ",
    "Hi there. ", "Good morning! ", "One more thing: ", "Okay, ", "Next: ", "Now this: ", "I have a task for you. ", "So, ", "Well, ",
    "Here is one: ", "I was thinking. ", "This is for my homework. ", "Great. ", "Alright, ", "Let us try this: ", "A small task: ",
    "Question: ", "Task: ", "Dear assistant, ", "Sorry to bother you. ", "Could you do this? ", "My friend wants to know: ",
)  # fmt: skip
ENDINGS = (
    " Thanks!", " Please.", " Thank you.", " Thanks in advance.", " Only the answer, please.", " Be quick.", " It is for school.",
    " I am curious.", " Thank you very much!", " I need it now.", " Please help.", " Keep it short.",
)  # fmt: skip
FIRST_DAY = datetime.date(1950, 1, 1)
NUM_DAYS = 36_000


class Phrases(NamedTuple):
    """Ways to ask for one thing. `unseen` ones are never trained on; they measure robustness."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]


class Draw:
    """A seeded source of slot values.

    `unseen_templates` switches every phrasing to the reserved ones.
    """

    def __init__(self, seed: int, unseen_templates: bool = False) -> None:
        self.rng = random.Random(seed)
        self.unseen_templates = unseen_templates

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def one(self, items: Sequence[T]) -> T:
        return items[int(self.rng.random() * len(items))]

    def some(self, items: Sequence[T], low: int, high: int) -> list[T]:
        return self.rng.sample(items, self.integer(low, high))

    def integer(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))

    def phrase(self, phrases: Phrases) -> str:
        return self.one(phrases.unseen if self.unseen_templates else phrases.seen)

    def ask(self, question: str, can_end: bool = True) -> str:
        """Wrap a question in the small change of conversation: a greeting, a thank-you, a lower-case start.

        `can_end` is False where the question ends in data that an ending would run into.
        """
        luck = self.rng.random()
        if luck < 0.5:
            return question
        starts_plainly = (
            question[:1].isupper() and question[1:2].islower() and question.split(" ", 1)[0] not in words.NAMES
        )
        if luck < 0.58 and starts_plainly:
            return question[0].lower() + question[1:]
        if can_end and luck < 0.64 and question[-1] in ".?":
            return question[:-1]
        if can_end and luck < 0.75:
            return question + self.one(ENDINGS)
        greeting = self.one(GREETINGS)
        if starts_plainly and (greeting == "Please " or greeting[-2] in ",:") and self.chance(0.7):
            question = question[0].lower() + question[1:]
        return greeting + question

    def invented(self, low: int = 2, high: int = 3) -> str:
        syllables = [self.one(words.ONSETS) + self.one(words.VOWELS) for _ in range(self.integer(low, high))]
        return "".join(syllables) + self.one(words.CODAS)

    def name(self) -> str:
        return self.one(words.NAMES) if self.chance(0.6) else self.invented().capitalize()

    def city(self) -> str:
        return self.one(words.CITIES) if self.chance(0.6) else self.invented().capitalize()

    def word(self) -> str:
        if not self.chance(0.7):
            return self.invented()
        return self.one(self.one((words.ANIMALS, words.THINGS, words.FOODS, words.COLORS)))

    def number(self) -> int:
        return self.integer(0, 10 ** self.integer(1, 4) - 1)

    def token(self) -> str:
        """Anything that can be copied: a word, a number, a name, an invented word."""
        kind = self.integer(0, 3)
        return (self.word, self.name, self.invented)[kind]() if kind < 3 else str(self.number())

    def date(self) -> datetime.date:
        return FIRST_DAY + datetime.timedelta(days=self.integer(0, NUM_DAYS - 1))


def in_words(date: datetime.date) -> str:
    return f"{date.day} {words.MONTHS[date.month - 1]} {date.year}"
