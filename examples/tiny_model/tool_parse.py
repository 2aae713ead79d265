"""What DeepSeek's own parser makes of an answer."""

import json
from typing import Any

import deepseek_recipe as recipe

MODEL = "DeepSeek-V4.1-Flash"
TOOL = {
    "type": "function",
    "function": {"name": "any", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def parsed_calls(text: str, inside_block: bool) -> list[tuple[str, Any]] | None:
    """The (name, arguments) pairs in an answer after its reasoning; None where arguments are no JSON.

    `inside_block`: the prompt already opened the block of calls, as with a required tool choice.
    """
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "disabled"},
        "tools": [TOOL],
        "tool_choice": "required" if inside_block else "auto",
    }
    request = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "id", MODEL)
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    events = processor.push(recipe.InferenceChunk.text(text))
    events += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)) + processor.finish()
    response = recipe.ChatCompletionResponse("id", MODEL, 0, 1, 0)
    for event in events:
        assert isinstance(event, recipe.ChatCompletionChunk)
        recipe.ChatCompletionResponse.accumulate(response, event)
    calls = json.loads(response.to_json())["choices"][0]["message"].get("tool_calls") or []
    try:
        return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    except json.JSONDecodeError:
        return None
