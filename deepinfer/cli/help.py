"""--help, told by the configuration tree itself: the first line of every option file says what it is for."""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from deepinfer.config.argv import VERBS, WORDS, WORDS_OF_VERB
from deepinfer.config.meanings import meaning_of
from deepinfer.config.runnable import NOT_BUILT, plan_only
from deepinfer.config.specs import Spec

USAGE = "usage: deepinfer [verb] [group=option …] [group.key=value …] [flag …]"
HEADER = "# @"  # begins a line that only Hydra reads
PLANNED = " (planned)"  # `deepinfer plan` takes such an option, a run refuses it
WORD_HELP = {
    "prompt": "prompt=TEXT      one chat prompt, exactly as typed; - reads it from stdin; may be the only argument",
    "prompts": "prompts=FILE     JSON lines, one prompt each (a file, not stdin); `deepinfer generate --help` has the format",
    "output": "output=FILE      where answers go, as JSON lines; a run that was interrupted goes on where it stopped",
    "input": "input=FILE       API requests as JSON lines, in the form of OpenAI's batch files",
    "errors": "errors=FILE      where requests that failed go; without it beside output=, as NAME.errors.jsonl",
    "format": "format=text|json|mermaid|ranks   mermaid draws the engine graph, ranks is the rank table (plan only)",
    "explain": "explain=KEY      why a value is what it is",
    "diff": "diff=FILE        how the plan differs from one that was written by format=json or launch",
    "out": "out=DIR          folder for what the verb writes; launch replaces only its own files",
    "plan": "plan=FILE        plan.json of a launch",
    "role": "role=NAME        of that plan: all, prefill or decode",
    "replica": "replica=N        of that role",
    "new_key": "new_key=NAME     print a new API key and its entry for the file of serving.api_keys, and end",
}
FILE_FORMAT = """\
a line of prompts=FILE is a JSON text, or an object with exactly one of
  "prompt"             a text: one user message
  "messages"           a conversation: [{"role": "user", "content": "…"}, …]
  "prompt_token_ids"   token ids, taken as they are
and where wanted
  "id"                 a text or whole number, given back in the result
  "sampling"           an object of sampling keys, such as {"max_tokens": 64, "temperature": 0}
  "thinking"           true or false
  "cache_salt"         a text: with cache=prefix, cached prefixes are shared within one salt only
  "tools", "tool_choice", "response_format"   as in Chat Completions; with grammar=none nothing enforces them

a line of output=FILE is an object: "line" (number in the input), "digest", "id", "text", "finish_reason", "token_ids",
"message", "prompt_tokens", "timings"; with cache=prefix "cached_tokens", "approximate"; where there are any "logprobs",
"prompt_logprobs", "drafts", "notices", "answers" (sampling.n > 1); and "error" where the line failed. The exit
code is 1 if any did. The same command again goes on where a run stopped.

examples
  deepinfer prompt="It's 5, right?" sampling.max_tokens=64
  deepinfer prompt="What is 1 + 1?" task.thinking=true sampling.logprobs=2
  echo "What is 1 + 1?" | deepinfer prompt=-
  deepinfer prompts=in.jsonl output=out.jsonl sampling=greedy"""
LINTER = """\
what cannot be planned is refused, all of it at once, with what to type. With format=json a refusal is JSON on stdout too:
{"exit_code": 3, "problems": [{"asked", "found", "why", "fix", "code", "file", "line"}, …]}; file and line where a file says so

examples
  deepinfer plan hardware=h200 parallel=ep8
  deepinfer plan cluster=gb200_rack format=json > plan.json
  deepinfer plan cluster=gb200_rack speculation=none diff=plan.json
  deepinfer plan cluster=h200_pd explain=deploy.decode.parallel.expert
  deepinfer plan cluster=h200_pd format=ranks
  deepinfer plan -m hardware=h200,gb200 parallel=ep8,ep64 out=runs/layouts"""
BATCH_FORMAT = """\
a line of input=FILE is an object as in OpenAI's batch files
  {"custom_id": "a1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "…", "messages": […]}}
url is one of /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages; an answer is what the server gives to the
same request. What a request asks of its form, tools or sampling stands in its body.

a line of output=FILE is an object: "line" (number in the input), "digest", "id", "custom_id",
"response" {"status_code", "request_id", "body"} and "error". Requests that failed are in errors=FILE instead: with "error"
where a line is no request, and with the server's answer in "response" where it refused it. The exit code is 1 if any failed.
The same command again goes on where a run stopped.

examples
  deepinfer run_batch input=requests.jsonl output=answers.jsonl"""
SERVER = """\
answers OpenAI's and Anthropic's clients until SIGTERM, then lets running requests finish; docs/serving.md has the rest

examples
  deepinfer serve
  deepinfer serve new_key=alice >> keys.yaml
  deepinfer serve serving.host=0.0.0.0 serving.api_keys=keys.yaml
  deepinfer serve serving.port=9000 cache=prefix speculation=dspark_fixed"""
