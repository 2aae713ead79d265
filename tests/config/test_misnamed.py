"""Words of other engines: each is answered with ours, and what is offered can be typed."""

import shlex

import pytest

from deepinfer.config.argv import parse
from deepinfer.config.compose import load
from deepinfer.config.errors import Refused
from deepinfer.config.keys import is_key
from deepinfer.config.misnamed import INSTEAD, LIKE, OURS, SPREAD, explainable, like, meant, options_of
from deepinfer.config.specs import Spec

FLAGS = (  # as vLLM and SGLang spell them
    "tensor_parallel_size tp_size pipeline_parallel_size data_parallel_size gpu_memory_utilization mem_fraction_static "
    "kv_cache_dtype quantization enable_prefix_caching disable_radix_cache enable_expert_parallel ep_size "
    "speculative_config speculative_algorithm max_running_requests chunked_prefill_size block_size page_size "
    "distributed_executor_backend attention_backend context_length disaggregation_mode num_gpu_blocks_override "
    "async_scheduling enable_overlap_schedule structured_outputs_config "
    "served_model_name api_key enable_auto_tool_choice tool_call_parser reasoning_parser chat_template allowed_origins "
    "ssl_keyfile root_path disable_log_requests model otlp_traces_endpoint max_queued_requests enable_metrics"
).split()


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_other_engines_are_known(flag: str) -> None:
    why, _ = meant(flag, "8")
    assert why


def test_what_is_offered_is_here() -> None:
    assert all(is_key(key) for key in OURS.values())
    assert set(LIKE.values()) <= set(options_of("hardware"))
    typeable = {fix for _, fix in INSTEAD.values() if not fix.startswith("--")}
    for fix in typeable:
        load(*shlex.split(fix))
    assert all(meant(word, "64")[1] == "parallel=ep64" for word in SPREAD)
    assert meant("tp", "3")[1] == "parallel=ep8" and meant("tp", "1")[1] == "parallel=single"


@pytest.mark.parametrize("word", [*INSTEAD, *OURS, *SPREAD])
def test_what_explains_them_is_a_key_or_a_group(word: str) -> None:
    why, key = explainable(word)
    assert why and (is_key(key) or key in Spec.__struct_fields__ or word == "config")


def test_words_that_nobody_knows_are_not_explained() -> None:
    assert explainable("no_such_word") == ("", "")
    assert like("parallel", "mi300x") == ("", "")


@pytest.mark.parametrize(
    ("flag", "fix"),
    [
        (("--served-model-name", "v4"), "serving.model_names=[v4]"),
        (("--served-model-name", "a b"), "'serving.model_names=[\"a b\"]'"),
        (("--allowed-origins", "http://a"), "serving.cors_origins=[http://a]"),
        (("--host", "0.0.0.0"), "serving.host=0.0.0.0"),
        (("--port", "9000"), "serving.port=9000"),
        (("--api-key", "sk-1"), "serving.api_keys=keys.yaml"),
        (("--max-model-len", "4096"), "model.max_model_len=4096"),
        (("--model", "deepseek-ai/DeepSeek-V4.1-Flash"), "model=v41_flash"),
        (("--model", "someone/else"), "model=v41_flash"),
        (("-o", "out.jsonl"), "output=out.jsonl"),
        (("--input-file", "in.jsonl"), "input=in.jsonl"),
        (("deepseek-ai/DeepSeek-V4.1-Flash",), "model=v41_flash"),
        (("in.jsonl",), "input=in.jsonl or prompts=in.jsonl"),
    ],
)
def test_flags_of_other_servers(flag: tuple[str, ...], fix: str) -> None:
    """What is to be typed is one word of the line, as the key takes it; a key never is repeated."""
    (problem,) = parse(["serve", *flag]).problems
    assert problem.fix == fix and "sk-1" not in str(problem)


def test_a_model_as_the_hub_names_it() -> None:
    assert like("model", "deepseek-ai/DeepSeek-V4.1-Flash") == ("", "v41_flash")
    assert like("model", "d") == like("model", "meta/llama") == ("", "")


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("workload.cached_share=60", "workload.cached_share=60%"),
        ("workload.cached_share=600", "workload.cached_share=1"),
        ("sampling.top_p=95", "sampling.top_p=95%"),
        ("sampling.top_p=1.5", "sampling.top_p=1"),
        ("sampling.temperature=-60", "sampling.temperature=0"),
    ],
)
def test_a_percentage_without_its_sign(override: str, fix: str) -> None:
    with pytest.raises(Refused) as refused:
        load(override)
    (problem,) = refused.value.problems
    assert problem.fix == fix
    if fix:
        load(fix)
