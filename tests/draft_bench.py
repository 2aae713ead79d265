"""A model with its drafter on one cache, fed by hand: what the executor does, without an engine."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from small_models import Engine, SmallModel, make_step
from torch import Tensor

from deepinfer.arch.cache import Numerics
from deepinfer.interfaces import Drafts
from deepinfer.model.dspark import DSparkModel
from deepinfer.ops import Ops
from deepinfer.speculation.calibration import Calibration
from deepinfer.speculation.dspark import DSpark

PAD = 3
Piece = tuple[list[int], int, int, int]  # tokens, first position, end position, slot


@dataclass
class DraftBench:
    engine: Engine
    drafter: DSpark

    def step(
        self, *pieces: Piece, tables: list[list[int]] | None = None, **fields: list[int] | list[list[int]]
    ) -> Tensor:
        """Hidden rows of a step that the drafter has observed. `tables` and `fields` of StepInput besides."""
        own = [self.engine.table(slot) for *_, slot in pieces]
        step = make_step([(*piece, table) for piece, table in zip(pieces, tables or own, strict=True)])
        step = replace(step, **{name: np.array(values, dtype=np.int64) for name, values in fields.items()})
        hidden_TD, features_TF = self.engine.model.forward_with_features(step, self.engine.cache)
        self.drafter.observe(step, features_TF)
        return hidden_TD

    def prefill(self, tokens: list[int], cuts: list[int], slot: int) -> Tensor:
        """All but the newest token, in steps that end at `cuts`."""
        ends = [*cuts, len(tokens) - 1]
        return torch.cat([self.step((tokens, a, b, slot)) for a, b in zip([0, *ends], ends) if a < b])

    def draft(self, *sequences: tuple[list[int], int]) -> tuple[Drafts, Tensor]:
        """Greedy drafts behind (tokens, slot), and the logits [S, K, V] they were chosen from."""
        slots = np.array([slot for _, slot in sequences])
        tokens_NL = np.full((self.engine.cache.num_slots, PAD + max(len(tokens) for tokens, _ in sequences)), -1)
        for tokens, slot in sequences:
            tokens_NL[slot, PAD : PAD + len(tokens)] = tokens
        logits: list[Tensor] = []

        def choose(number: int, logits_SV: Tensor) -> np.ndarray:
            assert number == len(logits)
            logits.append(logits_SV.clone())
            return logits_SV.argmax(-1).numpy()

        num_tokens = np.array([len(tokens) for tokens, _ in sequences])
        drafts = self.drafter.draft(slots, tokens_NL.astype(np.int32), num_tokens, PAD, choose)
        return drafts, torch.stack(logits, 1)

    def follow(self, tokens: list[int], slot: int, count: int) -> list[int]:
        """Greedy continuation in verify steps: drafts are checked, and what the model says instead of a wrong one counts."""
        tokens = list(tokens)
        end = len(tokens) + count
        while len(tokens) < end:
            drafts = self.draft((tokens, slot))[0].token_ids[0].tolist()
            first = len(tokens) - 1
            hidden_TD = self.step((tokens + drafts, first, len(tokens) + len(drafts), slot))
            said = self.engine.model.logits(hidden_TD).argmax(-1).tolist()
            accepted = next((i for i, draft in enumerate(drafts) if draft != said[i]), len(drafts))
            tokens += said[: accepted + 1]
        return tokens[:end]


def draft_bench(
    small: SmallModel, ops: Ops, numerics: Numerics, dtype: str, *, depth: int | None = None, compact: bool = False
) -> DraftBench:
    """Caches as a plan for `depth` (None: the block) has them, full of NaN; eight slots, two snapshots, no calibration."""
    block, layers = small.config.dspark_block_size, small.config.num_nextn_predict_layers
    depth = depth or block
    engine = small.engine(
        ops, numerics, dtype, num_draft_layers=layers, backtrack=depth + 1, num_snapshots=2, compact=compact
    )
    drafter = DSpark(
        DSparkModel(small.config, small.weights, ops, numerics=numerics, dtype=dtype),
        engine.cache,
        depth=depth,
        calibration=Calibration((), block),
        temperatures=lambda slots: np.zeros(len(slots)),
    )
    return DraftBench(engine, drafter)
