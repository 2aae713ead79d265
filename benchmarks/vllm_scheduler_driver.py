"""vLLM's scheduler without a model, for benchmarks/scheduler_speed.py, which starts it in vLLM's own environment.

    python benchmarks/vllm_scheduler_driver.py --batch 256 [--asynchronous] [--drafts 5] [--prefix-cache]

Says one JSON line when all prompts are through, then reads lines `{"steps": n}` and answers each with the CPU seconds of every
step: `schedule_s`, `update_s` (update_from_output, which also makes the answers' EngineCoreOutputs) and `drafts_s`
(update_draft_token_ids, which the synchronous engine calls after a step). Making the model's output is not counted.
"""

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import options

# The scheduler's work differs a little between model runners; V2 is vLLM's choice on devices with Triton.
SETTINGS = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}

MODEL = {  # never built; the scheduler asks its configuration for a length and for what kind of model it is
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 129_280,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1_048_576,
}


def make_config(asked: Any, num_blocks: int) -> Any:
    """The configuration of an engine on one device, as its defaults have it, with the sizes asked for."""
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=asked.length)
        drafts = None
        if asked.drafts:
            drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=asked.drafts, prompt_lookup_max=3)
        config = VllmConfig(
            model_config=model,
            cache_config=CacheConfig(block_size=asked.block_tokens, enable_prefix_caching=asked.prefix_cache),
            scheduler_config=SchedulerConfig(
                max_num_seqs=asked.batch,
                max_num_batched_tokens=asked.batch * (asked.prompt + 128),
                max_model_len=asked.length,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            device_config=DeviceConfig("cpu"),
            speculative_config=drafts,
        )
    config.cache_config.num_gpu_blocks = num_blocks
    return config


def make_scheduler(asked: Any) -> Any:
    """A scheduler with one group of cache blocks; models with several kinds of attention have more."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    num_blocks = asked.batch * (asked.length // asked.block_tokens + 2) + 1
    config = make_config(asked, num_blocks)
    spec = FullAttentionSpec(block_size=asked.block_tokens, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    if asked.asynchronous:
        config.scheduler_config.async_scheduling = True
    return (AsyncScheduler if asked.asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=asked.block_tokens,
        log_stats=False,
    )


def add_requests(scheduler: Any, asked: Any) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    hasher = None
    if asked.prefix_cache:
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        hasher = get_request_block_hasher(asked.block_tokens, hash_fn)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=asked.length - asked.prompt)
    for number in range(asked.batch):
        scheduler.add_request(
            Request(
                request_id=f"request-{number}",
                prompt_token_ids=list(range(7 + number, 7 + number + asked.prompt + number % 128)),
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )
        )


class Loop:
    """The calls that the engine makes, in its order: with the asynchronous scheduler one step ahead of the results."""

    def __init__(self, scheduler: Any, asked: Any) -> None:
        self.scheduler, self.asked = scheduler, asked
        self._ahead: Any = None
        self._number = 0

    def step(self) -> tuple[float, float, float, int]:
        """CPU seconds of schedule, update and drafts, and the tokens that the step gave."""
        started = time.thread_time()
        scheduled = self.scheduler.schedule()
        schedule_s = time.thread_time() - started
        if self.asked.asynchronous:
            scheduled, self._ahead = self._ahead, scheduled
            if scheduled is None:
                return schedule_s, 0.0, 0.0, 0
        output = self._output(scheduled)
        drafts = self._drafts(scheduled)
        started = time.thread_time()
        answers = self.scheduler.update_from_output(scheduled, output)
        updated = time.thread_time()
        if drafts is not None:
            self.scheduler.update_draft_token_ids(drafts)
        drafts_s = time.thread_time() - updated
        num_tokens = sum(len(answer.new_token_ids) for some in answers.values() for answer in some.outputs)
        return schedule_s, updated - started, drafts_s, num_tokens

    def _output(self, scheduled: Any) -> Any:
        """One token for each request, and the accepted drafts: 0 … all of them in turn."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(scheduled.num_scheduled_tokens)
        checked = scheduled.scheduled_spec_decode_tokens
        self._number += 1
        tokens = []
        for index, name in enumerate(ids):
            accepted = (index + self._number) % (len(checked[name]) + 1) if name in checked else 0
            tokens.append([1000 + self._number] * (1 + accepted))
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=tokens
        )

    def _drafts(self, scheduled: Any) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        if not self.asked.drafts or self.asked.asynchronous:
            return None
        ids = list(scheduled.num_scheduled_tokens)
        return DraftTokenIds(ids, [[2000 + self._number] * self.asked.drafts for _ in ids])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=96, help="tokens of the shortest; up to 127 more")
    parser.add_argument("--length", type=int, default=8192, help="max_model_len")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--prefix-cache", action="store_true")
    asked = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints goes elsewhere
    os.environ |= SETTINGS
    import torch
    import vllm

    torch.set_num_threads(1)
    scheduler = make_scheduler(asked)
    add_requests(scheduler, asked)
    loop = Loop(scheduler, asked)
    for _ in range(3):
        loop.step()
    assert len(scheduler.running) == asked.batch, "a prompt is not through"
    gc.collect()
    gc.freeze()  # as vLLM's engine does before it serves
    print(json.dumps({"vllm": vllm.__version__, "torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        times = [loop.step() for _ in range(json.loads(line)["steps"])]
        names = ("schedule_s", "update_s", "drafts_s", "num_tokens")
        print(json.dumps(dict(zip(names, zip(*times)))), file=answers, flush=True)


if __name__ == "__main__":
    main()
