"""Rules about what options ask of the model and of each other."""

from collections.abc import Iterator

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.specs import DSpark, DSparkFixed, Ngram
from deepinfer.config.surroundings import NoGrammar
from deepinfer.config.tasks import Load
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.settle import Case

MOST_THREADS = 256
USUAL_DEPTH = 8  # drafts; where more do not fit, they are what is too many


def drafter_fits_checkpoint(case: Case) -> Iterator[Problem]:
    """A drafter must be in the checkpoint and is only as good as the depth it was trained for."""
    config, depth = case.config, case.drafting.depth
    if not isinstance(case.spec.speculation, DSpark | DSparkFixed):
        return
    if not config.num_nextn_predict_layers:
        yield plan_problem(
            f"speculation={case.drafting.kind}",
            f"{case.model_name} has no draft layers",
            "its config.json says num_nextn_predict_layers 0",
            "speculation=ngram",
        )
    elif depth > config.dspark_block_size:
        yield plan_problem(
            f"speculation.depth={depth}",
            f"the drafter of {case.model_name} was trained for blocks of {config.dspark_block_size}",
            "deeper drafts would be noise at every position",
            f"speculation.depth={config.dspark_block_size}",
        )


def draft_lengths_fit(case: Case) -> Iterator[Problem]:
    """Lengths inside one drafter's options."""
    speculation = case.spec.speculation
    if isinstance(speculation, DSparkFixed) and speculation.verify_length > speculation.depth:
        yield plan_problem(
            f"speculation.verify_length={speculation.verify_length}",
            f"only {speculation.depth} tokens are drafted",
            "there is nothing more to check",
            f"speculation.verify_length={speculation.depth}",
        )
    if isinstance(speculation, Ngram) and speculation.min_match > speculation.max_match:
        yield plan_problem(
            f"speculation.min_match={speculation.min_match}",
            f"speculation.max_match={speculation.max_match} is shorter",
            "no match has such a length",
            f"speculation.min_match={speculation.max_match}",
        )


def reproducible_is_lossless(case: Case) -> Iterator[Problem]:
    """`sampling.reproducible` refuses every option whose output depends on speed or approximates."""
    if not case.numerics.reproducible:
        return
    asked = "sampling.reproducible=true"
    if case.numerics.verify == "rejection":
        why = "how many drafts are checked would change the text"
        yield plan_problem(asked, "speculation.verify=rejection", why, "speculation.verify=coupled")
    if case.numerics.replay != "none":
        yield plan_problem(asked, f"replay={case.numerics.replay}", "bounded replay approximates", "replay=none")
    if case.approximates_hits:
        why = "what follows a prefix hit would differ from a cold run"
        yield plan_problem(asked, "replay.on_hit=bounded", why, "replay.on_hit=snapshot")


def lengths_fit(case: Case) -> Iterator[Problem]:
    """The longest sequence against the model, a step against its sequences, a chunk against a step."""
    asked_len, scheduler = case.spec.model.max_model_len, case.spec.scheduler
    positions, rows = case.config.max_position_embeddings, scheduler.max_num_batched_tokens
    if asked_len != "auto" and asked_len > positions:
        found = f"{case.model_name} has {positions} positions"
        yield plan_problem(f"model.max_model_len={asked_len}", found, fix=f"model.max_model_len={positions}")
    least = scheduler.max_num_seqs * (1 + case.drafting.depth)
    if rows < least and case.drafting.depth > USUAL_DEPTH and rows >= 2 * scheduler.max_num_seqs:
        yield plan_problem(
            f"speculation.depth={case.drafting.depth}",
            f"{scheduler.max_num_seqs} sequences with as many drafts each need {least} rows",
            f"a step holds every running sequence, and scheduler.max_num_batched_tokens={rows}",
            f"speculation.depth={rows // scheduler.max_num_seqs - 1}",
        )
    elif rows < least:
        drafts = f" with {case.drafting.depth} drafts each" if case.drafting.depth else ""
        yield plan_problem(
            f"scheduler.max_num_seqs={scheduler.max_num_seqs}",
            f"{scheduler.max_num_seqs} sequences{drafts} need {least} rows",
            f"a step holds every running sequence, and scheduler.max_num_batched_tokens={rows}",
            _enough_rows(rows, 1 + case.drafting.depth),
        )
    if scheduler.max_prefill_tokens > rows:
        yield plan_problem(
            f"scheduler.max_prefill_tokens={scheduler.max_prefill_tokens}",
            f"a step has scheduler.max_num_batched_tokens={rows} rows",
            "no chunk can be longer than a step",
            f"scheduler.max_prefill_tokens={rows}",
        )


