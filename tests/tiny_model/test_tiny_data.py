"""The synthetic text: rendering equals deepseek-recipe's, answers are right, held-out values and templates stay out."""

import json
import re
from itertools import islice

import deepseek_recipe as recipe
import pytest

from examples.tiny_model.data import mixture
from examples.tiny_model.data.arithmetic import addition_steps, subtraction_steps
from examples.tiny_model.data.chat import (
    ASSISTANT,
    BOS,
    CALLS_HEADER,
    EOS,
    THINK,
    THINK_END,
    USER,
    Chat,
    Turn,
    render,
    tool_calls_text,
)
from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.tool_parse import parsed_calls

TOOL = {
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ARGUMENTS = {"city": "Oslo", "days": 3, "tags": ["a", "b"], "active": True}
CALL = tool_calls_text([("get_weather", ARGUMENTS)])


def recipe_prompt(messages: list, **options: object) -> str:
    conversation = recipe.Conversation(messages, **options)
    return recipe.DeepseekV41Encoding().render_conversation(conversation).prompt


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("system", ["", "Be kind."])
def test_prompt_with_history_equals_recipe(thinking, system):
    turns = (Turn("hi", "yo", "hm"), Turn("and now?", "bye", "well"))
    messages = [recipe.SystemMessage(system)] if system else []
    messages += [
        recipe.UserMessage("hi"),
        recipe.AssistantMessage("yo", reasoning_content="hm"),
        recipe.UserMessage("and now?"),
    ]
    prompt, answer = render(Chat(turns, system, thinking=thinking))
    assert prompt == recipe_prompt(messages, thinking_mode=thinking)
    assert answer == ("well</think>bye" if thinking else "bye") + EOS


@pytest.mark.parametrize(("effort", "name"), [(50, "low"), (75, "high"), (100, "max")])
def test_reasoning_effort_equals_recipe(effort, name):
    ours, _ = render(Chat((Turn("hi", ""),), thinking=True, effort=effort))
    assert ours == recipe_prompt([recipe.UserMessage("hi")], thinking_mode=True, reasoning_effort=name)


@pytest.mark.parametrize("thinking", [False, True])
def test_tool_loop_equals_recipe(thinking):
    turns = (Turn("weather?", CALL, "I call."), Turn('<tool_result>{"x": 1}</tool_result>', "fine"))
    definition = recipe.ToolDefinition(TOOL["name"], TOOL["description"], TOOL["parameters"])
    call = recipe.ToolCall("c1", "get_weather", json.dumps(ARGUMENTS))
    messages = [
        recipe.UserMessage("weather?"),
        recipe.AssistantMessage("", reasoning_content="I call.", tool_calls=[call]),
        recipe.ToolMessage('{"x": 1}', "c1"),
    ]
    ours, _ = render(Chat(turns, tools=(TOOL,), thinking=thinking))
    assert ours == recipe_prompt(messages, thinking_mode=thinking, tools=[definition])


def test_required_call_and_schema_equal_recipe():
    definition = recipe.ToolDefinition(TOOL["name"], TOOL["description"], TOOL["parameters"])
    prompt, answer = render(Chat((Turn("go", CALL),), tools=(TOOL,), tool_required=True))
    messages = [recipe.UserMessage("go")]
    assert prompt == recipe_prompt(messages, thinking_mode=False, tools=[definition], tool_choice="required")
    assert CALLS_HEADER + answer == CALL + EOS
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    ours, _ = render(Chat((Turn("go", ""),), "S.", schema=schema))
    assert ours == recipe_prompt([recipe.SystemMessage("S."), *messages], thinking_mode=False, response_schema=schema)
    ours, _ = render(Chat((Turn("json", ""),), schema={"type": "json_object"}))
    theirs = recipe_prompt([recipe.UserMessage("json")], thinking_mode=False, response_format="json_object")
    assert ours == theirs


def test_every_tool_answer_parses_to_calls_of_offered_tools():
    documents = [d for d in islice(mixture.training_documents(5), 4000) if d.family == "tool_call"]
    assert len(documents) > 100
    for document in documents:
        text = document.answer.removesuffix(EOS)
        calls = parsed_calls(
            text.partition(THINK_END)[2] if document.is_thinking else text, document.prompt.endswith(CALLS_HEADER)
        )
        assert calls
        for name, arguments in calls:
            start = document.prompt.index(f'{{"name": "{name}"')
            definition, _ = json.JSONDecoder().raw_decode(document.prompt[start:])
            assert list(arguments) == definition["parameters"]["required"]


def test_training_documents_repeat_by_seed_and_differ_between_seeds():
    first, again, other = (list(islice(mixture.training_documents(seed), 300)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def final_question(document) -> tuple[str, str]:
    return document.prompt.rpartition(USER)[2], document.answer.rpartition(THINK_END)[2].removesuffix(EOS)


def test_arithmetic_and_list_answers_are_right():
    documents = mixture.evaluation_family("arithmetic", 40, 8) | mixture.evaluation_family("list_sort", 40, 8)
    for name in ("arithmetic", "arithmetic/think"):
        for document in documents[name]:
            question, answer = final_question(document)
            a, b = map(int, re.findall(r"\d+", question)[:2])
            assert int(answer) in (a + b, a - b, a * b)
    for document in documents["list_sort"]:
        _, answer = final_question(document)
        items = answer.split(", ")
        assert items == sorted(items, key=lambda x: (int(x), "") if x.isdigit() else (0, x))
        assert all(item in document.prompt.lower() for item in items)


def test_carry_steps_end_in_the_result():
    for a, b in ((0, 0), (999, 1), (507, 498), (12, 345)):
        assert addition_steps(a, b).endswith(f"\n{a + b}")
        assert subtraction_steps(max(a, b), min(a, b)).endswith(f"\n{abs(a - b)}")


def test_held_out_values_never_train_and_are_what_is_evaluated(monkeypatch):
    keys = []
    build = mixture.document

    def noting(family, task, *rest):
        keys.append(task.key)
        return build(family, task, *rest)

    monkeypatch.setattr(mixture, "document", noting)
    list(islice(mixture.training_documents(4), 3000))
    assert sum(map(bool, keys)) > 1000
    assert not any(mixture.is_held_out(key) for key in keys)
    keys.clear()
    for name in ("dates", "json_schema", "list_sort", "tool_call", "recall_80"):
        mixture.evaluation_family(name, 3, 4)
    assert all(mixture.is_held_out(key) for key in keys if key)


def all_phrases() -> list[Phrases]:
    modules = vars(mixture)
    rooms = (
        "arithmetic",
        "code",
        "dates",
        "definitions",
        "drills",
        "json_tasks",
        "lists",
        "recall",
        "stories",
        "tables",
        "tools",
    )
    found = [value for room in rooms for value in vars(modules[room]).values() if isinstance(value, Phrases)]
    return found + [table.phrases for table in modules["tables"].TABLES]


def test_reserved_templates_are_apart_and_many_ways_are_trained():
    banks = all_phrases()
    assert len(banks) > 25
    for bank in banks:
        assert bank.unseen and not set(bank.seen) & set(bank.unseen)
        assert len(set(bank.seen)) == len(bank.seen)


def test_unseen_switch_uses_only_reserved_templates():
    bank = Phrases(("a", "b"), ("z",))
    assert {Draw(1, unseen_templates=True).phrase(bank) for _ in range(5)} == {"z"}
    drawn = Draw(1)
    assert {drawn.phrase(bank) for _ in range(50)} == {"a", "b"}


def test_half_of_reasoned_chats_think_and_plain_stories_follow_a_bare_bos():
    documents = list(islice(mixture.training_documents(6), 4000))
    chats = [d for d in documents if ASSISTANT in d.prompt and not d.prompt.endswith(CALLS_HEADER)]
    assert 0.4 < sum(d.prompt.endswith(THINK) for d in chats) / len(chats) < 0.6
    bare = [d for d in documents if d.prompt == BOS]
    assert {d.family for d in bare} == {"story_plain"}
    assert len(bare) / len(documents) > 0.02


def test_articles_agree_in_answers():
    answers = " ".join(d.answer for d in islice(mixture.training_documents(7), 6000)).lower()
    vowel_words = "orange|apple|owl|ant|elephant|engineer|actor|artist|island|eagle|onion"
    assert re.search(rf"\ban (?:{vowel_words})\b", answers)
    assert not re.search(rf"\ba (?:{vowel_words})\b", answers)
