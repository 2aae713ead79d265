"""A site: how many machines it has, what they are called and joined by, and whether this combination ever ran there."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from deepinfer.config.leaves import Auto, Component, Positive, Text

Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", extra={"like": "2026-11-30", "day": True})]
Commit = Annotated[str, Meta(pattern=r"^[0-9a-f]{7,40}$", extra={"like": "8d92ab0"})]


class Verified(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and when a cluster's combination was really run."""

    date: Day  # of that run
    hardware: Text  # the machine that it ran on
    commit: Commit  # of deepinfer
    what: Text  # what was run, and what came of it


class Cluster(Component, frozen=True, kw_only=True):
    """Site facts and a verified combination."""


class NoCluster(Cluster, frozen=True, kw_only=True, tag="none"):
    pass


class SiteCluster(Cluster, frozen=True, kw_only=True, tag="site"):
    """A plan that needs more nodes than the site has is refused."""

    name: Text | None  # in words, for messages and tables; null is the name of its file
    nodes: Positive | Auto  # machines of the site; auto: as many as hosts are named, and without names no limit
    hosts: tuple[Text, ...]  # their names in the order of the plan's nodes; may be empty
    interface: Text | None  # network interface by which the ranks find each other; null leaves it to the library
    verified: Verified | Literal["untested"]  # {date, hardware, commit, what} of a real run

    @property
    def num_nodes(self) -> int | None:
        """Machines of the site; None where nobody said how many there are."""
        return (len(self.hosts) or None) if self.nodes == "auto" else self.nodes
