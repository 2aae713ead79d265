"""Dates between words and ISO form, their parts, and the days and months in order."""

from examples.tiny_model.data import words
from examples.tiny_model.data.draws import Draw, Phrases, in_words
from examples.tiny_model.data.task import Task

TO_WORDS = Phrases(
    seen=(
        "Write the date {d} in words.", "Spell out {d}", "{d} in words?", "What date is {d}?", "Write {d} in words.",
        "Say {d} in words.", "Convert {d} to words.", "Which day is {d}?", "{d} written out?", "Read the date {d}.",
        "How do I say {d}?", "Turn {d} into words.", "Express {d} in words.", "The date {d} in words, please.",
        "Put {d} in words.", "{d} as a date in words",
    ),
    unseen=("Write out {d} for me.", "How is {d} written in words?", "Spell the date {d} in full."),
)  # fmt: skip
TO_ISO = Phrases(
    seen=(
        "Write {d} as an ISO date.", "ISO format of {d}?", "Convert {d} to ISO", "{d} as YYYY-MM-DD", "Give {d} in ISO format.",
        "What is {d} in ISO?", "Turn {d} into an ISO date.", "{d} in the form YYYY-MM-DD?", "ISO date for {d}",
        "Write {d} in the form YYYY-MM-DD.", "Format {d} as an ISO date.", "Change {d} to YYYY-MM-DD.",
        "Express {d} as ISO.", "{d} to ISO please", "Give me {d} as YYYY-MM-DD.", "Rewrite {d} as an ISO date.",
    ),
    unseen=("Put {d} into ISO form.", "Show {d} as an ISO date.", "I need {d} as YYYY-MM-DD."),
)  # fmt: skip
MONTH_OF = Phrases(
    seen=(
        "Which month is {d}?", "Name the month of {d}.", "What month is {d} in?", "Month of {d}?", "Tell me the month of {d}.",
        "In which month is {d}?", "Give the month of {d}.", "What is the month in {d}?", "{d}: which month?",
        "Which month does {d} fall in?", "Say the month of {d}.", "The month of {d}, please.", "Month name for {d}?",
        "Find the month of {d}.", "What month does {d} belong to?",
    ),
    unseen=("Which month do you see in {d}?", "I want the month of {d}.", "{d} is in what month?"),
)  # fmt: skip
YEAR_OF = Phrases(
    seen=(
        "Which year is {d}?", "What is the year in {d}?", "Year of {d}?", "Tell me the year of {d}.", "In which year is {d}?",
        "Give the year of {d}.", "What year is {d}?", "{d}: which year?", "Name the year of {d}.", "Find the year in {d}.",
        "Say the year of {d}.", "The year of {d}, please.", "Only the year of {d}.", "What year does {d} fall in?",
        "Which year does {d} belong to?",
    ),
    unseen=("Which year do you see in {d}?", "I want the year of {d}.", "{d} is in what year?"),
)  # fmt: skip
AFTER = Phrases(
    seen=(
        "What comes after {x}?", "What is the {kind} after {x}?", "Which {kind} follows {x}?", "Which {kind} comes after {x}?",
        "Next {kind} after {x}?", "What {kind} is next after {x}?", "After {x} comes which {kind}?", "The {kind} after {x}?",
        "Name the {kind} after {x}.", "Tell me the {kind} that follows {x}.",
    ),
    unseen=("Which {kind} is right after {x}?", "{x} is followed by which {kind}?"),
)  # fmt: skip
BEFORE = Phrases(
    seen=(
        "What comes before {x}?", "What is the {kind} before {x}?", "Which {kind} comes before {x}?", "The {kind} before {x}?",
        "Name the {kind} before {x}.", "Tell me the {kind} that comes before {x}.", "What {kind} is just before {x}?",
    ),
    unseen=("Which {kind} is right before {x}?",),
)  # fmt: skip


def dates(draw: Draw) -> Task:
    date = draw.date()
    iso, long_form = date.isoformat(), in_words(date)
    us_form = f"{words.MONTHS[date.month - 1]} {date.day}, {date.year}"
    kind = draw.integer(0, 4)
    if kind == 0:
        question, answer = draw.phrase(TO_WORDS).format(d=iso), long_form
    elif kind == 1:
        question, answer = draw.phrase(TO_ISO).format(d=long_form), iso
    elif kind == 2:
        question, answer = draw.phrase(TO_ISO).format(d=us_form), iso
    elif kind == 3:
        question, answer = draw.phrase(MONTH_OF).format(d=iso), words.MONTHS[date.month - 1]
    else:
        question, answer = draw.phrase(YEAR_OF).format(d=draw.one((iso, long_form, us_form))), str(date.year)
    return Task(draw.ask(question), answer, f"Day {date.day}, month {date.month}, year {date.year}.", iso)


def calendar(draw: Draw) -> Task:
    """What comes before or after a weekday or a month: a fact, never held out."""
    names, kind = draw.one(((words.WEEKDAYS, "day"), (words.MONTHS, "month")))
    index = draw.integer(0, len(names) - 1)
    step, phrases = draw.one(((1, AFTER), (-1, BEFORE)))
    question = draw.phrase(phrases).format(x=names[index], kind=kind)
    place = "after" if step == 1 else "before"
    neighbour = names[(index + step) % len(names)]
    return Task(
        draw.ask(question), f"The {kind} {place} {names[index]} is {neighbour}.", f"I know the order of the {kind}s."
    )
