"""A file of prompts in, a file of results out, both JSON lines; what was interrupted goes on where it stopped.

Input, one JSON value a line (empty lines are skipped): a text, or an object with exactly one of
    "prompt"            a text, one user message
    "messages"          a conversation in Chat Completions form
    "prompt_token_ids"  ids, taken as they are
and optionally "id" (given back), "sampling" (fields of SamplingParams over the defaults; temperature and top_p given here
win over the chat format's), "cache_salt" (a text; cached prefixes are shared within one salt), and for the first two
"thinking", "tools", "tool_choice", "response_format".

Output, one object a line in the order of the input: "line" (of the input, from 1), "digest" (of that line and of the
settings), then the result. A line that cannot run becomes a record with "error".
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.interfaces import SamplingParams
from deepinfer.serving.jobs import Desk, Job, check_salt
from deepinfer.serving.openai_sampling import is_token_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer.sampling.outputs import Completion, RequestOutput

_SOURCES = ("prompt", "messages", "prompt_token_ids")
_CHAT_OPTIONS = ("thinking", "tools", "tool_choice", "response_format")
_KNOWN = (*_SOURCES, *_CHAT_OPTIONS, "id", "sampling", "cache_salt")


class Line(msgspec.Struct, frozen=True):
    """One line of the input: its number from 1, its bytes, and a digest of them and of the settings of the run."""

    number: int
    data: bytes
    digest: str


class DoubleKey(ValueError):
    """A JSON object gives a key twice, and one of the values would be lost."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose keys are all different. Raises DoubleKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise DoubleKey(f"{double!r} is given twice in one object, and one of its values would be lost")
    return found


def read_lines(path: Path, settings: str = "") -> Iterator[Line]:
    """Lines of a file that hold anything. `settings` is any text that tells runs with different results apart."""
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
            data = data.strip()
            if data:
                yield Line(number, data, hashlib.sha256(settings.encode() + b"\n" + data).hexdigest()[:16])


