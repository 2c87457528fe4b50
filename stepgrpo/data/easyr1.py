"""EasyR1's rows: `problem` with `<image>` marks, `images`, and an `answer` that is a plan."""

from __future__ import annotations

from pathlib import Path

from stepgrpo.data.files import data_files, read_records
from stepgrpo.data.pictures import find_pictures
from stepgrpo.data.prompts import COMMON_FIELDS, Draft
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.data.rows import MARK, Checked, checked_drafts, instruction_of, marked_prompt, own_table, read_plan

FIELDS = COMMON_FIELDS


def easyr1_drafts(path: Path, split: str | None, report: ReadReport, images: bool = True) -> list[Draft]:
    """Reads EasyR1's rows.

    Args:
        path: a JSON, JSON-lines or Parquet file, or a folder of them, named by split.
        split: see `data_files`.
        report: what is dropped is added here.
        images: whether to keep the pictures. Without, the marks go too.

    Raises:
        ValueError: if there is nothing to read.
    """
    rows: list[Checked] = []
    for file in data_files(path, split):
        for where, record in read_records(file, report):
            name = str(record.get("id", where))
            try:
                problem = record.get("problem", record.get("prompt"))
                if not isinstance(problem, str) or not problem.strip():
                    raise Unfit("no problem: a text")
                values = record.get("images") or []
                pictures = find_pictures(values if isinstance(values, list) else [values], _folders(file))
                prompt = marked_prompt(problem, len(pictures))
                if not images:
                    pictures, prompt = [], marked_prompt(problem.replace(MARK, ""), 0)
                steps = read_plan(record.get("answer", record.get("ground_truth")))
                table = own_table(record, problem)
            except Unfit as error:
                report.drop_unfit(error, name)
                continue
            row = {
                "id": name,
                "prompt": prompt,
                "images": pictures,
                "instruction": instruction_of(record, problem),
                "task_type": record.get("task_type"),
            }
            rows.append((name, row, steps, table))
    return checked_drafts(rows, report)


def _folders(file: Path) -> tuple[Path, ...]:
    return (file.parent, file.parent / "images")
