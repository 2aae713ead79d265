"""The HTTP server: where it listens, who may ask, and how much of everything one client can take."""

from typing import Annotated

from msgspec import Meta

from deepinfer.config.leaves import Auto, Bytes, Component, Count, Interval, Positive, Seconds, SomeText, Text


class Serving(Component, frozen=True, kw_only=True, tag="http"):
    """`deepinfer serve`. Every limit answers with a status and a sentence of its own; none drops a connection silently."""

    host: Text  # address to listen at
    port: Annotated[int, Meta(ge=0, le=65535)]  # 0 takes a free one
    allow_open: bool  # listens beyond this machine without API keys
    model_names: tuple[
        SomeText, ...
    ]  # that requests may ask for, the first where one names none; empty: the plan's model
    thinking: bool  # where a chat does not say
    api_keys: Text | None  # file with the hashes of API keys and their limits; null: whoever reaches the port may ask
    cors_origins: tuple[SomeText, ...]  # pages of other sites that a browser lets ask here; none: no other site
    access_log: bool  # a JSON line for each request on stderr, never with its text
    metrics_open: bool  # /metrics needs no API key
    otlp_endpoint: Text | None  # URL that spans are sent to, such as http://127.0.0.1:4318/v1/traces; null: no traces
    engine_restarts: Count  # of the process of a plan's only rank; requests go on. Several: executor.max_restarts
    drain_s: Seconds  # after SIGTERM, for running requests to finish
    max_waiting: Count  # answers that wait for a place in the engine; more are refused with 429
    max_streams: Positive  # requests that run at once, streamed or not
    max_connections: Positive  # open at once, idle ones too
    max_body_bytes: Bytes  # of one request
    max_held_bytes: Bytes  # of the bodies of all requests that are read or answered; more are refused with 429
    max_header_bytes: Bytes  # of all headers of one request
    max_prompt_tokens: Positive | Auto  # of one prompt; auto: what the model takes
    max_answers: Positive  # n of one request, times its prompts
    max_grammar_bytes: Bytes  # of one schema, regular expression or grammar
    header_timeout_s: Interval  # for the headers of a request to come whole
    body_timeout_s: Interval  # for its body
    keep_alive_s: Interval  # for the next request on an idle connection
    slow_reader_s: Interval  # that a client may leave its stream unread; then the request is aborted
    ping_s: Interval  # that a stream may be silent; then a comment is sent, so that no proxy takes it for dead
    health_generate_s: Interval  # for the token of /health_generate
    worker_threads: Positive  # that render and tokenise large prompts beside the event loop
    responses_path: Text | None  # SQLite file of /v1/responses; null: a temporary one
    responses_keep_s: Interval  # that a response can be fetched and continued
    responses_max_bytes: Bytes  # of all kept responses; the oldest go first
    responses_max_item_bytes: Bytes  # of one; a larger one is not kept