def job_of(
    line: Line, desk: Desk, defaults: SamplingParams, *, thinking: bool = False, asked: frozenset[str] = frozenset()
) -> Job:
    """The job that a line asks for; one with `error` where it cannot be. `asked` are the `defaults` that a user set."""
    try:
        item = json.loads(line.data.decode("utf-8"), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{line.data[error.start]:02x}"
        return Job(params=defaults, error=f"line {line.number} is not UTF-8 ({byte}): save the file as UTF-8")
    except DoubleKey as error:
        return Job(params=defaults, error=f"line {line.number}: {error}")
    except (ValueError, RecursionError) as error:
        return Job(params=defaults, error=f'line {line.number} is no JSON ({error}): write a text as "…"')
    if isinstance(item, str):
        item = {"prompt": item}
    problem = _shape_problem(item)
    if problem:
        return Job(params=defaults, error=f"line {line.number}: {problem}")
    try:
        params = _params(item.get("sampling") or {}, defaults)
    except ValueError as error:
        return Job(params=defaults, error=f"line {line.number}: sampling: {error}")
    salt = item.get("cache_salt", "")
    if "prompt_token_ids" in item:
        return desk.text(item["prompt_token_ids"], params, cache_salt=salt)
    options = {"thinking": thinking} | {name: item[name] for name in _CHAT_OPTIONS if name in item}
    messages = item["prompt"] if "prompt" in item else item["messages"]
    return desk.chat(messages, params, asked=asked | (item.get("sampling") or {}).keys(), cache_salt=salt, **options)


def _shape_problem(item: Any) -> str:
    if not isinstance(item, dict):
        return f"it holds {item!r:.60}: a line is a text or an object"
    unknown = [key for key in item if key not in _KNOWN]
    if unknown:
        return f"unknown keys {', '.join(map(repr, unknown))}: there are {', '.join(_KNOWN)}"
    sources = [key for key in _SOURCES if key in item]
    if len(sources) != 1:
        return f"it has {' and '.join(sources) or 'none'} of {', '.join(_SOURCES)}: exactly one is needed"
    wanted = {"prompt": str, "messages": list, "prompt_token_ids": list}[sources[0]]
    if not isinstance(item[sources[0]], wanted):
        return f"{sources[0]} is a {type(item[sources[0]]).__name__}, not a {wanted.__name__}"
    if not isinstance(item.get("thinking", False), bool):
        return f"thinking is {item['thinking']!r}, neither true nor false"
    if not _is_id(item.get("id", "")):
        return "id is neither a text nor a whole number"
    try:
        check_salt(item.get("cache_salt", ""))
    except ValueError as error:
        return str(error)
    given = [key for key in _CHAT_OPTIONS if key in item]
    if given and "prompt_token_ids" in item:
        return f"{', '.join(given)} shape a chat, but prompt_token_ids are taken as they are"
    return ""


def _params(fields: Any, defaults: SamplingParams) -> SamplingParams:
    """The defaults with a line's own fields, whose values the desk checks. Raises ValueError where a field is unknown."""
    if not isinstance(fields, dict):
        raise ValueError(f"{fields!r:.60} is no object")
    unknown = [name for name in fields if name not in SamplingParams.__struct_fields__]
    if unknown:
        forms = [name for name in unknown if name in ("json_schema", "json_object", "regex", "ebnf", "choice")]
        hint = f'write {{"grammar": {{"{forms[0]}": …}}}}' if forms else ""
        known = ", ".join(SamplingParams.__struct_fields__)
        raise ValueError(f"unknown {', '.join(unknown)}: {hint or f'there are {known}'}")
    bias = fields.get("logit_bias")
    if isinstance(bias, dict):  # a JSON object has texts as keys
        fields = fields | {"logit_bias": {int(key) if is_token_id(key) else key: value for key, value in bias.items()}}
    return msgspec.structs.replace(defaults, **fields)


def record(line: Line, output: RequestOutput, *, keeps_prefixes: bool = False) -> dict[str, Any]:
    """One line of the output file. The first answer stands at the top; with n > 1 all stand in "answers". What came from a
    prefix cache is told where there is one."""
    head: dict[str, Any] = {"line": line.number, "digest": line.digest}
    name = _name(line)
    if name is not None:
        head["id"] = name
    body = head | _answer(output.outputs[0])
    body["prompt_tokens"] = len(output.prompt_token_ids)
    if keeps_prefixes:
        body |= {"cached_tokens": output.cached_tokens, "approximate": output.approximate}
    if len(output.outputs) > 1:
        body["answers"] = [_answer(answer) for answer in output.outputs]
    if output.prompt_logprobs is not None:
        body["prompt_logprobs"] = [None if entry is None else _finite(entry) for entry in output.prompt_logprobs]
    if output.notices:
        body["notices"] = list(output.notices)
    body["timings"] = msgspec.structs.asdict(output.timings)
    return body


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _name(line: Line) -> str | int | None:
    """The "id" of a line, where it has a usable one."""
    try:
        item = json.loads(line.data)
    except (ValueError, RecursionError):
        return None
    return item["id"] if isinstance(item, dict) and _is_id(item.get("id")) else None


def _answer(answer: Completion) -> dict[str, Any]:
    found: dict[str, Any] = {"text": answer.text, "finish_reason": answer.finish_reason, "token_ids": answer.token_ids}
    if answer.message is not None:
        found["message"] = msgspec.to_builtins(answer.message)
    if answer.logprobs is not None:
        found["logprobs"] = [_finite(entry) for entry in answer.logprobs]
    if answer.drafts.rounds:
        found["drafts"] = msgspec.structs.asdict(answer.drafts) | {"accepted_length": answer.drafts.accepted_length}
    if answer.error is not None:
        found["error"] = answer.error
    return found


def _finite(entry: dict[int, float]) -> dict[str, float | None]:
    """JSON knows neither NaN nor infinities: they become null."""
    return {str(key): value if abs(value) < float("inf") else None for key, value in entry.items()}
