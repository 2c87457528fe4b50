"""Files of records and pictures: every form, and what cannot be read."""

import base64
import json
from io import BytesIO

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from stepgrpo.data.files import data_files, read_records
from stepgrpo.data.pictures import find_pictures
from stepgrpo.data.report import ReadReport, Unfit


def test_records_of_every_form(tmp_path):
    records = [{"a": 1}, {"a": 2}]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, records)))
    (tmp_path / "b.json").write_text(json.dumps(records))
    (tmp_path / "c.json").write_text("\n".join(map(json.dumps, records)))  # JSON lines by another name
    parquet.write_table(pa.Table.from_pylist(records), tmp_path / "d.parquet")
    (tmp_path / "e.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n".join(map(json.dumps, records)).encode())
    for file in sorted(tmp_path.iterdir()):
        report = ReadReport()
        assert [record for _, record in read_records(file, report)] == records, file
        assert (report.read, dict(report.dropped)) == (2, {})


def test_bad_records_and_files_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{\n[1]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"a": 2}')
    report = ReadReport()
    assert [where for where, _ in read_records(tmp_path / "a.jsonl", report)] == ["line 1", "line 6"]
    assert (report.read, dict(report.dropped)) == (6, {"not JSON": 3, "not a JSON object": 1})
    for name in ("b.parquet", "none.jsonl"):
        if name != "none.jsonl":
            (tmp_path / name).write_bytes(b"cut off")
        report = ReadReport()
        assert list(read_records(tmp_path / name, report)) == []
        assert dict(report.dropped) == {"unreadable file": 1} and name in report.first["unreadable file"]


def test_files_of_a_split(tmp_path):
    for name in (
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
        "validation.jsonl",
        "my_action_map.json",
    ):
        (tmp_path / name).touch()
    assert [file.name[:13] for file in data_files(tmp_path, "train")] == ["train-00000-o", "train-00001-o"]
    assert [file.name for file in data_files(tmp_path, "dev")] == ["validation.jsonl"]
    assert len(data_files(tmp_path, None)) == 3
    with pytest.raises(ValueError, match=r"no split 'test'; its files: train-00000"):
        data_files(tmp_path, "test")
    with pytest.raises(ValueError, match="no file or folder"):
        data_files(tmp_path / "none", "train")
    (tmp_path / "one").mkdir()
    with pytest.raises(ValueError, match=r"has no \.json"):
        data_files(tmp_path / "one", "train")
    (tmp_path / "one" / "rows.jsonl").touch()
    assert [file.name for file in data_files(tmp_path / "one", "dev")] == ["rows.jsonl"]


def png(colour):
    file = BytesIO()
    Image.new("RGB", (2, 3), colour).save(file, "PNG")
    return file.getvalue()


def test_pictures_of_every_form(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(png("red"))
    path, folders = str(tmp_path / "sub" / "a.png"), (tmp_path, tmp_path / "sub")
    url = "data:image/png;base64," + base64.b64encode(png("blue")).decode()
    picture = Image.new("RGB", (1, 1))
    found = find_pictures(
        ["a.png", "sub/a.png", path, f"file://{path}", {"bytes": None, "path": "a.png"}, picture], folders
    )
    assert found == [path] * 5 + [picture]
    opened = find_pictures([png("red"), {"bytes": png("green"), "path": "x"}, url], folders)
    assert [image.getpixel((0, 0)) for image in opened] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]


def test_pictures_that_cannot_be_had(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    for value, reason in (
        ("b.png", "a picture that is not there"),
        ("a.png", "a picture that cannot be opened"),
        (b"no picture", "a picture that cannot be opened"),
        ("data:image/png;base64,AAAA", "a picture that cannot be opened"),
        ("https://example.org/a.png", "a picture on the web"),
        ({"bytes": None}, "neither a path nor bytes"),
        (7, "neither a path nor bytes"),
    ):
        with pytest.raises(Unfit, match=reason):
            find_pictures([value], (tmp_path,))
