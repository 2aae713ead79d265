"""An answer of a chat taken apart while it grows: what is content, and what is thinking."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
import msgspec

from deepinfer.sampling.text_stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.serving.codec import ChatPrompt

MODEL = "DeepSeek-V4.1-Flash"  # the library's name of this format, whatever the weights are


class ChatReader:
    """Reads one answer. Tool calls are no text: `Codec.parse` gives them when all is there."""

    def __init__(self, prompt: ChatPrompt, tokenizer: BpeTokenizer, eos_token_ids: frozenset[int]) -> None:
        self._text = raw_stream(tokenizer, prompt.params)
        self._eos_token_ids = eos_token_ids
        self._processor = processor(prompt)

    def push(self, token_ids: Sequence[int], *, last: bool = False) -> tuple[str, str]:
        """What the tokens add to (content, reasoning); `last` says that no more will come."""
        text, _ = self._text.push([token_id for token_id in token_ids if token_id not in self._eos_token_ids])
        if last:
            text += self._text.finish()
        news = self._processor.push(recipe.InferenceChunk.text(text, len(token_ids)))
        if last:
            news += self._processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
            news += self._processor.finish()
        deltas = [choice["delta"] for chunk in news for choice in json.loads(chunk.to_json())["choices"]]
        content = "".join(delta.get("content") or "" for delta in deltas)
        return content, "".join(delta.get("reasoning_content") or "" for delta in deltas)


def raw_stream(tokenizer: BpeTokenizer, params: SamplingParams) -> TextStream:
    """The text of an answer with markers such as </think> kept, cut at stop strings."""
    return TextStream(tokenizer, msgspec.structs.replace(params, skip_special_tokens=False))


def processor(prompt: ChatPrompt) -> Any:
    """The library's parser for one answer to this prompt."""
    chunks = recipe.ChatCompletionRequest.chunk_generator(prompt.request, "answer", MODEL)
    return recipe.StreamProcessor(chunks, prompt.request.parsing_options)
