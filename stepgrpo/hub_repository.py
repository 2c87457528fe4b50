"""A repository of the Hub: opened with a token, and pushed to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from stepgrpo.hub_files import cleaned, published_files
from stepgrpo.report.private import Private

_HOW_TO_LOG_IN = (
    "Set the environment variable HF_TOKEN, or run `hf auth login`, with a token that may write "
    "(https://huggingface.co/settings/tokens)"
)


@dataclass
class Repository:
    """A repository of the Hub that may be written to.

    Attributes:
        id: `namespace/name`.
        user: whose token it is.
        revision: the branch; the main one where it is not given.
    """

    id: str
    user: str
    token: str = field(repr=False)
    revision: str | None = None


def open_repository(
    repo_id: str, token: str | None = None, private: bool | None = None, revision: str | None = None
) -> Repository:
    """Checks a token, and makes the repository unless it is there.

    Args:
        repo_id: `namespace/name`, or a name in the token's user's namespace.
        token: where it is not given, `HF_TOKEN` or the saved one.
        private: whether a new repository is private; the namespace's default where it is not given.
        revision: the branch, made unless it is there.

    Raises:
        ValueError: no token, a name the Hub would not take, or the Hub refuses either or cannot be reached. Says what to do.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"hub_model_id={repo_id!r}: {error} Set it to a name, or to namespace/name.") from None
    token = token or get_token()
    if not token:
        raise ValueError(f"push_to_hub: true, but there is no token. {_HOW_TO_LOG_IN}; or set push_to_hub: false.")
    api = HfApi(token=token)
    try:
        account = api.whoami()
    except Exception as error:
        raise ValueError(refused("the token was not accepted", error, token)) from None
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise ValueError(f"push_to_hub: true, but the token may only read. {_HOW_TO_LOG_IN}.")
    try:
        found = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision:
            api.create_branch(found, branch=revision, exist_ok=True)
    except Exception as error:
        raise ValueError(refused(f"hub_model_id={repo_id!r} cannot be written", error, token)) from None
    return Repository(found, account.get("name", ""), token, revision)


def push_files(
    repository: Repository,
    folder: Path,
    private: Private,
    message: str,
    merged: bool = False,
    files: Mapping[str, Path] | None = None,
) -> CommitInfo:
    """Pushes a model's folder as one commit; see `published_files` for what of it.

    Args:
        repository: where to.
        folder: a trained model's.
        private: what must not be in the files.
        message: of the commit.
        merged: as for `published_files`.
        files: what to push, by names in the repository, where it is not `published_files` of the folder.

    Returns:
        What was committed, with the address of the repository.

    Raises:
        ValueError: if the folder has no weights.
    """
    files = published_files(folder, merged) if files is None else files
    operations = [
        CommitOperationAdd(name, cleaned(name, path, private) or path) for name, path in sorted(files.items())
    ]
    api = HfApi(token=repository.token)
    return api.create_commit(repository.id, operations, commit_message=message, revision=repository.revision)


def refused(what: str, error: BaseException, token: str) -> str:
    """A message that says what went wrong with the Hub and at which address, without the token."""
    # The client's messages have several lines, some of them advice on HTTP.
    lines = [line for line in str(error).split("\n") if not line.startswith("For more information check")]
    reason = " ".join(" ".join(lines).split()).replace(token, "[removed]") or type(error).__name__
    if isinstance(error, OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE is set."
    return f"push_to_hub: {what} ({constants.ENDPOINT}): {reason}"
