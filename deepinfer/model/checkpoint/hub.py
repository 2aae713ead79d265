"""Fetch a released checkpoint through huggingface_hub: only the shards that hold the tensors asked for.

The library keeps the cache, continues broken transfers, skips finished files, and reads its own environment (HF_HOME,
HF_TOKEN, HF_HUB_OFFLINE, …).
"""

import io
from collections.abc import Callable, Collection
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer.model.checkpoint.errors import CheckpointErrors, HubError
from deepinfer.model.checkpoint.reader import INDEX_FILE, SINGLE_FILE, read_index
from deepinfer.model.checkpoint.storage import scale_name

SMALL_FILES = (
    "config.json",
    INDEX_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "draft_calibration.json",
    "LICENSE*",
)
Progress = Callable[[int, int], None]  # bytes done, bytes in all as far as known
# the root error of the library's HTTP client (requests, httpx or httpx2, by version): how a broken connection ends
_TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
# the more special kind first: a gated repository counts as not found
_KNOWN: tuple[tuple[type[Exception], tuple[str, str, str]], ...] = (
    (
        GatedRepoError,
        ("access refused", "the repository is gated", "accept its terms on its page and log in with `hf auth login`"),
    ),
    (
        RepositoryNotFoundError,
        (
            "no such repository",
            "it does not exist, or it is private",
            "check model.repo; `hf auth login` if it is private",
        ),
    ),
    (
        RevisionNotFoundError,
        ("no such revision", "the repository has no branch, tag or commit of this name", "check model.revision"),
    ),
    (
        OfflineModeIsEnabled,
        ("no complete copy in the local cache", "HF_HUB_OFFLINE forbids asking the hub", "unset HF_HUB_OFFLINE"),
    ),
)
_OR_A_FOLDER = "or name a folder that holds the checkpoint: model.path=DIR"


def fetch_checkpoint(
    repo: str,
    revision: str | None = None,
    *,
    names: Collection[str] | None = None,
    endpoint: str | None = None,
    cache_dir: Path | str | None = None,
    token: str | bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch `repo` at `revision` (branch, tag or commit; None is main) into the library's cache; returns the folder to open.

    `names` are the tensors this rank needs (scales come along); None fetches every shard. Both passes, the index and the
    shards, use the commit that `revision` named at the start. What is cached already is not fetched again, and a complete
    cache needs no network. Raises HubError when it cannot be fetched, CheckpointErrors when the repository holds no
    checkpoint.
    """

    revision = revision or "main"

    def snapshot(at: str, patterns: Collection[str]) -> Path:
        try:
            folder = snapshot_download(
                repo,
                revision=at,
                allow_patterns=sorted(patterns),
                endpoint=endpoint,
                cache_dir=cache_dir,
                token=token,
                tqdm_class=_reporting_bar(progress),
            )
        except (_TRANSPORT_ERROR, OSError, HFValidationError) as error:
            raise _explained(error, repo, revision, endpoint) from error
        return Path(folder)

    folder = snapshot(revision, SMALL_FILES)
    shards = _needed_shards(folder, names)
    folder = snapshot(folder.name, shards)  # a snapshot's folder is named after its commit
    absent = sorted(file for file in shards if not (folder / file).is_file())
    if absent:
        raise CheckpointErrors(folder, {f"not in {repo} at {revision}": absent})
    return folder


def _needed_shards(folder: Path, names: Collection[str] | None) -> set[str]:
    if not (folder / INDEX_FILE).is_file():
        return {SINGLE_FILE}
    indexed = read_index(folder)
    if names is None:
        return set(indexed.values())
    wanted = {*names, *(scale_name(name) for name in names)}
    return {file for name, file in indexed.items() if name in wanted}


def _explained(error: Exception, repo: str, revision: str, endpoint: str | None) -> HubError:
    """The library's error as one sentence each of what was asked, what was found, why, and what to do."""
    asked = f"fetch {repo} at revision {revision} from {endpoint or constants.ENDPOINT}"
    cause = error.__cause__  # "not found locally" hides why the hub was not asked
    if isinstance(cause, (HfHubHTTPError, OfflineModeIsEnabled, _TRANSPORT_ERROR)) and not isinstance(
        error, HfHubHTTPError
    ):
        error = cause
    found, why, fix = _parts(error)
    return HubError(asked=asked, found=found, why=why, fix=f"{fix}, {_OR_A_FOLDER}")


def _parts(error: Exception) -> tuple[str, str, str]:
    """What was found, why, and what to do about it."""
    for kind, parts in _KNOWN:
        if isinstance(error, kind):
            return parts
    reason = _first_line(error)
    if isinstance(error, HFValidationError):
        return "not a repository name", reason, "write it as owner/name"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return f"access refused (HTTP {status})", reason, "log in with `hf auth login`, check the token's rights"
        return f"the hub answered HTTP {status}", reason, "try again later"
    again = "try again: finished files are kept"
    if isinstance(error, (_TRANSPORT_ERROR, ConnectionError)):
        return "no connection", f"{type(error).__name__}: {reason}", f"check the network and {again}"
    return type(error).__name__, reason, again


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")


def _reporting_bar(progress: Progress | None) -> type[tqdm]:
    """A progress bar class that draws nothing and reports the bytes of all files together.

    The library may run several byte bars over the same files (received, written): the furthest of them counts.
    """
    byte_bars: list[tqdm] = []

    class ReportingBar(tqdm):
        monitor_interval = 0  # no watcher thread

        def __init__(self, *args: object, **kwargs: object) -> None:
            kwargs.pop("name", None)
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})
            if self.counts_bytes:
                byte_bars.append(self)

        def display(self, *args: object, **kwargs: object) -> None:
            """Draws nothing. Reports nothing either: a discarded bar is displayed once more whenever it is collected."""

        def refresh(self, *args: object, **kwargs: object) -> None:
            if progress is not None and self.counts_bytes and byte_bars:
                progress(int(max(bar.n for bar in byte_bars)), int(max(bar.total or 0 for bar in byte_bars)))

        def update(self, n: float | None = 1) -> bool | None:
            drawn = super().update(n)
            self.refresh()
            return drawn

    return ReportingBar
