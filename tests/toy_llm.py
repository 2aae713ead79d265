"""A real engine and a real sampler on a toy model: after byte b comes byte b + 1, and after "z" the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from toy_executor import SomeDrafts, mix

from deepinfer.api import LLM
from deepinfer.cache.prefix_cache import PrefixCache
from deepinfer.cache.replay import Replay
from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.live_rows import expand, live_rows
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Drafts, SampleInput, SamplingParams, StepOutput, StepPlan
from deepinfer.sampling.sampler import Sampler
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.speculation.coupled import CoupledVerifier

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
    """Logits depend on the newest token alone. `broken_at` gives NaN where this token is the newest.

    `acceptance` is the chance that a draft comes from the model's own logits; else they are those of the next token.
    """

    def __init__(self, tokenizer: BpeTokenizer, limits: EngineLimits, acceptance: float = 0.7) -> None:
        self.times = ExecutorTimes()
        self.closed = False
        self.on_step = lambda: None
        self.broken_at: int | None = None
        id_of = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
        self.next_id = np.full(VOCAB, id_of[b"a"])
        for byte in range(255):
            self.next_id[id_of[bytes([byte])]] = id_of[bytes([byte + 1])]
        self.next_id[id_of[b"z"]] = EOS
        self.sampler = Sampler(VOCAB, limits.max_num_seqs, [EOS], tokenizer.text_bytes(VOCAB))
        self.verifier = CoupledVerifier(self.sampler)
        self.acceptance = acceptance
        self.state = DecodeState(limits.max_num_seqs, limits.max_model_len, limits.ngram_size, limits.draft_depth)
        self.prompt_tokens: dict[int, int] = {}  # slot → of the request in it, where its log probabilities are wanted
        self._resolved: list = []
        self._outputs: list[StepOutput] = []

    def prepare(self, params: SamplingParams) -> None:
        self.sampler.prepare(params)

    def admit(self, slot, request, length_end) -> None:
        self.prompt_tokens.pop(slot, None)
        if request.params.prompt_logprobs is not None:
            self.prompt_tokens[slot] = len(request.prompt_ids)
        self.sampler.admit(slot, request)
        self.state.admit(slot, request.prompt_ids, length_end)

    def release(self, slot: int) -> None:
        self.sampler.release(slot)

    def poison(self, blocks, slot) -> None:
        pass

    def submit(self, plan: StepPlan) -> None:
        self.on_step()
        self._resolved.append((self.state.resolve(plan), plan.draft))

    def sample(self, sample: SampleInput) -> None:
        resolved, then_draft = self._resolved.pop(0)
        step = resolved.step
        rows, sample_rows = live_rows(resolved, sample)
        verified = self.verifier.verify(self._logits(step.token_ids[sample_rows]), rows)
        self.state.append(rows.slots, verified.token_ids, verified.counts)
        output = expand(verified, sample.alive, resolved.num_checked)
        output.num_rows = step.num_rows
        for s, slot in enumerate(step.state_slots.tolist()):
            at = np.arange(step.row_starts[s], step.row_starts[s + 1])
            positions = step.positions[at] + 1
            inside = positions < self.prompt_tokens.get(slot, 0)
            if inside.any():
                logits = self._logits(step.token_ids[at[inside]])
                output.prompt_logprobs[s] = self.sampler.prompt_logprobs(slot, positions[inside], logits)
        if then_draft and self.state.depth:
            output.drafts = self._draft(rows.slots, verified.failed, sample.alive)
        self._outputs.append(output)

    def _draft(self, slots: np.ndarray, failed: np.ndarray, alive: np.ndarray | None) -> Drafts:
        depth, number = self.state.depth, len(slots) if alive is None else len(alive)
        drafts = Drafts(np.full((number, depth), -1, np.int64), np.full((number, depth), 0.5, np.float32))
        going = self.state.wants_drafts(slots) & ~failed
        slots, places = slots[going], (np.arange(number) if alive is None else np.flatnonzero(alive))[going]
        newest, positions = (
            self.state.tokens_NL[slots, self.state.pad + self.state.num_tokens[slots] - 1],
            self.state.num_tokens[slots],
        )
        for k in range(depth):
            logits = self._logits(newest)
            for s, slot in enumerate(slots.tolist()):
                if mix(slot, int(positions[s]), k) % 1000 >= 1000 * self.acceptance:
                    logits[s] = np.roll(logits[s], 1)
            newest = self.verifier.choose(slots, positions + k, k, logits, {})
            drafts.token_ids[places, k] = newest
        self.state.keep_drafts(slots, Drafts(drafts.token_ids[places], drafts.confidence[places]))
        return drafts

    def collect(self) -> StepOutput:
        return self._outputs.pop(0)

    def close(self) -> None:
        self.closed = True

    def _logits(self, token_ids: np.ndarray) -> np.ndarray:
        logits = np.zeros((len(token_ids), VOCAB), np.float32)
        logits[np.arange(len(token_ids)), self.next_id[token_ids]] = 8.0
        if self.broken_at is not None:
            logits[token_ids == self.broken_at] = np.nan
        return logits


def make_llm(
    tokenizer: BpeTokenizer | None,
    full: BpeTokenizer | None = None,
    *,
    draft_depth: int = 0,
    async_depth: int = 0,
    acceptance: float = 0.7,
    threaded: bool = False,
    keeps_prefixes: bool = False,
    **changes: object,
) -> LLM:
    """An LLM around the toy model, built past the configuration. `threaded` gives the device a thread of its own,
    `keeps_prefixes` a prefix cache whose hits compute 16 tokens again; `changes` are of its limits."""
    sizes = {
        "vocab_size": VOCAB,
        "ngram_size": 3,
        "max_model_len": 512,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 64,
        "max_prefill_tokens": 32,
        "num_blocks": 12,
        "eos_token_ids": (EOS,),
        "draft_depth": draft_depth,
        "async_depth": async_depth,
    }
    limits = EngineLimits(**{**sizes, **changes})
    llm = LLM.__new__(LLM)
    executor = ToyExecutor(full or tokenizer, limits, acceptance)
    engine = Engine(
        ThreadedExecutor(executor) if threaded else executor,
        limits,
        lengths=SomeDrafts() if draft_depth else None,
        prefix=_prefix_cache(limits) if keeps_prefixes else None,
        seed_entropy=1,
    )
    llm._start(engine, tokenizer, SamplingParams(temperature=0.0, max_tokens=64), BOS)
    return llm


def _prefix_cache(limits: EngineLimits) -> PrefixCache:
    return PrefixCache(
        num_blocks=limits.num_blocks,
        num_snapshots=0,
        block_tokens=limits.block_tokens,
        snapshot_every=1,
        replay=Replay(keep_tokens=0, on_hit="exact", sliding_window=17, num_layers=1, boundary=1),
        numerics_digest="toy",
    )
