from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import shardviz
from tests.structure.words import (
    TEXT,
    lines_with_made_up_words,
    made_up_words,
    names_with_left_hand_words,
)

PACKAGE = Path(shardviz.__file__).parent
REPO = PACKAGE.parent
HERE = Path(__file__).parent
OWN = {HERE / "words.py", HERE / "test_words.py"}  # these say which words are meant


def text_files() -> list[Path]:
    """What git tracks, or without git what lies in the folders that it would track."""
    if shutil.which("git") and (REPO / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
        paths = [REPO / line for line in done.stdout.splitlines()]
    else:
        folders = ("shardviz", "tests", "docs", "notebooks")
        paths = [*REPO.glob("*"), *(p for f in folders for p in (REPO / f).rglob("*"))]
    return [p for p in paths if p.suffix in TEXT and p.is_file() and p not in OWN]


def test_made_up_words_appear_nowhere():
    found = lines_with_made_up_words(REPO, text_files())
    assert not found, "\n".join(found)


def test_no_name_is_made_of_a_word_that_has_a_better_one():
    found = names_with_left_hand_words(PACKAGE)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the rungs of it", ["rungs"]),
        ("class RungTable", ["rung"]),
        ("a stand-in for", ["stand-in"]),
        ("_stand_ins", ["stand-in"]),
        ("sv-room", ["room"]),
        ("is outstanding and untold", []),
        ("a bedroom, a parcelled thing", []),
        ("they stand inside, or in a row", []),
    ],
)
def test_a_planted_word_is_found(text: str, words: list[str]):
    assert made_up_words(text) == words


def test_planted_names_are_found(tmp_path: Path):
    (tmp_path / "wire.py").write_text(
        "ROOMS = 1\nclass _Draft:\n    def turns(self): ...\ndef to_wire(): ...\ndef _wire(): ...\n"
    )
    found = "\n".join(names_with_left_hand_words(tmp_path))
    for name in ("wire.py (wire)", "ROOMS (rooms)", "_Draft (draft)", "turns (turns)", "to_wire"):
        assert name in found
    assert "_wire (" not in found.replace("to_wire (", "")