def _enough_rows(rows: int, rows_each: int) -> str:
    """As many sequences as the rows of a step carry; more rows where not even one fits."""
    most = rows // rows_each
    return f"scheduler.max_num_seqs={most}" if most else f"scheduler.max_num_batched_tokens={rows_each}"


def sampling_is_consistent(case: Case) -> Iterator[Problem]:
    """Lengths that contradict each other, and tokens that the model does not have."""
    sampling, vocabulary = case.spec.sampling, case.config.vocab_size
    if sampling.min_tokens > sampling.max_tokens:
        yield plan_problem(
            f"sampling.min_tokens={sampling.min_tokens}",
            f"sampling.max_tokens={sampling.max_tokens} ends an answer earlier",
            fix=f"sampling.min_tokens={sampling.max_tokens}",
        )
    for key, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        outside = [token for token in ids if token >= vocabulary]
        if outside:
            found = f"{case.model_name} has tokens 0 … {vocabulary - 1}"
            yield plan_problem(f"sampling.{key} with token {outside[0]}", found)
    for key in ("logprobs", "prompt_logprobs"):
        wanted = getattr(sampling, key) or 0
        if wanted > vocabulary:
            found = f"{case.model_name} has {vocabulary} tokens"
            yield plan_problem(f"sampling.{key}={wanted}", found, fix=f"sampling.{key}={vocabulary}")


def grammar_is_enforced(case: Case) -> Iterator[Problem]:
    """What answers must look like is said once, and somebody enforces it."""
    sampling = case.spec.sampling
    given = [key for key in ("json_schema", "regex", "ebnf", "choice") if getattr(sampling, key)]
    asked = " ".join(f"sampling.{key}=…" for key in given)
    if len(given) > 1:
        yield plan_problem(asked, "an answer follows one grammar", "they would contradict each other", asked.split()[0])
    if given and isinstance(case.spec.grammar, NoGrammar):
        yield plan_problem(asked, "grammar=none", "nothing would enforce it", f"grammar=llguidance {asked.split()[0]}")
    if given and isinstance(case.spec.task, Load):
        why = "its answers have an exact length, and one under a grammar ends where that is complete: leave the key out"
        yield plan_problem(asked, f"{case.spec.task.kind} measures a load", why)


def threads_can_be_started(case: Case) -> Iterator[Problem]:
    """Threads beyond any machine's cores crash the process when they are started."""
    threads, most = case.numerics.threads, max(MOST_THREADS, case.facts.machine.cores)
    if threads > most:
        found = f"this machine has {case.facts.machine.cores} cores"
        why = f"no more than {most} threads are started"
        yield plan_problem(f"model.threads={threads}", found, why, "model.threads=auto")


def repository_is_read(case: Case) -> Iterator[Problem]:
    """A repository or revision is asked for only to be fetched; the tiny model is in the package."""
    model = case.spec.model
    if model.path is not None or case.model_name != "v41_tiny":
        return
    for key, value in (("repo", model.repo), ("revision", model.revision)):
        if value is not None:
            yield plan_problem(
                f"model.{key}={value}",
                f"model={model.name} is v41_tiny here, which ships with deepinfer and is fetched from nowhere",
                "only v41_flash comes from a hub; a folder with any other checkpoint is model.path=FOLDER",
                "model=v41_flash",
            )


def weights_are_there(case: Case) -> Iterator[Problem]:
    """A local checkpoint must hold weights. The released model's come from the hub, its config.json alone ships."""
    from_hub = case.spec.model.path is None and case.model_name == "v41_flash"
    if case.spec.model.weights == "dummy" or from_hub or case.checkpoint.files or case.checkpoint.problems:
        return
    asked = f"model.path={case.spec.model.path}" if case.spec.model.path else f"model={case.model_name}"
    found = f"no safetensors file lies in {case.checkpoint.folder}"
    yield Problem(asked=asked, found=found, fix="model.weights=dummy", code=ExitCode.WEIGHTS)


def draft_weights_are_there(case: Case) -> Iterator[Problem]:
    """A checkpoint that is here whole must hold the drafter that its config.json promises."""
    checkpoint, layers = case.checkpoint, case.drafting.num_draft_layers
    if not layers or not checkpoint.tensors or checkpoint.missing_files:
        return
    if not any(name.startswith("mtp.") for name in checkpoint.tensors):
        yield Problem(
            asked=f"speculation={case.drafting.kind}",
            found=f"no tensor in {checkpoint.folder} begins with mtp.",
            why=f"its config.json promises {layers} draft layers, and their weights were left out",
            fix="speculation=ngram",
            code=ExitCode.WEIGHTS,
        )
