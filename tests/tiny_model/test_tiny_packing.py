"""Tokenizer and packing: ids, loss weights, alignment, replay floors."""

import hashlib
import json
from itertools import islice
from pathlib import Path

import deepseek_recipe as recipe
import numpy as np
import pytest
from tokenizers import Tokenizer

from deepinfer.arch.config import parse_config
from deepinfer.model.checkpoint.tokens import engram_classes
from examples.tiny_model import packing
from examples.tiny_model.data.chat import BOS, EOS, LEADING_SPECIALS, TRAILING_SPECIALS
from examples.tiny_model.data.mixture import Document, training_documents
from examples.tiny_model.tokenizer import VOCAB_SIZE, train_tokenizer

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "deepinfer" / "assets" / "v41_tiny" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def test_vocabulary_has_the_specials_where_the_config_says(tokenizer):
    config = parse_config(json.loads((ROOT / "examples" / "tiny_model" / "config.json").read_text()))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE == config.vocab_size
    assert [tokenizer.token_to_id(text) for text in LEADING_SPECIALS] == [0, 1, 2]
    first = VOCAB_SIZE - len(TRAILING_SPECIALS)
    assert [tokenizer.token_to_id(text) for text in TRAILING_SPECIALS] == list(range(first, VOCAB_SIZE))
    assert config.image_token_id == tokenizer.token_to_id("<｜image｜>")
    assert config.dspark_noise_token_id == tokenizer.token_to_id("<｜System｜>")
    assert int(engram_classes(TOKENIZER, VOCAB_SIZE).max()) + 1 == config.engram_compressed_vocab_size


def test_recipe_encodes_a_prompt_to_the_same_ids(tokenizer):
    encoding = recipe.DeepseekV41Encoding().with_tokenizer(recipe.Tokenizer.from_file(str(TOKENIZER)))
    messages = [recipe.SystemMessage("Be kind."), recipe.UserMessage("Grüße 1234, ok?\n\t{}")]
    conversation = recipe.Conversation(messages, thinking_mode=True)
    prompt = recipe.DeepseekV41Encoding().render_conversation(conversation).prompt
    assert encoding.encode(conversation) == tokenizer.encode(prompt, add_special_tokens=False).ids


def test_digits_stand_alone_and_text_survives(tokenizer):
    text = "In 2024: 348 + 275 = 623 — ünïcode 漢字 🙂"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert [t for t in tokenizer.encode("2024", add_special_tokens=False).tokens] == list("2024")


@pytest.mark.slow
def test_training_the_tokenizer_gives_the_shipped_file(tmp_path):
    train_tokenizer().save(str(tmp_path / "tokenizer.json"))
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "tokenizer.json", TOKENIZER)]
    assert digests[0] == digests[1]


def test_answers_weigh_more_than_prompts_and_short_ones_most(tokenizer):
    long_answer = "a fox and a dog went to the river to see a boat" + EOS
    documents = [
        Document("x", f"{BOS}<｜User｜>hi<｜Assistant｜></think>", "yes" + EOS, False),
        Document(
            "x",
            f"{BOS}<｜User｜>hi<｜Assistant｜></think>well{EOS}<｜User｜>so<｜Assistant｜></think>",
            long_answer,
            False,
        ),
    ]
    short, long = packing.encode(tokenizer, documents)
    assert short.weights[0] == long.weights[0] == 0
    assert set(short.weights[short.prompt_tokens :]) == {packing.SHORT_ANSWER_WEIGHT}
    assert set(long.weights[long.prompt_tokens :]) == {packing.ANSWER_WEIGHT}
    history = tokenizer.encode("well" + EOS, add_special_tokens=False).ids
    start = list(long.ids).index(history[0])
    assert set(long.weights[start : start + len(history)]) == {packing.ANSWER_WEIGHT}
    prompt_weights = np.delete(long.weights[: long.prompt_tokens], np.r_[0, start : start + len(history)])
    assert set(prompt_weights) == {packing.PROMPT_WEIGHT}


@pytest.mark.parametrize("alignment", [2, 8])
def test_documents_are_packed_whole_aligned_and_without_overlap(tokenizer, alignment):
    encoded = packing.encode(tokenizer, list(islice(training_documents(3, long_context=True), 400)))
    batch, placed = packing.pack(encoded, 4, 2048, alignment, np.random.default_rng(1))
    covered = np.zeros(batch.ids.shape, dtype=int)
    floors = 0
    for place in placed:
        document = encoded[place.document]
        span = slice(place.start, place.start + len(document.ids))
        assert place.start % alignment == 0
        assert (batch.ids[place.row, span] == document.ids).all()
        assert (batch.weights[place.row, span] == document.weights).all()
        covered[place.row, span] += 1
        floor = set(batch.floor[place.row, span])
        floors += floor != {0}
        assert floor in ({0}, {place.start + document.prompt_tokens - packing.REPLAY_KEEP})
    assert covered.max() == 1
    assert (batch.ids[covered == 0] == packing.PAD_ID).all() and (batch.weights[covered == 0] == 0).all()
    assert covered.mean() > 0.9 and floors > 0
