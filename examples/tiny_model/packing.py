"""From documents to packed rows: token ids, loss weights, and where bounded replay would cut.

Documents start at multiples of an alignment (2: pairs of the ratio-2 compressor; 8: candidate blocks) and fill rows best fit.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from examples.tiny_model.data.chat import ASSISTANT
from examples.tiny_model.data.mixture import Document, training_documents

BOS_ID, EOS_ID, PAD_ID = 0, 1, 2
# Loss weights, stored in 1/40: a document's prompt teaches a little, short answers count more, history answers as answers.
WEIGHT_UNIT = 40
PROMPT_WEIGHT = 4
ANSWER_WEIGHT = 40
SHORT_ANSWER_WEIGHT = 100
SHORT_ANSWER_TOKENS = 8
REPLAY_KEEP = 140  # prompt rows that the upper layers keep: the window of 128 and room for a rejected draft
GIVE_UP_AFTER = 40  # documents that fit nowhere before a batch counts as full


class Encoded(NamedTuple):
    ids: np.ndarray  # int64
    weights: np.ndarray  # uint8, of each token as a target
    prompt_tokens: int


class PackedBatch(NamedTuple):
    ids: np.ndarray  # int16 [rows, tokens]
    weights: np.ndarray  # uint8 [rows, tokens]
    floor: np.ndarray  # int16 [rows, tokens]: lowest window position above the replay boundary; 0 = no cut


class Placement(NamedTuple):
    """Where a document went."""

    document: int  # index in the stream
    row: int
    start: int


def encode(tokenizer: Tokenizer, documents: list[Document]) -> list[Encoded]:
    """Tokenise prompts and answers apart, as a served request would be, and weigh the targets."""
    assistant_id = tokenizer.token_to_id(ASSISTANT)
    assert assistant_id is not None, "every tokenizer of this format has the assistant mark"
    prompts = tokenizer.encode_batch_fast([d.prompt for d in documents], add_special_tokens=False)
    answers = tokenizer.encode_batch_fast([d.answer for d in documents], add_special_tokens=False)
    encoded = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = np.array(prompt.ids + answer.ids, dtype=np.int64)
        weights = np.full(len(ids), PROMPT_WEIGHT, dtype=np.uint8)
        _weigh_history(ids, weights, assistant_id)
        short = len(answer.ids) <= SHORT_ANSWER_TOKENS
        weights[len(prompt.ids) :] = SHORT_ANSWER_WEIGHT if short else ANSWER_WEIGHT
        weights[0] = 0
        encoded.append(Encoded(ids, weights, len(prompt.ids)))
    return encoded


def _weigh_history(ids: np.ndarray, weights: np.ndarray, assistant_id: int) -> None:
    """Answers of earlier turns: what lies between an assistant mark (and its think mark) and the end of sentence."""
    position = np.arange(len(ids))
    last_assistant = np.maximum.accumulate(np.where(ids == assistant_id, position, -1))
    last_end = np.maximum.accumulate(np.where(ids == EOS_ID, position, -1))
    end_before = np.concatenate(([-1], last_end[:-1]))
    weights[(last_assistant > end_before) & (position > last_assistant + 1)] = ANSWER_WEIGHT


def pack(
    stream: Iterable[Encoded], rows: int, tokens: int, alignment: int, replay_rng: np.random.Generator | None
) -> tuple[PackedBatch, list[Placement]]:
    """Best-fit a stream of documents into `rows` × `tokens`. With `replay_rng`, half of the documents get a replay floor."""
    ids = np.full((rows, tokens), PAD_ID, dtype=np.int16)
    weights = np.zeros((rows, tokens), dtype=np.uint8)
    floor = np.zeros((rows, tokens), dtype=np.int16)
    fill = np.zeros(rows, dtype=np.int64)
    placed: list[Placement] = []
    misses = 0
    for index, document in enumerate(stream):
        length = len(document.ids)
        if length > tokens:
            continue
        fits = tokens - fill >= length
        if not fits.any():
            misses += 1
            if misses > GIVE_UP_AFTER:
                break
            continue
        row = int(np.where(fits, fill, -1).argmax())
        start = int(fill[row])
        span = slice(start, start + length)
        ids[row, span], weights[row, span] = document.ids, document.weights
        if replay_rng is not None and document.prompt_tokens > REPLAY_KEEP and replay_rng.random() < 0.5:
            floor[row, span] = start + document.prompt_tokens - REPLAY_KEEP
        fill[row] += -(-length // alignment) * alignment
        placed.append(Placement(index, row, start))
    return PackedBatch(ids, weights, floor), placed


def batches(
    tokenizer: Tokenizer, seed: int, rows: int, tokens: int, alignment: int, long_context: bool
) -> Iterator[PackedBatch]:
    """Endless training batches."""
    documents = training_documents(seed, long_context)
    replay_rng = np.random.default_rng(seed) if long_context else None

    def encoded() -> Iterator[Encoded]:
        while True:
            yield from encode(tokenizer, list(islice(documents, 256)))

    stream = encoded()
    while True:
        yield pack(stream, rows, tokens, alignment, replay_rng)[0]
