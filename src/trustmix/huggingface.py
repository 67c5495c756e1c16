"""Files from Hugging Face's hub: from its local cache if they are there, else downloaded.

Before a download, one request with a timeout finds out whether the hub can be reached. Without it, the libraries on top
of the hub repeat their requests for most of a minute on a machine without a network.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from trustmix.errors import TrustmixError
from trustmix.imports import require_extra

REPOSITORIES = {"bert_tiny": "google/bert_uncased_L-2_H-128_A-2"}
"""Repositories of names that recipes use for a folder below the search paths."""
TIMEOUT = 10.0
"""Seconds to wait for the answer to the first request."""


def download_snapshot(repository: str, patterns: Sequence[str], required: Sequence[str]) -> Path:
    """Return a folder with files of a model repository on the hub.

    Parameters
    ----------
    repository
        Name of the repository, "owner/name", or a name in `REPOSITORIES`.
    patterns
        Glob patterns of the files to download.
    required
        Glob patterns of which at least one must match a file of the folder.

    Returns
    -------
    Path
        The folder in the cache of huggingface_hub.

    Raises
    ------
    TrustmixError
        If the files are not cached and cannot be downloaded; the text is the reason, to be put in brackets.
    """
    repository = REPOSITORIES.get(repository, repository)
    try:
        hub = _import_hub()
        cached = _find_cached(hub, repository, patterns)
        if cached is not None and _has_any(cached, required):
            return cached
        require_repository(repository, "model")
        folder = Path(hub.snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # the errors of the network and of the hub have no common class
        raise TrustmixError(_describe(error)) from error
    if not _has_any(folder, required):
        raise TrustmixError(f"the repository has none of the files {', '.join(required)}")
    return folder


def require_repository(repository: str, kind: Literal["model", "dataset"]) -> None:
    """Check with one request that the hub can be reached and has a repository.

    Parameters
    ----------
    repository
        Name of the repository, "owner/name".
    kind
        "model" or "dataset".

    Raises
    ------
    TrustmixError
        If the hub cannot be reached or has no such repository; the text is the reason, to be put in brackets.
    """
    try:
        _import_hub().HfApi().repo_info(repository, repo_type=kind, timeout=TIMEOUT)
    except Exception as error:  # the errors of the network and of the hub have no common class
        raise TrustmixError(_describe(error)) from error


def _import_hub() -> Any:
    return require_extra("huggingface_hub", "the hub", "hub")


def _find_cached(hub: Any, repository: str, patterns: Sequence[str]) -> Path | None:
    """Return the folder of an earlier download, which may be incomplete, without any request."""
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=list(patterns), local_files_only=True))
    except (OSError, ValueError):  # there is none, or the name cannot be one
        return None


def _has_any(folder: Path, patterns: Sequence[str]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)


def _describe(error: Exception) -> str:
    """Return the reason why a request failed, as a phrase."""
    if isinstance(error, TrustmixError):
        return str(error).rstrip(".")
    errors = require_extra("huggingface_hub.errors", "the hub", "hub")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return "the hub has no repository of that name, or a private one"
    if isinstance(error, errors.HfHubHTTPError):
        return f"the hub answered with status {error.response.status_code}"
    lines = str(error).splitlines() or [type(error).__name__]
    return f"the hub cannot be reached: {lines[0]}"