LAUNCH_EXAMPLES = """\
examples
  deepinfer launch cluster=h200_pd out=h200_pd
  deepinfer launch hardware=h200 parallel=ep8 launcher=torchrun out=one_node"""
NOTES = {
    "generate": FILE_FORMAT,
    "plan": LINTER,
    "launch": LAUNCH_EXAMPLES,
    "serve": SERVER,
    "run_batch": BATCH_FORMAT,
}  # what else a verb's own help says
SETTINGS = {"serve": ("serving", "default")}  # keys that a verb's own help lists beside those of its task
FLAGS = """\
flags
  --help, --version
  --cfg job --resolve [--package deploy.decode]   the composed configuration, before it is checked for meaning
  --info defaults|defaults-tree|searchpath        where it comes from
  --config-dir DIR                                options of your own: DIR/<group>/<option>.yaml
  -m                                              a comma or range in a value makes a run of each point
  --shell-completion install=bash                 eval "$(deepinfer -sc install=bash)" completes what is typed"""
ENDING = """\
options marked (planned): `deepinfer plan` answers for them, a run refuses them by name
sizes and times may carry units: 64k is 64,000, 64Ki is 65,536; 80GiB, 1.5GB, 2.5TB/s, 250ms, 96%
exit codes: 0 well · 2 configuration · 3 plan · 4 device or toolkit missing · 5 weights · 6 memory · 7 network
            130 Ctrl-C · 143 SIGTERM · 1 else

examples
  deepinfer
  deepinfer prompt="It's 5, right?" sampling.max_tokens=64
  deepinfer plan hardware=ascend950 parallel=ep64
  deepinfer plan cluster=gb200_rack explain=parallel
  deepinfer launch cluster=h200_pd out=h200_pd
  deepinfer doctor"""


def render_help(verb: str | None = None) -> str:
    """The whole help, or that of one verb."""
    if verb is not None:
        words = [f"  {WORD_HELP[word]}" for word in WORDS_OF_VERB.get(verb, ())]
        words += task_keys(verb)
        words += setting_keys(*SETTINGS[verb]) if verb in SETTINGS else []
        words += ["", NOTES[verb]] if verb in NOTES else []
        ending = "deepinfer --help lists all groups and options"
        return "\n".join([USAGE.replace("[verb]", verb), "", *_verb_lines((verb,)), *words, "", ending])
    parts = [USAGE, "\n".join(["verbs", *_verb_lines(VERBS)]), "\n".join(["strings, taken as typed", *_word_lines()])]
    parts += [_group(group) for group in Spec.__struct_fields__ if group != "task"]
    return "\n\n".join([*parts, FLAGS, ENDING])


def task_keys(verb: str) -> list[str]:
    """The keys of a verb, each with its default and what it is for."""
    return setting_keys("task", verb)


def setting_keys(group: str, option: str) -> list[str]:
    """The keys of an option, each with its default and what it is for."""
    keys = {key: value for key, value in _values(group, option).items() if key not in ("kind", "defaults")}
    return [f"  {group}.{key}={_shown(value)}   {meaning_of(f'{group}.{key}')}".rstrip() for key, value in keys.items()]


def _shown(value: Any) -> str:
    """A default as it would be typed."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def options(group: str) -> list[str]:
    """Option names of a group, without composing anything."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in _folder(group).iterdir() if entry.name.endswith(".yaml")
    )


def purpose(group: str, option: str) -> str:
    """The first line of an option file, without its comment sign; a header for Hydra may stand before it."""
    lines = (_folder(group) / f"{option}.yaml").read_text("utf-8").splitlines()
    return next(line for line in lines if not line.startswith(HEADER)).removeprefix("#").strip()


def is_planned(group: str, option: str) -> bool:
    """Whether an option can be planned and not run: this version has no code for it."""
    values = _values(group, option)
    if group == "hardware" and "architecture" in values:
        return bool(plan_only(values["kind"], values["architecture"]["value"]))
    return any(values.get(key) in NOT_BUILT.get(f"{group}.{key}", ()) for key in values)


def _values(group: str, option: str) -> dict[str, Any]:
    """The keys of an option's file, over those of the options that it builds on."""
    data = yaml.safe_load((_folder(group) / f"{option}.yaml").read_text("utf-8")) or {}
    bases = [base for base in data.get("defaults", ()) if isinstance(base, str) and base != "_self_"]
    found: dict[str, Any] = {}
    for base in bases:
        found |= _values(group, base)
    return found | data


def _folder(group: str) -> Traversable:
    return files("deepinfer.conf") / group


def _verb_lines(verbs: tuple[str, ...]) -> list[str]:
    missing = NOT_BUILT["task.kind"]
    return [f"  {verb:<10} {purpose('task', verb)}{' (not built yet)' if verb in missing else ''}" for verb in verbs]


def _word_lines() -> list[str]:
    return [f"  {WORD_HELP[word]}" for word in WORDS]


def _group(group: str) -> str:
    lines = [f"  {name:<14} {purpose(group, name)}{PLANNED * is_planned(group, name)}" for name in options(group)]
    return "\n".join([f"{group}=", *lines])
