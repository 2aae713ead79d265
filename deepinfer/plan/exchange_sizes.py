"""What a GPU holds besides while rows are on their way to experts of other ranks: buffers of the exchanges of one layer.

Follows deepinfer/parallel/fixed_dispatch.py, which has room for all rows of all ranks, and split_dispatch.py, which has what
there is. The pairs of a rank's usual load are counted with the step itself.
"""

import math

from msgspec import Struct

from deepinfer.arch.config import V41Config

MOST_ROWS = 2048  # of a step with room for all rows of all ranks,
MOST_ARRIVING = 8192  # and of all ranks together
ALIGNED, GROUP = 16, 32  # bytes at whose multiples a message begins; numbers of a row that share a power
WEIGHT, SLOT, ROUTING = 4, 4, 20  # bytes of a chosen expert: on its way, and while it is sorted


class Exchange(Struct, frozen=True, kw_only=True):
    """`ranks` share experts; `load`: pairs of a rank over its rows' own; `by_pair`: each result comes back by itself."""

    ranks: int
    load: float
    itemsize: int
    by_pair: bool

    def num_bytes(self, config: V41Config, rows: int) -> int:
        """Most for steps of up to `rows` rows on every rank; 0 where all experts are here."""
        if self.ranks == 1:
            return 0
        fixed = min(rows, most_fixed_rows(self.ranks))
        split = self._split(config, rows) if rows > fixed else 0.0
        return math.ceil(max(fixed * self._fixed(config), rows * split))

    def _fixed(self, config: V41Config) -> float:
        """Of a row, where every rank gets all rows: messages as they leave and come; then what is in them and what experts
        make of it, or results on their way back, as they are sent and as they come. Room for pairs elsewhere is among it."""
        hidden, chosen = config.hidden_size * self.itemsize, config.num_experts_per_tok
        inner, pairs = self.itemsize * config.moe_intermediate_size, chosen * self.ranks
        back = 2 * self.ranks * (chosen if self.by_pair else 1) * hidden
        most = max(self.ranks * hidden + pairs * inner, back) + pairs * (hidden + ROUTING)
        return (1 + self.ranks) * message_bytes(config) + most - chosen * self.load * (inner + hidden + ROUTING)

    def _split(self, config: V41Config, rows: int) -> float:
        """The same where each rank gets the rows that chose its experts."""
        hidden, chosen = config.hidden_size * self.itemsize, config.num_experts_per_tok
        reached = min(self.ranks, chosen)
        came = min(float(self.ranks), chosen * self.load)
        back = chosen * (self.load + 1) if self.by_pair else came + reached
        return (reached + came) * message_bytes(config) + max(came, back) * hidden


def most_fixed_rows(ranks: int) -> int:
    """Rows of the largest step with room for all rows of all ranks."""
    return max(1, min(MOST_ROWS, MOST_ARRIVING // ranks))


def message_bytes(config: V41Config) -> int:
    """Of a row on its way: routing weights, slots, FP8 codes and their powers."""
    used = config.num_experts_per_tok * (WEIGHT + SLOT) + config.hidden_size + config.hidden_size // GROUP
    return -(-used // ALIGNED) * ALIGNED
