"""JSON from a request, JSON for a schema, and look-ups in a JSON object."""

import json
from collections.abc import Callable
from typing import Any

from examples.tiny_model.data import words
from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article

FIELDS: dict[str, Callable[[Draw], Any]] = {
    "name": Draw.name, "friend": Draw.name, "owner": Draw.name, "city": Draw.city, "from": Draw.city, "to": Draw.city,
    "job": lambda d: d.one(words.JOBS), "color": lambda d: d.one(words.COLORS), "pet": lambda d: d.one(words.ANIMALS),
    "animal": lambda d: d.one(words.ANIMALS), "food": lambda d: d.one(words.FOODS), "item": Draw.word, "title": Draw.word,
    "tag": Draw.word, "age": lambda d: d.integer(4, 95), "price": Draw.number, "count": Draw.number, "id": Draw.number,
    "score": Draw.number, "year": Draw.number, "active": lambda d: d.chance(0.5), "date": lambda d: d.date().isoformat(),
    "items": lambda d: [d.word() for _ in range(d.integer(2, 4))], "country": lambda d: d.invented().capitalize(),
    "size": Draw.number, "email": lambda d: f"{d.invented()}@{d.invented()}.com", "code": lambda d: f"{d.invented().upper()}{d.number()}",
}  # fmt: skip
KEYS = list(FIELDS)
SEPARATORS = (", ", "; ", " and ", ", ")
PAIR_FORMS = ("{k} {v}", "{k}: {v}", "{k} = {v}", "{k} is {v}", "{k} -> {v}")

REQUESTS = Phrases(
    seen=(
        "Write a json object with {pairs}.", "Give me json for: {pairs}", "Make a JSON object: {pairs}",
        "Turn this into json: {pairs}", "Return json with {pairs}", "As json please: {pairs}", "Convert to JSON: {pairs}",
        "Create json from {pairs}.", "JSON for {pairs}", "I need a json object holding {pairs}.",
        "Format as JSON: {pairs}", "Can you write {pairs} as json?", "Put {pairs} into a json object.", "json: {pairs}",
        "Build a JSON record with {pairs}.", "Write this down as json: {pairs}", "{pairs} - as json please",
        "Encode {pairs} as a json object.",
    ),
    unseen=("Show {pairs} in json form.", "Please produce JSON out of {pairs}", "Save the following as a json object: {pairs}"),
)  # fmt: skip
EXTRACTIONS = Phrases(
    seen=(
        "Extract the fields as json: {text}", "Fill the json schema from this text: {text}", "Read and extract: {text}",
        "json please: {text}", "{text}\nWrite the fields as json.", "Take the data out of this text: {text}",
        "{text} Give me the json.", "Get the fields from: {text}", "Turn this text into json: {text}",
        "Text: {text}\nJSON:", "Find the fields in this sentence: {text}", "{text}\nExtract the data.",
        "Please extract json from: {text}", "What are the fields here? {text}", "Summarize as json: {text}",
        "Here is a text. {text} Reply with json only.",
    ),
    unseen=("Pull the values out of this text as json: {text}", "{text}\nNow answer with the json object.",
            "Study this text and return JSON. {text}"),
)  # fmt: skip
NAMED_EXTRACTIONS = Phrases(
    seen=(
        "Extract {keys} as json: {text}", "Give me {keys} as json. {text}", "{text}\nWrite {keys} as json.",
        "Json with {keys} please: {text}", "From this text take {keys} as a json object: {text}",
        "{text} Return {keys} in json.", "Find {keys} and answer in json: {text}", "Read this: {text}\nI want json with {keys}.",
        "Get {keys} as JSON from: {text}", "Make json with the keys {keys}: {text}", "Text: {text}\nKeys: {keys}\nJSON:",
        "What are {keys}? Answer as json. {text}", "Fill in {keys} as json from this: {text}",
        "Please extract {keys} as a JSON object: {text}", "{text}\nJSON with {keys}:",
    ),
    unseen=("Pull out {keys} as json: {text}", "{text}\nReply with {keys} as a json object.", "I need {keys} from this, in json: {text}"),
)  # fmt: skip
PEOPLE = Phrases(
    seen=(
        "{name} is {age} years old, lives in {city} and works as {a_job}. The favorite color of {name} is {color} and the pet is {a_pet}.",
        "I met {name}, {a_job} from {city}. {name} is {age}, likes {color} and has {a_pet}.",
        "My friend {name} ({age}) is {a_job}. {name} moved to {city}, bought {a_pet} and painted the door {color}.",
        "{name} works as {a_job} in {city}. At {age}, {name} still loves {color} things and keeps {a_pet}.",
        "In {city} there lives {a_job} named {name}. {name} is {age} years old, owns {a_pet} and wears {color}.",
        "Meet {name}: {age} years old, {a_job}, home in {city}, with {a_pet} and a {color} car.",
        "{name}, {age}, of {city} is {a_job}. The house is {color} and {a_pet} lives in the garden.",
        "{name} came from {city} to be {a_job}. {name} turned {age}, got {a_pet} and chose {color} as favorite color.",
        "The {color} coat belongs to {name}, who is {a_job} in {city}, {age} years old, and walks {a_pet}.",
        "{a_job_up} called {name} lives in {city} with {a_pet}. {name} is {age} and likes {color}.",
        "Name: {name}. Age: {age}. City: {city}. Job: {job}. Color: {color}. Pet: {pet}.",
        "{name} ({job}, {age}) lives in {city}, likes {color} and feeds {a_pet}.",
    ),
    unseen=("There is {a_job} in {city}, {name}, aged {age}, fond of {color}, who looks after {a_pet}.",
            "At {age}, {name} left for {city} to work as {a_job}, took {a_pet} along and rented a {color} flat."),
)  # fmt: skip
# One fact each; a text is a few of them in any order.
FACT_SENTENCES: dict[str, tuple[str, ...]] = {
    "city": ("{name} lives in {city}.", "{name} is from {city}.", "{name} moved to {city}.", "The home of {name} is {city}."),
    "age": ("{name} is {age} years old.", "{name} turned {age}.", "{name} is {age}."),
    "job": ("{name} is {a_job}.", "{name} works as {a_job}.", "The job of {name} is {job}."),
    "color": ("{name} likes {color}.", "The favorite color of {name} is {color}.", "{name} wears {color}."),
    "pet": ("{name} has {a_pet}.", "{name} owns {a_pet}.", "The pet of {name} is {a_pet}."),
}  # fmt: skip
TWO_FACTS = (
    ("{name} is {a_job} from {city}.", ("job", "city")), ("{name}, {age}, is {a_job}.", ("age", "job")),
    ("{name} from {city} has {a_pet}.", ("city", "pet")), ("{name} is {a_job} who likes {color}.", ("job", "color")),
    ("{name} is {age} years old and lives in {city}.", ("age", "city")), ("{name} works as {a_job} in {city}.", ("job", "city")),
    ("{name} has {a_pet} and likes {color}.", ("pet", "color")), ("{name} lives in {city} with {a_pet}.", ("city", "pet")),
)  # fmt: skip
LOOKUPS = Phrases(
    seen=(
        "What is the {k}?", "What is the value of {k}?", "Give me {k}.", "Which {k}?", "Read the field {k}.", "Tell me the {k}.",
        "Value of {k}?", "{k}?", "What does {k} hold?", "Look up {k}.", "Find {k} in the json.", "Print {k}.",
        "What is stored under {k}?", "Show {k}.", "Return the value for {k}.", "Get {k} from this object.",
    ),
    unseen=("Which value belongs to {k}?", "I want to see {k}.", "Read out the {k} please."),
)  # fmt: skip


