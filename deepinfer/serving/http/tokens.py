"""/tokenize and /detokenize: text to token ids and back, a chat among the texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deepinfer.sampling.params import is_broken
from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.serving.http.service import Service


T = TypeVar("T")


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    thinking: bool | None = None
    add_special_tokens: bool = True  # the token that begins every prompt
    return_token_strs: bool = False


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


def add_routes(app: FastAPI, service: Service) -> None:
    async def tokenize(request: Request) -> Response:
        data = await service.body(request)
        return service.json(await service.work(len(data), _tokenized, service, data))

    async def detokenize(request: Request) -> Response:
        data = await service.body(request)
        return service.json(await service.work(len(data), _detokenized, service, data))

    for path, function, body in (("/tokenize", tokenize, Tokenize), ("/detokenize", detokenize, Detokenize)):
        app.add_api_route(path, function, methods=["POST"], response_class=Response, openapi_extra=json_body(body))


def decoded(data: bytes, kind: type[T]) -> T:
    """The body as a Struct. Raises ApiError 400 with the place of what is wrong."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError(400, f"the body cannot be read: {error}") from error


def json_body(kind: type) -> dict[str, Any]:
    """The OpenAPI words for a body of this Struct, the Structs in it written out."""
    (schema,), parts = msgspec.json.schema_components([kind], ref_template="{name}")

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(each) for each in value]
        if not isinstance(value, dict):
            return value
        return whole(parts[value["$ref"]]) if "$ref" in value else {name: whole(each) for name, each in value.items()}

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": whole(schema)}}}}


def _tokenized(service: Service, data: bytes) -> bytes:
    """The reply to a body of /tokenize. Raises ApiError."""
    asked = decoded(data, Tokenize)
    service.model(asked.model)
    token_ids = _token_ids(service, asked)
    told: dict[str, Any] = {"tokens": token_ids, "count": len(token_ids), "max_model_len": service.max_model_len}
    if asked.return_token_strs:
        decode = _tokenizer(service).decode
        told["token_strs"] = [decode([each], skip_special_tokens=False) for each in token_ids]
    return msgspec.json.encode(told)


def _detokenized(service: Service, data: bytes) -> bytes:
    """The reply to a body of /detokenize. Raises ApiError."""
    asked = decoded(data, Detokenize)
    service.model(asked.model)
    most = service.vocab_size
    outside = next((each for each in asked.tokens if not 0 <= each < most), None)
    if outside is not None:
        message = f"token id {outside} is outside the vocabulary 0 … {most - 1}"
        raise ApiError(400, message, param="tokens")
    text = _tokenizer(service).decode(asked.tokens, skip_special_tokens=asked.skip_special_tokens)
    return msgspec.json.encode({"prompt": text})


def _tokenizer(service: Service) -> BpeTokenizer:
    if service.tokenizer is None:
        raise ApiError(400, "this model has no tokenizer.json: it takes token ids only")
    return service.tokenizer


def _token_ids(service: Service, asked: Tokenize) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError(400, "give either prompt, a text, or messages, a conversation")
    if asked.messages is not None:
        thinking = service.settings.thinking if asked.thinking is None else asked.thinking
        job = service.desk.chat(asked.messages, service.default_params, tools=asked.tools, thinking=thinking)
    elif is_broken(asked.prompt or ""):
        raise ApiError(
            400, "the prompt holds half a surrogate pair, which is no text: mend its decoding", param="prompt"
        )
    elif not asked.add_special_tokens:
        _tokenizer(service)
        try:
            return service.desk.ids_of_text(asked.prompt or "")
        except ValueError as error:
            raise ApiError(400, str(error), param="prompt", code="context_length_exceeded") from error
    else:
        job = service.desk.text(asked.prompt or "", service.default_params)
    if job.error and not job.prompt_ids:
        raise ApiError(400, job.error)
    return job.prompt_ids
