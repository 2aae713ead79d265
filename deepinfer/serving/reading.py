"""From what the engine says of an answer to what a client of any dialect may read, piece by piece.

Tokens become text with markers of their own (serving/markers.py), cut at stop strings; calls wait until they are whole and
checked (serving/call_guard.py); deepseek-recipe then makes chunks of the dialect whose generator it was given. However the
tokens are cut into pieces, the chunks add up to the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import deepseek_recipe as recipe
import msgspec

from deepinfer.sampling.text_stream import TextStream
from deepinfer.serving.call_guard import CallGuard
from deepinfer.serving.markers import MarkedTokens, as_letters, private_options, with_marked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.interfaces import SamplingParams, TokenLogprobs
    from deepinfer.serving.answers import Piece
    from deepinfer.serving.codec import ChatPrompt

_Logprobs = list["TokenLogprobs"]


class AnswerReader:
    """Reads one answer. `ended` says that all chunks are out; `stopped` that it ended here, so that the engine must hear.

    `num_tokens` are those of the answer, the one that ended it included; `num_reasoning_tokens` of them came before </think>.
    An answer that fails or is aborted has no end here: its last piece is not pushed (see http/reading_loop.py).
    """

    def __init__(self, prompt: ChatPrompt, generator: Any, tokens: MarkedTokens) -> None:
        """`generator` is the `chunk_generator` of a dialect's request class for `prompt.request`; it is used up."""
        request, options = prompt.request, prompt.request.parsing_options
        self.ended = self.stopped = False
        self.finish_reason: Literal["stop", "length"] | None = None
        self.num_tokens = self.num_reasoning_tokens = self.num_cached_tokens = 0
        self._tokens = tokens
        self._num_prompt_tokens = len(prompt.prompt_ids)
        self._begun = False
        self._text = TextStream(tokens, _with_markers(prompt.params))
        self._include_stop = prompt.params.include_stop_str
        tools = {tool.name: tool.parameters for tool in request.conversation.tools} if options.parse_tool_calls else {}
        self._guard = CallGuard(tools, opened=options.starts_in_tool_calls, one_call=not prompt.parallel_tool_calls)
        self._single = bool(tools) and not prompt.parallel_tool_calls  # tokens one by one, since any may be the last
        stage = options.thinking_initial_stage
        self._thinks = stage is not None and stage.starts_in_reasoning()
        self._processor = recipe.StreamProcessor(generator, private_options(options))
        self._of_reasoning: _Logprobs = []
        self._of_content: _Logprobs = []
        self._token_ids: list[int] = []

    @property
    def problems(self) -> list[str]:
        """Why calls are no calls."""
        return self._guard.problems

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        met = self._text.stop_string
        return None if met is None else as_letters(met)

    def take_logprobs(self) -> tuple[_Logprobs, _Logprobs]:
        """Of the tokens of (reasoning, content) read since the last take; not of </think> and not of the end."""
        taken = self._of_reasoning, self._of_content
        self._of_reasoning, self._of_content = [], []
        return taken

    def take_token_ids(self) -> list[int]:
        """Tokens of the answer since the last take, markers and the one that ended it included."""
        taken, self._token_ids = self._token_ids, []
        return taken

    def push(self, piece: Piece) -> list[Any]:
        """Chunks of the dialect. Once the answer has ended there are none."""
        if self.ended:
            return []
        reason = piece.finish_reason
        assert reason in (None, "stop", "length"), "other ends are no part of an answer"
        news = [] if self._begun else self._begin(piece.cached_tokens or 0)
        token_ids, logprobs = piece.token_ids, piece.logprobs
        if self._thinks and self._tokens.think_end in token_ids:
            cut = token_ids.index(self._tokens.think_end)
            news += self._take(token_ids[:cut], logprobs)
            self._thinks = False
            token_ids, logprobs = token_ids[cut:], logprobs and logprobs[cut:]
        if token_ids and not self.stopped:
            news += self._take(token_ids, logprobs, ends=reason == "stop")
        if self.stopped or reason in ("stop", "length"):
            self.finish_reason = "length" if reason == "length" and not self.stopped else "stop"
            news += self._end()
        return news

    def _begin(self, cached_tokens: int) -> list[Any]:
        self._begun, self.num_cached_tokens = True, cached_tokens
        usage = recipe.PromptUsage(prompt_tokens=self._num_prompt_tokens, prompt_cache_hit_tokens=cached_tokens)
        return self._processor.push(recipe.InferenceChunk.ready(prompt_usage=usage))

    def _take(self, token_ids: Sequence[int], logprobs: _Logprobs | None, *, ends: bool = False) -> list[Any]:
        """Tokens of one stage; `ends` says that the last of them ended the answer."""
        text, number = "", 0
        if self._single:
            while number < len(token_ids) and not (self._text.stopped or self._guard.full):
                number += 1
                more, _ = self._text.push(
                    token_ids[number - 1 : number], ends_with_stop_token=ends and number == len(token_ids)
                )
                text += self._guard.push(more)
        else:
            raw, number = self._text.push(token_ids, ends_with_stop_token=ends)
            text = self._guard.push(raw)
        self.num_tokens += number
        self._token_ids += token_ids[:number]
        if self._thinks:
            self.num_reasoning_tokens += number
        if logprobs:
            self._note(token_ids[:number], logprobs, ended=ends and number == len(token_ids) and not self._include_stop)
        self.stopped = self._text.stopped or self._guard.full
        return self._read(text)

    def _read(self, text: str) -> list[Any]:
        """Chunks of new text. Tokens are counted here, since the library makes empty chunks of those without text."""
        return self._processor.push(recipe.InferenceChunk.text(text)) if text else []

    def _note(self, token_ids: Sequence[int], logprobs: _Logprobs, *, ended: bool) -> None:
        """Keep what belongs to tokens that a client sees."""
        noted = self._of_reasoning if self._thinks else self._of_content
        for number, (token_id, entry) in enumerate(zip(token_ids, logprobs, strict=False), start=1):
            if not (self._tokens.is_silent(token_id) or (ended and number == len(token_ids))):
                noted.append(entry)

    def _end(self) -> list[Any]:
        self.ended = True
        rest = self._guard.push(self._text.finish()) if not self._guard.full else ""
        if self._text.stopped:
            self.stopped, self.finish_reason = True, "stop"
        reasons = recipe.InferenceFinishReason
        reason = reasons.Length if self.finish_reason == "length" else reasons.Stop
        news = self._read(rest + self._guard.finish())
        return news + self._processor.push(recipe.InferenceChunk.finish(reason)) + self._processor.finish()


def _with_markers(params: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(params, stop=with_marked(params.stop))
