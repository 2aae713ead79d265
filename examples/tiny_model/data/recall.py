"""Facts told early in a conversation and asked for later: the test of the compressed cache and its indexer."""

from collections.abc import Callable

from examples.tiny_model.data import words
from examples.tiny_model.data.chat import Turn
from examples.tiny_model.data.draws import Draw, Phrases, in_words
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article

FACTS: dict[str, Callable[[Draw], str]] = {
    "name": Draw.name, "favorite color": lambda d: d.one(words.COLORS), "pet": lambda d: with_article(d.one(words.ANIMALS)), "city": Draw.city,
    "job": lambda d: with_article(d.one(words.JOBS)), "lucky number": lambda d: str(d.number()), "password": Draw.invented,
    "favorite food": lambda d: d.one(words.FOODS), "best friend": Draw.name, "birthday": lambda d: in_words(d.date()),
    "street": lambda d: f"{d.invented().capitalize()} Street", "room number": lambda d: str(d.integer(10, 999)),
    "boat": lambda d: d.invented().capitalize(), "teacher": Draw.name, "favorite month": lambda d: d.one(words.MONTHS),
    "hobby": lambda d: d.one(("swimming", "reading", "painting", "singing", "chess", "cooking", "running", "gardening")),
}  # fmt: skip
KEYS = list(FACTS)
STATEMENTS = Phrases(
    seen=(
        "My {k} is {v}.", "Remember: my {k} is {v}.", "By the way, my {k} is {v}.", "Note that my {k} is {v}.", "Just so you know, my {k} is {v}.",
        "Please remember that my {k} is {v}.", "{v} is my {k}.", "I want to tell you that my {k} is {v}.", "Keep in mind: my {k} is {v}.",
        "For later: my {k} is {v}.", "My {k}? That is {v}.", "Here is a fact: my {k} is {v}.", "You should know that my {k} is {v}.",
        "Do not forget that my {k} is {v}.", "My {k}: {v}.",
    ),
    unseen=("Let me tell you my {k}: {v}.", "Please note my {k}, it is {v}.", "As for my {k}, it is {v}."),
)  # fmt: skip
QUESTIONS = Phrases(
    seen=(
        "What is my {k}?", "Tell me my {k}.", "Do you remember my {k}?", "Say my {k} again.", "What was my {k}?", "What's my {k}?",
        "Which {k} did I tell you?", "I forgot my {k}. What is it?", "Can you tell me my {k}?", "Please repeat my {k}.",
        "And my {k}?", "Do you know my {k}?", "Now, what is my {k}?", "Remind me of my {k}.", "My {k} was what?", "Recall my {k}.",
    ),
    unseen=("Could you remind me what my {k} is?", "I told you my {k}. Which one was it?", "Give me my {k} once more."),
)  # fmt: skip
REPLIES = (
    "Okay, I will remember that.",
    "Got it.",
    "Noted.",
    "Thank you for telling me.",
    "I will keep that in mind.",
    "Good to know.",
)

Filler = Callable[[Draw], Task]


def recall(draw: Draw, fillers: tuple[Filler, ...], num_fillers: int) -> Task:
    """Tell one to four facts, talk about `num_fillers` other things, ask for one to three of the facts."""
    keys = draw.some(KEYS, 1, 4)
    facts = {key: FACTS[key](draw) for key in keys}
    turns, start = [], 0
    while start < len(keys):
        group = keys[start : start + draw.integer(1, 2)]
        start += len(group)
        statements = []
        for key in group:
            sentence = draw.phrase(STATEMENTS).format(k=key, v=facts[key])
            statements.append(sentence[0].upper() + sentence[1:])
        turns.append(Turn(" ".join(statements), draw.one(REPLIES)))
    for _ in range(num_fillers):
        other = draw.one(fillers)(draw)
        turns.append(Turn(other.user, other.answer, other.reasoning))
    asked = draw.some(keys, 1, min(3, len(keys))) if draw.chance(0.5) else [draw.one(keys)]
    for key in asked[:-1]:
        question = draw.phrase(QUESTIONS).format(k=key)
        turns.append(Turn(question, f"Your {key} is {facts[key]}.", f"The user told me the {key}."))
    wanted = asked[-1]
    question = draw.phrase(QUESTIONS).format(k=wanted)
    answer = f"Your {wanted} is {facts[wanted]}."
    return Task(draw.ask(question), answer, f"The user told me the {wanted}.", repr(facts), history=tuple(turns))
