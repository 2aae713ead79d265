"""Whether a change of settings still fits beside the cache, and how many sequences then do. For advice that was tried."""

from msgspec import Struct, structs

from deepinfer.arch.cache import CacheLayout
from deepinfer.config.specs import Scheduler
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cache_shares import cache_shares
from deepinfer.plan.memory import Scene
from deepinfer.plan.types import Drafting, RankMemory, RolePlan
from deepinfer.plan.workspace import workspace_bytes

DRAFT_DEPTH = 5  # of conf/speculation/dspark.yaml


class Setting(Struct, frozen=True, kw_only=True):
    """What advice may change of one role."""

    ranks: int  # of a replica
    expert: int
    drafting: Drafting
    max_num_seqs: int
    step_tokens: int  # scheduler.max_num_batched_tokens
    engram: str


class Room(Struct, frozen=True, kw_only=True):
    """The memory of one role's rank: what is free for the cache as planned, and what a setting takes of it."""

    scene: Scene
    role: RolePlan
    workload: SteadyWorkload
    free_bytes: int  # cache and headroom of the fullest rank

    def now(self) -> Setting:
        scheduler = self.scene.case.spec.scheduler
        return Setting(
            ranks=self.role.num_ranks // self.role.replicas,
            expert=self.role.expert,
            drafting=self.scene.case.drafting,
            max_num_seqs=scheduler.max_num_seqs,
            step_tokens=scheduler.max_num_batched_tokens,
            engram=self.role.engram,
        )

    @property
    def longest(self) -> int:
        """The longest sequence that the model or model.max_model_len allows."""
        asked = self.scene.case.spec.model.max_model_len
        return self.scene.case.config.max_position_embeddings if asked == "auto" else asked

    def sequences(self, setting: Setting) -> int:
        """Sequences of the workload that fit into a rank's cache, as many as may run; 0 where the weights do not."""
        case, cache = self.scene.case, self.scene.cache
        free = self.free_bytes + self._taken(self.now()) - self._taken(setting)
        spec = structs.replace(case.spec, scheduler=self._scheduler(setting))
        scene = structs.replace(self.scene, case=structs.replace(case, spec=spec))
        blocks = cache_shares(scene, free, self.longest).num_blocks
        tokens = self.workload.prompt_tokens + self.workload.output_tokens
        needed = tokens if case.spec.model.max_model_len == "auto" else self.longest
        if blocks * cache.padded_block_bytes > free or blocks * cache.block_tokens < needed:
            return 0
        return min(setting.max_num_seqs, blocks // -(-tokens // cache.block_tokens))

    def _scheduler(self, setting: Setting) -> Scheduler:
        scheduler = self.scene.case.spec.scheduler
        return structs.replace(scheduler, max_num_seqs=setting.max_num_seqs, max_num_batched_tokens=setting.step_tokens)

    def _taken(self, setting: Setting) -> int:
        """Bytes of a rank that depend on the setting."""
        case, weights, resident = self.scene.case, self.scene.weights, self.scene.resident
        config, dtype, drafting = case.config, case.numerics.dtype, setting.drafting
        held = (config.n_routed_experts + self.role.redundant_experts) // setting.expert
        taken = weights.experts("experts", resident["experts"], dtype, held)
        if drafting.num_draft_layers:
            draft_held = config.dspark_n_routed_experts // setting.expert
            taken += weights.shared("draft", resident["draft"], dtype)
            taken += weights.experts("draft", resident["draft"], dtype, draft_held)
        if setting.engram != "host":
            holders = setting.ranks if setting.engram == "sharded" else 1
            rows = -(-sum(config.engram_num_embeddings) // holders)
            taken += rows * weights.engram_row_bytes(resident["engram"], dtype)
        return taken + setting.max_num_seqs * self._state_bytes(drafting) + self._workspace(setting)

    def _state_bytes(self, drafting: Drafting) -> int:
        case, cache = self.scene.case, self.scene.cache
        if drafting == case.drafting:
            return cache.padded_state_bytes
        return CacheLayout.of(
            case.config,
            numerics=case.numerics.numerics,
            dtype=case.numerics.dtype,
            block_tokens=case.spec.cache.block_tokens,
            num_draft_layers=drafting.num_draft_layers,
            backtrack=drafting.backtrack,
        ).padded_state_bytes

    def _workspace(self, setting: Setting) -> int:
        case = self.scene.case
        return workspace_bytes(
            case.config,
            case.numerics,
            self._scheduler(setting),
            setting.drafting,
            max_model_len=self.longest,
            gathers=any(choice.resident == "expanded" for choice in self.scene.ops),
        )


def free_bytes(memory: tuple[RankMemory, ...], role: str) -> int:
    """What the fullest rank of a role has for its cache."""
    return min(entry.headroom_bytes + entry.cache_bytes for entry in memory if entry.role == role)
