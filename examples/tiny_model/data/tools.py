"""Tool calls in DSML, and sentences made of tool results."""

import json
from typing import Any, NamedTuple

from examples.tiny_model.data import words
from examples.tiny_model.data.chat import Turn, tool_calls_text
from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.json_tasks import as_text, field_schema, record
from examples.tiny_model.data.task import Task

PARAMETERS = (
    "city name title date time count limit query text color active amount id tags to from room days price label subject priority "
    "language currency user size"
).split()
DESCRIPTIONS = ("{v} a {n}", "{v} the {n}", "{v} one {n}", "Use this to {l} the {n}.", "{v} {n}", "Tool to {l} a {n}")

ASKS = Phrases(
    seen=(
        "{V} the {n} with {pairs}.", "I want to {v} a {n}: {pairs}", "{V} {n}, {pairs}", "Can you {v} the {n}? Use {reversed}.",
        "Please {v} a {n} with {pairs}.", "{V} the {n}: {pairs}", "Could you {v} this {n}? {pairs}", "I need to {v} the {n} ({pairs}).",
        "{V} a {n} for me, {pairs}.", "Help me {v} the {n}. Use {pairs}.", "{V} one {n} with {reversed}.",
        "Let's {v} a {n}: {pairs}.", "{V} {n} {pairs}", "Do this: {v} the {n}, {pairs}.", "With {pairs}, {v} the {n}.",
        "Time to {v} the {n}. {pairs}", "{V} my {n} please: {pairs}",
    ),
    unseen=("Would you {v} the {n} using {pairs}?", "I would like to {v} a {n}. Take {pairs}.", "Go and {v} the {n} with {pairs}"),
)  # fmt: skip
PAIR_FORMS = ("{k} {x}", "{k} = {x}", "{k}: {x}", "{k} is {x}")
JOINS = (", ", " and ", ", ", "; ")


class Tool(NamedTuple):
    verb: str
    noun: str
    definition: dict[str, Any]

    @property
    def name(self) -> str:
        return self.definition["name"]


def parameter_value(draw: Draw, key: str) -> Any:
    if key in ("city", "to", "from"):
        return draw.city()
    if key in ("name", "user"):
        return draw.name()
    if key == "date":
        return draw.date().isoformat()
    if key == "time":
        return f"{draw.integer(0, 23):02d}:{draw.integer(0, 59):02d}"
    if key in ("count", "limit", "days", "priority"):
        return draw.integer(1, 30)
    if key in ("amount", "id", "price", "size"):
        return draw.number()
    if key == "active":
        return draw.chance(0.5)
    if key == "tags":
        return [draw.word() for _ in range(draw.integer(1, 3))]
    if key == "color":
        return draw.one(words.COLORS)
    if key == "text":
        return " ".join(draw.word() for _ in range(draw.integer(2, 5)))
    return draw.word() if draw.chance(0.7) else f"{draw.word()} {draw.word()}"


def make_tool(draw: Draw) -> Tool:
    verb, noun = draw.one(words.VERBS), draw.one(words.NOUNS)
    keys = draw.some(PARAMETERS, 1, 3)
    description = draw.one(DESCRIPTIONS).format(v=verb.capitalize(), l=verb, n=noun)
    properties = {key: field_schema(parameter_value(draw, key)) for key in keys}
    parameters = {"type": "object", "properties": properties, "required": keys}
    return Tool(verb, noun, {"name": f"{verb}_{noun}", "description": description, "parameters": parameters})


def arguments_for(draw: Draw, tool: Tool) -> dict[str, Any]:
    return {key: parameter_value(draw, key) for key in tool.definition["parameters"]["required"]}


def request(draw: Draw, tool: Tool, arguments: dict[str, Any]) -> str:
    form = draw.one(PAIR_FORMS)
    join = draw.one(JOINS)
    pairs = join.join(form.format(k=k, x=as_text(x)) for k, x in arguments.items())
    turned = " and ".join(f"{as_text(x)} as {k}" for k, x in arguments.items())
    return draw.phrase(ASKS).format(V=tool.verb.capitalize(), v=tool.verb, n=tool.noun, pairs=pairs, reversed=turned)


def tool_call(draw: Draw) -> Task:
    tools = [make_tool(draw) for _ in range(draw.integer(1, 3))]
    if len({tool.name for tool in tools}) < len(tools):
        tools = tools[:1]
    wanted = tools[:2] if len(tools) > 1 and draw.chance(0.2) else tools[:1]
    calls = [(tool, arguments_for(draw, tool)) for tool in wanted]
    user = draw.ask(" ".join(request(draw, tool, arguments) for tool, arguments in calls), can_end=False)
    definitions = [tool.definition for tool in tools]
    draw.rng.shuffle(definitions)
    answer = tool_calls_text([(tool.name, arguments) for tool, arguments in calls])
    reasoning = f"I call {' and '.join(tool.name for tool, _ in calls)}."
    return Task(user, answer, reasoning, answer, tools=tuple(definitions), tool_required=draw.chance(0.12))


def tool_result(draw: Draw) -> Task:
    tool = make_tool(draw)
    arguments = arguments_for(draw, tool)
    call = tool_calls_text([(tool.name, arguments)])
    result = record(draw, 1, 3)
    text = json.dumps(result)
    verbs = {key: "are" if isinstance(value, list) else "is" for key, value in result.items()}
    sentences = [f"The {key} {verbs[key]} {as_text(value)}." for key, value in result.items()]
    history = (Turn(request(draw, tool, arguments), call, f"I call {tool.name}."),)
    user = f"<tool_result>{text}</tool_result>"
    return Task(user, " ".join(sentences), "I have the result.", text, history=history, tools=(tool.definition,))


def tool_unneeded(draw: Draw, other: Task) -> Task:
    """A question that no tool is needed for, with tools present."""
    tools = tuple(make_tool(draw).definition for _ in range(draw.integer(1, 2)))
    return other._replace(tools=tools, schema=None)
