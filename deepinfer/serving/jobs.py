"""From what people hand in to what the engine takes: prompts become ids, parameters are checked, chats are rendered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import find_problems, is_broken
from deepinfer.serving.codec import ChatError, ChatMessage, ChatPrompt, ChatReader, Codec

if TYPE_CHECKING:
    from deepinfer.sampling.tokenizer import BpeTokenizer

Prompt = str | Sequence[int] | np.ndarray | dict[str, Any]
_PROMPT_KEYS = ("prompt", "prompt_token_ids")
MAX_SALT = 256  # characters


class Job(msgspec.Struct, kw_only=True):
    """One prompt that is ready to run, or the reason why it is not. Cached prefixes are shared within one `cache_salt`."""

    prompt_ids: list[int] = []
    params: SamplingParams
    cache_salt: str = ""
    chat: ChatPrompt | None = None
    error: str | None = None


class Desk:
    """Prepares jobs for one model. Sizes are in tokens; `tokenizer` None means that only ids are taken."""

    def __init__(
        self,
        tokenizer: BpeTokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        bos_token_id: int,
        eos_token_ids: Sequence[int],
        grammar: str = "none",
    ) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.bos_token_id = bos_token_id
        self._eos_token_ids = tuple(eos_token_ids)
        self._grammar = grammar  # who enforces the form of answers
        self._codec: Codec | None = None

    @property
    def tokenizer(self) -> BpeTokenizer | None:
        return self._tokenizer

    def prepare(self) -> None:
        """Read what the first chat would have to wait for: seconds, where the vocabulary is large."""
        if self._tokenizer is not None and self._codec is None:
            self._codec = Codec(self._tokenizer, self._eos_token_ids, grammar=self._grammar)

    def text(self, prompt: Prompt, params: SamplingParams, *, cache_salt: str = "") -> Job:
        """A str becomes ids after BOS (spellings of special tokens become those), ids stay as they are."""
        try:
            return self.checked(Job(params=params, prompt_ids=self._ids_of(prompt), cache_salt=cache_salt))
        except ValueError as error:
            return Job(params=params, error="; ".join([str(error), *find_problems(params, self.vocab_size)]))

    def chat(self, messages: Any, params: SamplingParams, *, cache_salt: str = "", **options: Any) -> Job:
        """A conversation, rendered; `options` are those of `Codec.encode`."""
        problems = find_problems(params, self.vocab_size)
        if problems:
            return Job(params=params, error="; ".join(problems))
        try:
            chat = self.codec.encode(messages, params, **options)
        except ChatError as error:
            return Job(params=params, error=str(error))
        return self.checked(Job(prompt_ids=chat.prompt_ids, params=chat.params, chat=chat, cache_salt=cache_salt))

    def message(self, job: Job, token_ids: Sequence[int], finish_reason: str) -> ChatMessage:
        """The answer to a chat job, taken apart."""
        assert job.chat is not None, "only chats are answered with messages"
        return self.codec.parse(job.chat, token_ids, finish_reason)

    @property
    def codec(self) -> Codec:
        """The chat format over this model's tokenizer. Raises ChatError where the model has none."""
        if self._tokenizer is None:
            raise ChatError("this model has no tokenizer.json, so it cannot chat: give token ids instead")
        self.prepare()
        assert self._codec is not None, "there is a tokenizer"
        return self._codec

    def reader(self, job: Job) -> ChatReader:
        """Takes one answer to a chat job apart while it grows."""
        assert job.chat is not None, "only chats are answered with messages"
        return self.codec.reader(job.chat)

    def _ids_of(self, prompt: Any) -> list[int]:
        if isinstance(prompt, dict):
            prompt = _unwrapped(prompt)
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise ValueError("this model has no tokenizer.json: give the prompt as a list of token ids")
            if is_broken(prompt):
                raise ValueError("the prompt holds half a surrogate pair, which is no text: mend its decoding")
            return [self.bos_token_id, *self.ids_of_text(prompt)]
        if not is_ids(prompt):
            raise ValueError(f"a prompt is a str or a non-empty list of token ids; got {prompt!r:.80}")
        ids = [int(token_id) for token_id in prompt]
        outside = sorted({token_id for token_id in ids if not 0 <= token_id < self.vocab_size})
        if outside:
            raise ValueError(
                f"the prompt holds the token id {', '.join(map(str, outside[:5]))}: "
                f"the vocabulary has ids 0 to {self.vocab_size - 1}"
            )
        return ids

    def ids_of_text(self, text: str) -> list[int]:
        """Ids of a text, nothing added. Raises ValueError for one that is too long, before it is taken apart."""
        assert self._tokenizer is not None, "only models with a tokenizer take texts"
        least = self._tokenizer.fewest_tokens(text)
        if least > self.max_model_len:
            raise ValueError(
                f"the prompt has at least {least:,} tokens, and max_model_len is {self.max_model_len:,}: shorten it"
            )
        return self._tokenizer.encode(text)

    def checked(self, job: Job) -> Job:
        """The job, with `error` set to all that is wrong with its parameters and its length."""
        problems = find_problems(job.params, self.vocab_size, self.max_model_len, len(job.prompt_ids))
        if not problems and self._tokenizer is None and (job.params.stop or job.params.bad_words):
            problems.append("stop and bad_words are texts, and this model has no tokenizer.json: use stop_token_ids")
        job.error = "; ".join(problems) or None
        return job


def check_salt(salt: Any) -> None:
    """Raises ValueError unless this is a text that keeps cached prefixes apart."""
    if not isinstance(salt, str) or len(salt) > MAX_SALT or is_broken(salt):
        raise ValueError(
            f"cache_salt={salt!r:.60} is no text of at most {MAX_SALT} characters: it names those who may share cached "
            'prefixes; "" shares with all who give none'
        )


def _unwrapped(prompt: dict[str, Any]) -> Any:
    """What stands in {"prompt": "…"} or {"prompt_token_ids": […]}."""
    if len(prompt) != 1 or next(iter(prompt)) not in _PROMPT_KEYS:
        hint = "; a message of a conversation goes to chat()" if "role" in prompt or "messages" in prompt else ""
        raise ValueError(f"a prompt that is a dict has one key, {' or '.join(_PROMPT_KEYS)}; got {prompt!r:.80}{hint}")
    ((key, value),) = prompt.items()
    if isinstance(value, str) != (key == "prompt"):
        raise ValueError(f"{key!r} is {value!r:.80}: 'prompt' is a text, 'prompt_token_ids' a list of token ids")
    return value


def is_conversation(value: Any) -> bool:
    """Whether this is one list of messages (and neither a prompt nor a list of conversations)."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def is_ids(prompt: Any) -> bool:
    """Whether this is one prompt of token ids (and not a list of prompts)."""
    if isinstance(prompt, np.ndarray):
        return prompt.ndim == 1 and prompt.dtype.kind in "iu" and prompt.size > 0
    return (
        isinstance(prompt, list | tuple)
        and bool(prompt)
        and all(isinstance(token_id, int | np.integer) and not isinstance(token_id, bool) for token_id in prompt)
    )
