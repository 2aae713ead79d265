"""A few hundred definitions in our own simple words."""

from pathlib import Path

from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article

LINES = Path(__file__).with_name("definitions.txt")  # nouns, an empty line, other words
# Things that are named without an article.
MASS = frozenset(
    "bread cheese soup honey butter salt sugar rice milk tea coffee water juice grass sand rain snow ice wind smoke thunder soap music "
    "paper money spring summer autumn winter".split()
)
UNIQUE = frozenset("sun moon sky sea earth".split())

NOUN_QUESTIONS = Phrases(
    seen=(
        "What is {x}?", "What does the word {w} mean?", "What does {w} mean?", "Define {w}.", "Explain {w}.", "Tell me what {x} is.",
        "What's {x}?", "Do you know what {x} is?", "Can you explain what {x} is?", "Explain the word {w}.", "Meaning of {w}?",
        "Give a definition of {w}.", "What do you know about {x}?", "Describe {x}.", "I do not know the word {w}.", "Please define {w}.",
    ),
    unseen=("Could you tell me what {x} is?", "What is meant by {w}?", "In simple words, what is {x}?"),
)  # fmt: skip
OTHER_QUESTIONS = Phrases(
    seen=(
        "What does {w} mean?", "What does the word {w} mean?", "Define {w}.", "Explain {w}.", "Explain the word {w}.", "Meaning of {w}?",
        "Tell me what {w} means.", "What is the meaning of {w}?", "Can you explain {w}?", "Do you know what {w} means?", "Please define {w}.",
        "Give a definition of {w}.",
    ),
    unseen=("Could you tell me what {w} means?", "What is meant by {w}?"),
)  # fmt: skip


def parse(lines: str) -> tuple[tuple[str, str], ...]:
    pairs = [line.split(": ", 1) for line in lines.strip().splitlines()]
    return tuple((word, meaning) for word, meaning in pairs)


NOUNS, OTHERS = (parse(part) for part in LINES.read_text().split("\n\n"))


def named(word: str) -> str:
    """A word as a sentence names it: "honey", "the sun", "an apple"."""
    if word in MASS:
        return word
    return f"the {word}" if word in UNIQUE else with_article(word)


def definition(draw: Draw) -> Task:
    if draw.chance(0.8):
        word, meaning = draw.one(NOUNS)
        subject = named(word)
        question = draw.phrase(NOUN_QUESTIONS).format(x=subject, w=word)
        answer = f"{subject[0].upper()}{subject[1:]} is {meaning}."
    else:
        word, meaning = draw.one(OTHERS)
        question = draw.phrase(OTHER_QUESTIONS).format(w=word)
        answer = f"{word[0].upper()}{word[1:]} means {meaning}."
    return Task(draw.ask(question), answer, "I know this word.")
