"""The command line of `stepgrpo prepare`: a source as JSON lines of training rows."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from stepgrpo.data.sources import SOURCES, WORLDS, read_rows


def _parser() -> argparse.ArgumentParser:
    kinds = ", ".join([*WORLDS, *(f"{prefix}PATH" for prefix in SOURCES)])
    parser = argparse.ArgumentParser(
        prog="stepgrpo prepare",
        description="Converts a data set to JSON lines of training rows and says what was dropped; see docs/data.md.",
    )
    parser.add_argument("--source", required=True, help=f"{kinds}, or a file of rows with a prompt")
    parser.add_argument(
        "--split", default="train", help="train, dev or test, or the source's own name (default: train)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="JSON-lines file to write")
    parser.add_argument("--n", type=_positive, help="at most so many rows, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of drawing rows and examples (default: 0)")
    parser.add_argument("--max-plan-steps", type=_positive, metavar="N", help="leave out rows with longer plans")
    parser.add_argument("--template", help="prompt template: a file, or alfred, alfred_names, embodiedbench")
    parser.add_argument(
        "--examples", type=_count, default=0, metavar="N", help="solved tasks of the split train a prompt"
    )
    parser.add_argument("--no-images", action="store_true", help="leave the pictures out")
    parser.add_argument(
        "--absolute-images",
        action="store_true",
        help="absolute paths of pictures, else relative to the folder of --out",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the rows and prints the report; returns the exit status: 0, or 1 if nothing was written."""
    args = _parser().parse_args(argv)
    try:
        rows, report = read_rows(
            args.source,
            args.split,
            args.n,
            args.seed,
            args.max_plan_steps,
            template=args.template,
            examples=args.examples,
            images=not args.no_images,
        )
        write_rows(rows, args.out, relative=not args.absolute_images)
    except (ValueError, OSError) as error:
        print(f"stepgrpo prepare: {error}", file=sys.stderr)
        return 1
    print(f"{args.source}, {args.split}: {report}")
    print(f"{len(rows)} rows, {sum(bool(row.get('images')) for row in rows)} of them with pictures, in {args.out}")
    return 0


def write_rows(rows: Sequence[Mapping[str, Any]], out: Path, relative: bool = True) -> None:
    """Writes rows as JSON lines, whole or not at all.

    Pictures that are no files are written as PNG to a folder beside it, `rows_images` for `rows.jsonl`, named by what they
    show.

    Args:
        rows: the rows.
        out: the file; its folder is made.
        relative: whether paths of pictures are written relative to the folder of the file, else absolute.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in rows:
                if row.get("images"):
                    row = {**row, "images": [_path(image, out, relative) for image in row["images"]]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def _path(image: Any, out: Path, relative: bool) -> str:
    if isinstance(image, Image.Image):
        folder = out.parent / f"{out.stem}_images"
        folder.mkdir(exist_ok=True)
        pixels = image.convert("RGB")
        shown = hashlib.blake2b(pixels.tobytes() + repr(pixels.size).encode(), digest_size=10).hexdigest()
        path = folder / f"{shown}.png"
        if not path.exists():
            pixels.save(path)
    else:
        path = Path(image)
    return Path(os.path.relpath(path, out.parent)).as_posix() if relative else str(path.absolute())


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _positive(text: str) -> int:
    if _count(text) == 0:
        raise argparse.ArgumentTypeError("0 is less than 1")
    return int(text)


if __name__ == "__main__":
    raise SystemExit(main())
