"""`python -m stepgrpo.hub_push`: pushes a run's folder again, such as after a push that failed, or with an evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stepgrpo.hub import read_metrics
from stepgrpo.hub_files import CARD, MERGED, published_files
from stepgrpo.hub_repository import open_repository, push_files, refused
from stepgrpo.report.model_card import with_metrics
from stepgrpo.report.private import Private


def main(argv: Sequence[str] | None = None) -> int:
    """Pushes a folder that a run with `push_to_hub` left, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m stepgrpo.hub_push",
        description="Push the output directory of a run with push_to_hub again: model, card, curves and run.yaml. "
        "The token is HF_TOKEN or the saved one.",
    )
    parser.add_argument("folder", type=Path, help="the run's output directory")
    parser.add_argument(
        "--hub_model_id", help="namespace/name, or a name in your namespace; the folder's name if unset"
    )
    parser.add_argument("--revision", help="the branch to push to; the main one if unset")
    parser.add_argument("--private", action="store_true", default=None, help="a new repository is private")
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=(),
        metavar="LABEL=FILE",
        help="metrics.json files of stepgrpo evaluate, which the card then shows in place of those it has",
    )
    args = parser.parse_args(argv)
    folder: Path = args.folder
    try:
        card = folder / CARD
        if not card.is_file():
            raise ValueError(
                f"{str(folder)!r} has no {CARD}: it is not the output directory of a run with push_to_hub."
            )
        merged = (folder / MERGED).is_dir()
        published_files(folder, merged)
        if args.metrics:
            card.write_text(
                with_metrics(card.read_text(encoding="utf-8"), read_metrics(args.metrics)), encoding="utf-8"
            )
        name = args.hub_model_id or folder.absolute().name
        repository = open_repository(name, private=args.private, revision=args.revision)
        private = Private.of_this_machine([repository.token], [repository.user], [str(folder)])
        try:
            commit = push_files(repository, folder, private, "Push of a finished run", merged)
        except Exception as error:
            raise ValueError(refused("the push failed", error, repository.token)) from None
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(f"Pushed to {commit.repo_url}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
