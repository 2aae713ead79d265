"""Chats to token ids and answers back to messages, by DeepSeek's own library (deepseek-recipe), in V4.1's format.

The library renders and parses; it enforces nothing. So this file refuses what cannot be rendered for this tokenizer, turns
what is asked of an answer's form into a grammar, says which sampling parameters the format overrides, drops
end-of-sequence tokens (the library keeps them as text), and checks tool calls before anyone executes them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
import msgspec

from deepinfer.interfaces import SamplingParams
from deepinfer.serving.chat_checks import check_options
from deepinfer.serving.chat_grammar import under_grammar
from deepinfer.serving.chat_history import ChatError, check_messages
from deepinfer.serving.chat_reader import MODEL, ChatReader, processor, raw_stream
from deepinfer.serving.markers import MarkedTokens
from deepinfer.serving.reading import AnswerReader

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deepinfer.sampling.tokenizer import BpeTokenizer


_KINDS = recipe.SpecialToken
_MARKERS = (  # of conversations in text; the others are those of images
    _KINDS.Bos, _KINDS.Eos, _KINDS.ThinkingStart, _KINDS.ThinkingEnd, _KINDS.System, _KINDS.User, _KINDS.Assistant,
    _KINDS.LatestReminder, _KINDS.Dsml,
)  # fmt: skip


class ToolCall(msgspec.Struct, frozen=True):
    """One call in an answer. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An answer taken apart. `problems` says why tool calls must not be executed as they stand; empty when all is well."""

    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"  # stop, length or tool_calls
    problems: tuple[str, ...] = ()


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered conversation: what goes to the engine, and what is needed to read the answer.

    `params` are the asked ones with the format's overrides; `notices` says in a sentence each override, each value that the
    format would have overridden, and each wish that only the prompt tells the model.
    """

    prompt_ids: list[int]
    params: SamplingParams
    notices: tuple[str, ...]
    request: Any  # deepseek_recipe.ConversationRequest
    parallel_tool_calls: bool = True  # false: a call ends the answer


class Codec:
    """Renders for one tokenizer. `eos_token_ids` end an answer and are no part of it; `grammar` is who enforces its form."""

    def __init__(self, tokenizer: BpeTokenizer, eos_token_ids: Sequence[int] = (1,), *, grammar: str = "none") -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._grammar = grammar
        self._encoding = recipe.DeepseekV41Encoding().with_tokenizer(recipe.Tokenizer.from_file(str(tokenizer.path)))
        self._options = recipe.ConversionOptions(default_thinking_mode=False)
        self._has_all_markers = all(tokenizer.token_id(each.default_str()) is not None for each in _MARKERS)
        self._tokens = MarkedTokens(tokenizer, self._eos_token_ids)

    def encode(
        self,
        messages: str | Sequence[dict[str, Any]],
        params: SamplingParams,
        *,
        asked: Collection[str] = (),
        told: Collection[str] = ("temperature", "top_p"),
        thinking: bool = False,
        reasoning_effort: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: Any = None,
        response_format: dict[str, Any] | None = None,
    ) -> ChatPrompt:
        """Prompt ids (BOS included) of a conversation in Chat Completions form; a str is one user message.

        A conversation that ends in an assistant message is continued there. `asked` names the fields of `params` that somebody
        chose: those the format leaves alone, any other it may override; notices are of those `told`. `reasoning_effort`
        counts when thinking. Raises ChatError.
        """
        check_options(thinking=thinking, tools=tools, tool_choice=tool_choice, response_format=response_format)
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": check_messages(messages),
            "thinking": {"type": "enabled" if thinking else "disabled"},
            "temperature": params.temperature,
            "top_p": params.top_p,
        }
        optional = {
            "tools": _renderable(tools, response_format) or None,
            "tool_choice": tool_choice,
            "response_format": response_format,
            "reasoning_effort": reasoning_effort if thinking else None,
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        request = _converted(body, self._options)
        if not self._has_all_markers:  # else nothing can be missing, and the prompt need not be rendered twice
            rendered = self._encoding.render_conversation(request.conversation)
            self._check_special_tokens({rendered.prompt[start:end] for start, end in rendered.special_ranges})
        params, notices = _overridden(params, request.inference_options, thinking, asked, told)
        params, more = under_grammar(
            params,
            request,
            self._tokenizer,
            thinking=thinking,
            backend=self._grammar,
            response_format=response_format,
            tool_choice=tool_choice,
            tools=tools,
        )
        return ChatPrompt(
            prompt_ids=self._encoding.encode(request.conversation),
            params=params,
            notices=notices + more,
            request=request,
        )

    def parse(self, prompt: ChatPrompt, token_ids: Sequence[int], finish_reason: str) -> ChatMessage:
        """The message that an answer's tokens make, stop strings cut; `finish_reason` is the engine's."""
        raw = self._raw_text(prompt.params, token_ids)
        stream = processor(prompt)
        reason = recipe.InferenceFinishReason
        news = stream.push(recipe.InferenceChunk.text(raw, len(token_ids)))
        news += stream.push(recipe.InferenceChunk.finish(reason.Length if finish_reason == "length" else reason.Stop))
        news += stream.finish()
        response = recipe.ChatCompletionResponse("answer", MODEL, 0, len(prompt.prompt_ids), 0)
        for chunk in news:
            response.accumulate(chunk)
        choice = json.loads(response.to_json())["choices"][0]
        message = choice["message"]
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        )
        return ChatMessage(
            content=message.get("content") or "",
            reasoning_content=message.get("reasoning_content"),
            tool_calls=calls,
            finish_reason=choice["finish_reason"],
            problems=tuple(_call_problems(calls, prompt.request.conversation)),
        )

    def reader(self, prompt: ChatPrompt) -> ChatReader:
        """For one answer that is read while it grows."""
        return ChatReader(prompt, self._tokenizer, self._eos_token_ids)

    def answer_reader(self, prompt: ChatPrompt, generator: Any) -> AnswerReader:
        """For one answer of any dialect, whose `chunk_generator` for `prompt.request` is used up by it."""
        return AnswerReader(prompt, generator, self._tokens)

    def _raw_text(self, params: SamplingParams, token_ids: Sequence[int]) -> str:
        """The answer's text with markers such as </think> kept, end-of-sequence tokens dropped."""
        stream = raw_stream(self._tokenizer, params)
        text, _ = stream.push([token_id for token_id in token_ids if token_id not in self._eos_token_ids])
        return text + stream.finish()

    def _check_special_tokens(self, spellings: set[str]) -> None:
        missing = sorted(spelling for spelling in spellings if self._tokenizer.token_id(spelling) is None)
        if missing:
            raise ChatError(
                f"this conversation needs the special tokens {', '.join(missing)}, which the tokenizer "
                f"{self._tokenizer.path} does not have: use another model for chats of this kind, or give plain text"
            )


