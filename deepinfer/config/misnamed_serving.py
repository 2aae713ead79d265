"""Flags with which other engines' servers and batch runners are started, and models as a hub names them: what to type here."""

from functools import cache
from importlib.resources import files

import yaml

from deepinfer.config.quoting import listed_value, shell

_CODEC = "the checkpoint's model version picks chat format, thinking and tool parser together"
_TOOLS = "tools and their calls are always on; a request says by tool_choice whether it wants any"
_TLS = "the server speaks plain HTTP; a proxy before it has certificates and paths of its own"
SERVER_NOT_HERE = {  # last name of a key → why there is no such key
    **dict.fromkeys(("enable_auto_tool_choice", "exclude_tools_when_tool_choice_none"), _TOOLS),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "root_path"), _TLS),
    **dict.fromkeys(("chat_template_content_format", "tool_parser_plugin", "reasoning_parser_plugin"), _CODEC),
    "enable_reasoning": _CODEC,
    "enable_metrics": "/metrics is always there; serving.metrics_open=true is for a Prometheus without an API key",
    "api_server_count": "one process answers HTTP for all ranks of a world",
}
_KEYS = "keys are hashes in a file, which no command line shows: deepinfer serve new_key=NAME >> keys.yaml makes one"
_LOG = "a line of JSON for each request, never with its text, goes to stderr"
SERVER_INSTEAD = {  # last name of a key elsewhere → why it is not here, and what to type
    "api_key": (_KEYS, "serving.api_keys=keys.yaml"),
    "disable_log_requests": (_LOG, "serving.access_log=false"),
    "disable_uvicorn_access_log": (_LOG, "serving.access_log=false"),
    "enable_log_requests": (_LOG, "serving.access_log=true"),
    "default_chat_template_kwargs": ("whether chats think is the server's to say", "serving.thinking=true"),
    "model": ("the model is an option of the group model", "model=v41_flash"),
    "tokenizer": ("it comes with the checkpoint", "model.path=/FOLDER"),
}
SERVER_OURS = {  # last name of a key elsewhere → the key it has here
    "otlp_traces_endpoint": "serving.otlp_endpoint",
    "max_queued_requests": "serving.max_waiting",
    "h11_max_incomplete_event_size": "serving.max_header_bytes",
    "timeout_keep_alive": "serving.keep_alive_s",
}
_LISTS = {"served_model_name": "serving.model_names", "allowed_origins": "serving.cors_origins"}
MIN_NAME = 6  # letters of a model's name that say which is meant
_WORDS = {  # flags whose value is a word of a verb
    "--input-file": "input",
    "--input": "input",
    "-o": "output",
    "--output-file": "output",
    "--output": "output",
}


def meant_by_server(name: str, value: str) -> tuple[str, str]:
    """For the last name of an unknown key: why it is not there and what to type; each may be empty."""
    if name in _LISTS:
        return f"it is called {_LISTS[name]} here, a list", listed_value(_LISTS[name], *value.strip("[]").split(","))
    if name == "model":
        why, fix = SERVER_INSTEAD[name]
        return why, f"model={model_of(value) or fix.partition('=')[2]}"
    return "", ""


def word_of_flag(flag: str, value: str) -> str:
    """What to type for a flag that is a word here; empty for any other."""
    return shell(f"{_WORDS[flag]}={value or '…'}") if flag in _WORDS else ""


def model_of(text: str) -> str:
    """The option of the group model that a hub's name means, as in deepseek-ai/DeepSeek-V4.1-Flash; else empty."""
    asked = text.rpartition("/")[2].lower()
    return next((option for option, repo in _repos().items() if len(asked) >= MIN_NAME and repo.startswith(asked)), "")


@cache
def _repos() -> dict[str, str]:
    """Option → its repository's name, in small letters."""
    found = {}
    for entry in sorted((files("deepinfer.conf") / "model").iterdir(), key=lambda entry: entry.name):
        repo = (yaml.safe_load(entry.read_text("utf-8")) or {}).get("repo") if entry.name.endswith(".yaml") else None
        if repo:
            found[entry.name.removesuffix(".yaml")] = repo.rpartition("/")[2].lower()
    return found
