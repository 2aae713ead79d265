"""Markers that no client reads."""

import json

import deepseek_recipe as recipe
from read_answers import EOS, asked

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.answers import Piece
from deepinfer.serving.codec import Codec


def test_begins_of_turns_beyond_the_answer_are_no_text(chat_tokenizer: BpeTokenizer) -> None:
    """Where ignore_eos goes on after the end; what is spelled in letters stays."""
    codec = Codec(chat_tokenizer, eos_token_ids=[1])
    prompt = asked(codec, SamplingParams(ignore_eos=True))
    ids = chat_tokenizer.encode(f"a{EOS}<｜User｜>b<｜Assistant｜>c")
    assert chat_tokenizer.token_id("<｜User｜>") in ids
    reader = codec.answer_reader(prompt, recipe.ChatCompletionRequest.chunk_generator(prompt.request, "a", "m"))
    chunks = reader.push(Piece(index=0, token_ids=ids, finish_reason="length"))
    deltas = [json.loads(chunk.to_json())["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "abc" and reader.num_tokens == len(ids)