def _renderable(tools: Sequence[dict[str, Any]] | None, response_format: dict[str, Any] | None) -> list[Any]:
    """The library refuses strict tools beside a response format, which one grammar enforces; so it hears of no strict."""
    listed = list(tools or ())
    if response_format is None or response_format.get("type") == "text":
        return listed
    return [
        one | {"function": {name: value for name, value in one["function"].items() if name != "strict"}}
        if isinstance(one, dict) and isinstance(one.get("function"), dict)
        else one
        for one in listed
    ]


def _converted(body: dict[str, Any], options: recipe.ConversionOptions) -> recipe.ConversationRequest:
    try:
        return recipe.ChatCompletionRequest(body).convert(options)
    except recipe.ConversionError as error:
        raise ChatError(json.loads(error.body)["error"]["message"]) from error
    except UnicodeEncodeError as error:
        raise ChatError("the conversation holds half a surrogate pair, which is no text: mend its decoding") from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # no JSON, numbers beyond it, too deep
        raise ChatError(str(error)) from error


def _overridden(
    params: SamplingParams, options: Any, thinking: bool, chosen: Collection[str], told: Collection[str]
) -> tuple[SamplingParams, tuple[str, ...]]:
    """The format's temperature and top_p where nobody chose other ones (the library rounds to float32)."""
    changes, notices = {}, []
    mode = "thinking" if thinking else "non-thinking"
    for name in ("temperature", "top_p"):
        asked, given = getattr(params, name), round(getattr(options, name), 6)
        if abs(asked - given) <= 1e-6:
            continue
        if name in chosen:
            why = f"stays as asked; V4.1's chat format recommends {given:g} in {mode} mode"
        else:
            changes[name], why = given, f"becomes {given:g}: V4.1's chat format uses that in {mode} mode"
        if name in told:
            notices.append(f"{name}={asked:g} {why}")
    return msgspec.structs.replace(params, **changes), tuple(notices)


def _call_problems(calls: tuple[ToolCall, ...], conversation: recipe.Conversation) -> list[str]:
    """Why calls cannot be executed: the library passes broken and invented ones through."""
    known = {tool.name for tool in conversation.tools}
    problems = []
    for number, call in enumerate(calls):
        if call.name not in known:
            problems.append(
                f"tool call {number} names {call.name!r}, which is none of {', '.join(sorted(known)) or 'no tools'}"
            )
        try:
            if not isinstance(json.loads(call.arguments), dict):
                problems.append(f"tool call {number} ({call.name}): its arguments are no JSON object: {call.arguments}")
        except json.JSONDecodeError as error:
            problems.append(
                f"tool call {number} ({call.name}): its arguments are broken JSON ({error}): {call.arguments}"
            )
    if conversation.tool_choice == "required" and not calls:
        problems.append("a tool call was required, but the answer holds none")
    return problems
