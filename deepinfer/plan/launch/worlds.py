"""The worlds of a plan: each replica of a role is a group of ranks that meet, and start and fail, together."""

from itertools import groupby

from deepinfer.plan.frozen import Frozen
from deepinfer.plan.types import Plan


class World(Frozen, frozen=True, kw_only=True):
    """One replica of one role."""

    index: int  # of all worlds of the plan
    role: str
    replica: int
    first_rank: int  # in the plan; ranks of a world count from 0
    first_node: int  # in the plan; nodes of a world count from 0, too
    node_ranks: tuple[int, ...]  # node of this world → how many ranks it runs

    @property
    def name(self) -> str:
        return f"{self.role}-{self.replica}"

    @property
    def size(self) -> int:
        """Ranks: what WORLD_SIZE must be."""
        return sum(self.node_ranks)

    @property
    def num_nodes(self) -> int:
        return len(self.node_ranks)


def worlds_of(plan: Plan) -> tuple[World, ...]:
    """Every replica of every role, in rank order."""
    worlds: list[World] = []
    for (role, replica), group in groupby(plan.layout.ranks, key=lambda rank: (rank.role, rank.replica)):
        ranks = list(group)
        node_ranks = tuple(len(list(on_node)) for _, on_node in groupby(ranks, key=lambda rank: rank.node))
        worlds.append(
            World(
                index=len(worlds),
                role=role,
                replica=replica,
                first_rank=ranks[0].rank,
                first_node=ranks[0].node,
                node_ranks=node_ranks,
            )
        )
    return tuple(worlds)
