"""Worker processes that keep training batches ready."""

import multiprocessing as mp
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import NamedTuple

from examples.tiny_model.packing import PackedBatch, batches

QUEUE_BATCHES = 6


class BatchShape(NamedTuple):
    rows: int
    tokens: int
    alignment: int
    long_context: bool


def _work(queue: "Queue[PackedBatch]", tokenizer_path: Path, seed: int, shape: BatchShape) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    for batch in batches(tokenizer, seed, shape.rows, shape.tokens, shape.alignment, shape.long_context):
        queue.put(batch)


class Feed:
    """Batches from `num_workers` processes, taken in turn: the same seeds give the same batches in the same order."""

    def __init__(self, tokenizer_path: Path, shape: BatchShape, seed: int, num_workers: int) -> None:
        context = mp.get_context("spawn")
        self.queues: list[Queue[PackedBatch]] = [context.Queue(QUEUE_BATCHES) for _ in range(num_workers)]
        self.workers: list[BaseProcess] = []
        for index, queue in enumerate(self.queues):
            worker = context.Process(target=_work, args=(queue, tokenizer_path, seed + index, shape), daemon=True)
            worker.start()
            self.workers.append(worker)
        self.turn = 0

    def next(self) -> PackedBatch:
        batch = self.queues[self.turn].get(timeout=120)
        self.turn = (self.turn + 1) % len(self.queues)
        return batch

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()
