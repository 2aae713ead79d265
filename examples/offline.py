"""Ten lines: a model in this process, raw text and a chat, greedy and sampled."""

from deepinfer import LLM, SamplingParams

with LLM("model=v41_tiny", "hardware=cpu") as llm:
    sampled = SamplingParams(max_tokens=48, temperature=0.7, seed=7)
    for out in llm.generate(["Once upon a time", "One sunny day,"], sampled):
        print(out.prompt_token_ids[:3], repr(out.text), out.finish_reason)
    (out,) = llm.chat("What is 12 + 30?", SamplingParams(max_tokens=16, temperature=0.0))
    print(out.message.content)