def field_schema(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "string"}


def as_text(value: Any) -> str:
    """A value as a sentence writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, list) else str(value)


def record(draw: Draw, low: int, high: int) -> dict[str, Any]:
    return {key: FIELDS[key](draw) for key in draw.some(KEYS, low, high)}


def json_request(draw: Draw) -> Task:
    fields = {k: v for k, v in record(draw, 2, 5).items() if not isinstance(v, list)} or {"name": draw.name()}
    form = draw.one(PAIR_FORMS)
    pairs = draw.one(SEPARATORS).join(form.format(k=k, v=as_text(v)) for k, v in fields.items())
    question = draw.phrase(REQUESTS).format(pairs=pairs)
    schema = {"type": "json_object"} if draw.chance(0.3) else None
    answer = json.dumps(fields)
    return Task(
        draw.ask(question, question[-1] == "."),
        answer,
        f"The user wants json with {', '.join(fields)}.",
        answer,
        schema=schema,
    )


def short_text(draw: Draw) -> tuple[str, list[str]]:
    """A few sentences about one person, as a form, and the fields they tell."""
    if draw.chance(0.4):
        form, told = draw.one(TWO_FACTS)
        return form, ["name", *told]
    told_fields = draw.some(list(FACT_SENTENCES), 1, 4)
    return " ".join(draw.one(FACT_SENTENCES[field]) for field in told_fields), ["name", *told_fields]


def json_schema(draw: Draw) -> Task:
    person: dict[str, Any] = {
        "name": draw.name(), "city": draw.city(), "age": draw.integer(4, 95), "job": draw.one(words.JOBS),
        "color": draw.one(words.COLORS), "pet": draw.one(words.ANIMALS),
    }  # fmt: skip
    slots = {"a_job": with_article(person["job"]), "a_pet": with_article(person["pet"]), **person}
    slots["a_job_up"] = slots["a_job"][0].upper() + slots["a_job"][1:]
    form, known = short_text(draw) if draw.chance(0.4) else (draw.phrase(PEOPLE), list(person))
    text = form.format(**slots)
    wanted = draw.some(known, 2, min(4, len(known)))
    fields = {key: person[key] for key in wanted}
    answer = json.dumps(fields)
    reasoning = f"I need {', '.join(wanted)}."
    key = json.dumps(person)
    if draw.chance(0.5):
        schema = {"type": "object", "properties": {k: field_schema(v) for k, v in fields.items()}, "required": wanted}
        question = draw.ask(draw.phrase(EXTRACTIONS).format(text=text), can_end=False)
        return Task(question, answer, reasoning, key, schema=schema)
    article = "the " if draw.chance(0.5) else ""
    named = [article + k for k in wanted]
    keys = ", ".join(named[:-1]) + draw.one((" and ", ", ", " and ")) + named[-1]
    question = draw.ask(draw.phrase(NAMED_EXTRACTIONS).format(keys=keys, text=text), can_end=False)
    return Task(question, answer, reasoning, key)


def json_lookup(draw: Draw) -> Task:
    fields = record(draw, 3, 7)
    wanted = draw.one(list(fields))
    text = json.dumps(fields)
    question = draw.ask(draw.phrase(LOOKUPS).format(k=wanted))
    user = f"{question}\n{text}" if draw.chance(0.25) else f"{text}\n{question}"
    return Task(user, as_text(fields[wanted]), f"I look for {wanted}.", text + wanted)
