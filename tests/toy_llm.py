"""A real engine and a real sampler on a toy model: after byte b comes byte b + 1, and after "z" the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from deepinfer.api import LLM
from deepinfer.engine.engine import Engine
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import SampleInput, SamplingParams, StepInput
from deepinfer.sampling.sampler import Sampler
from deepinfer.sampling.tokenizer import BpeTokenizer

FIRST = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
MARKERS = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"]
VOCAB = 272  # six more than the tokenizer has, as models pad
BOS, EOS = 0, 1


def make_tokenizer(folder: Path) -> BpeTokenizer:
    """Bytes as tokens, DeepSeek's markers after them."""
    path = folder / "tokenizer.json"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=259, special_tokens=FIRST, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([], trainer)
    bpe.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in MARKERS])
    bpe.save(str(path))
    return BpeTokenizer(path)


class ToyExecutor:
    """Logits depend on the newest token alone. `broken_at` gives NaN where this token is the newest."""

    def __init__(self, tokenizer: BpeTokenizer, num_slots: int) -> None:
        self.times = ExecutorTimes()
        self.closed = False
        self.on_step = lambda: None
        self.broken_at: int | None = None
        id_of = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
        self.next_id = np.full(VOCAB, id_of[b"a"])
        for byte in range(255):
            self.next_id[id_of[bytes([byte])]] = id_of[bytes([byte + 1])]
        self.next_id[id_of[b"z"]] = EOS
        self.sampler = Sampler(VOCAB, num_slots, [EOS], tokenizer.text_bytes(VOCAB))
        self.wants_prompt_logprobs: dict[int, bool] = {}  # slot → of the request in it
        self._steps: list = []

    @property
    def failures(self) -> dict[int, str]:
        return self.sampler.failures

    def prepare(self, params: SamplingParams) -> None:
        self.sampler.prepare(params)

    def admit(self, slot, request) -> None:
        self.wants_prompt_logprobs[slot] = request.params.prompt_logprobs is not None
        self.sampler.admit(slot, request)

    def release(self, slot: int) -> None:
        self.sampler.release(slot)

    def poison(self, blocks, slot) -> None:
        pass

    def submit(self, step: StepInput) -> None:
        self.on_step()
        self._steps.append(step)

    def sample(self, sample: SampleInput) -> None:
        step = self._steps.pop(0)
        output = self.sampler.sample(self._logits(step.token_ids[step.sample_rows]), sample)
        for s, slot in enumerate(step.state_slots):
            rows = np.arange(step.row_starts[s], step.row_starts[s + 1])
            positions = step.positions[rows] + 1
            inside = positions < self.sampler._num_prompt_N[slot]
            if self.wants_prompt_logprobs[slot] and inside.any():
                logits = self._logits(step.token_ids[rows[inside]])
                output.prompt_logprobs[s] = self.sampler.prompt_logprobs(slot, positions[inside], logits)
        self._steps.append(output)

    def collect(self):
        return self._steps.pop(0)

    def close(self) -> None:
        self.closed = True

    def _logits(self, token_ids: np.ndarray) -> np.ndarray:
        logits = np.zeros((len(token_ids), VOCAB), np.float32)
        logits[np.arange(len(token_ids)), self.next_id[token_ids]] = 8.0
        if self.broken_at is not None:
            logits[token_ids == self.broken_at] = np.nan
        return logits


def make_llm(tokenizer: BpeTokenizer | None, full: BpeTokenizer | None = None) -> LLM:
    """An LLM around the toy model, built past the configuration."""
    limits = EngineLimits(
        vocab_size=VOCAB,
        ngram_size=3,
        max_model_len=512,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        max_prefill_tokens=32,
        num_blocks=12,
        eos_token_ids=(EOS,),
    )
    llm = LLM.__new__(LLM)
    engine = Engine(ToyExecutor(full or tokenizer, limits.max_num_seqs), limits, seed_entropy=1)
    llm._start(engine, tokenizer, SamplingParams(temperature=0.0, max_tokens=64), BOS)
    return llm
