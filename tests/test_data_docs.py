"""docs/data.md: its commands print what it says."""

import shutil
from pathlib import Path

import pytest

from stepgrpo.cli import main as stepgrpo

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "data.md"


def shown():
    """The commands of the document, each with what it prints."""
    found = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("    $ stepgrpo "):
            found.append((line.removeprefix("    $ stepgrpo "), []))
        elif line.startswith("    ") and found:
            found[-1][1].append(line[4:])
    return [(command, "\n".join(lines)) for command, lines in found]


@pytest.mark.parametrize(("command", "output"), shown())
def test_the_document_says_what_is_printed(command, output, tmp_path, capsys, monkeypatch):
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    if "alfred:alfred " in command:
        data = ROOT.parent / "shared" / "data" / "alfred"
        if not data.is_dir():
            pytest.skip("the ALFRED trajectories are not here")
        (tmp_path / "alfred").symlink_to(data)
    assert stepgrpo(command.split()) == 0
    assert capsys.readouterr().out.rstrip("\n") == output


def test_every_kind_of_source_is_shown():
    assert len(shown()) == 7
