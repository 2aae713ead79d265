"""The library door on the golden checkpoint, from overrides to text and numbers."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from deepinfer import LLM, RequestOutput, SamplingParams
from deepinfer.config.errors import Refused

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
PROMPTS = json.loads((GOLDEN / "tiny_a" / "prompts.json").read_text())["prompts"]
GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=1)


@pytest.fixture(scope="module")
def llm():
    with LLM(
        f"model.path={GOLDEN / 'tiny_a'}",
        "model.max_model_len=256",
        "hardware=cpu",
        model__numerics="none",
        model__dtype="float32",
        scheduler__max_num_seqs=4,
        cache__num_blocks=8,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def outputs(llm: LLM) -> list[RequestOutput]:
    return llm.generate(PROMPTS[:3], GREEDY)


def test_golden_tokens_and_log_probabilities(outputs: list[RequestOutput]) -> None:
    golden = np.load(GOLDEN / "golden_a.npz")
    for number, (prompt, out) in enumerate(zip(PROMPTS, outputs)):
        key = f"chk_f64/none/{number}"
        assert out.token_ids == golden[f"{key}/greedy"][:5].tolist() and out.prompt_token_ids == prompt
        chosen = [entry[token] for entry, token in zip(out.logprobs, out.token_ids)]
        assert np.abs(chosen - golden[f"{key}/greedy_logprob"][:5]).max() < 1e-4
        assert out.prompt_logprobs[0] is None
        known = [out.prompt_logprobs[position][prompt[position]] for position in range(1, len(prompt))]
        assert np.abs(known - golden[f"{key}/next_logprob"]).max() < 1e-4


def test_a_seeded_sample_is_the_same_alone_and_in_company(llm: LLM) -> None:
    params = [
        SamplingParams(max_tokens=4, seed=11, top_p=0.95, ignore_eos=True),
        SamplingParams(max_tokens=4, seed=12, temperature=2.0, repetition_penalty=1.2, ignore_eos=True),
        SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True),
    ]
    together = [out.token_ids for out in llm.generate(PROMPTS[:3], params)]
    alone = [llm.generate([prompt], one)[0].token_ids for prompt, one in zip(PROMPTS, params)]
    assert together == alone


def test_text_follows_bos_and_streams_to_the_same_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, seed=3, ignore_eos=True)
    (out,) = llm.generate("It's 5, right? Ä", params)
    assert out.prompt_token_ids[0] == 0 and llm.tokenizer.decode(out.prompt_token_ids) == "It's 5, right? Ä"
    assert "".join(event.text for event in llm.stream("It's 5, right? Ä", params)) == out.text


def test_a_second_llm_lives_beside_the_first(llm: LLM, outputs: list[RequestOutput]) -> None:
    with LLM(f"model.path={GOLDEN / 'tiny_a'}", "model.max_model_len=256", "model.numerics=kv") as other:
        short = msgspec.structs.replace(GREEDY, max_tokens=2)
        (theirs,) = other.generate([PROMPTS[1]], short)
        (ours,) = llm.generate([PROMPTS[1]], short)
    assert ours.token_ids == outputs[1].token_ids[:2] and theirs.error is None
    assert theirs.prompt_logprobs[5] != ours.prompt_logprobs[5]


def test_what_this_tokenizer_cannot_chat_is_refused_by_name(llm: LLM) -> None:
    (plain,) = llm.chat("Hello", SamplingParams(max_tokens=2, temperature=0.0))
    assert plain.error is None and plain.message is not None
    (thinking,) = llm.chat("Hello", SamplingParams(max_tokens=2), thinking=True)
    assert "<｜System｜>" in thinking.error


def test_wrong_overrides_are_refused_together() -> None:
    with pytest.raises(Refused) as caught:
        LLM("hardware=cpuu", "sampling.temperature=-1")
    assert "cpuu" in str(caught.value) and "temperature" in str(caught.value)
