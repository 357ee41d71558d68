"""Folders of processes that have ended are removed, and no others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardviz.core.backend.run.folders import make_folder, owner_of, remove_abandoned, remove_folder

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MAKE = """
import sys
from shardviz.core.backend.run.folders import make_folder
print(make_folder("dump", sys.argv[1]))
"""


@pytest.fixture
def abandoned(tmp_path):
    """A folder of a process that has ended, with a file in it."""
    made = subprocess.run(
        [sys.executable, "-c", MAKE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    (tmp_path / made.stdout.strip() / "file").write_text("x")
    return tmp_path / made.stdout.strip()


def renamed(folder, **change):
    """The folder under another name: `machine`, `pid` or `started` changed."""
    parts = folder.name.split("-", 5)
    for name, value in change.items():
        parts[{"machine": 2, "pid": 3, "started": 4}[name]] = str(value)
    return folder.rename(folder.with_name("-".join(parts)))


def test_the_folder_of_a_process_that_ended_is_removed(abandoned, tmp_path):
    mine = make_folder("worker", str(tmp_path))
    remove_abandoned(str(tmp_path))
    assert list(tmp_path.iterdir()) == [mine]


def test_a_later_process_of_the_same_number_is_another(tmp_path):
    mine = make_folder("worker", str(tmp_path))
    other = renamed(make_folder("worker", str(tmp_path)), started=1)
    assert owner_of(other.name) == owner_of(mine.name) == os.getpid()
    remove_abandoned(str(tmp_path))
    assert list(tmp_path.iterdir()) == [mine]


KEPT = {
    "of another machine or container": lambda f, there: renamed(f, machine="0" * 8),
    "of a process that runs": lambda f, there: renamed(f, pid=os.getppid(), started=0),
    "of another name": lambda f, there: f.rename(f.with_name("shardviz-dump-x_12abc4")),
    "of the name of another program": lambda f, there: f.rename(f.with_name("x" + f.name)),
}


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_is_not_known_to_be_abandoned_stays(change, abandoned, tmp_path):
    kept = change(abandoned, tmp_path)
    remove_abandoned(str(tmp_path))
    assert (kept / "file").read_text() == "x"


def test_only_the_process_that_made_a_folder_removes_it(abandoned, tmp_path):
    remove_folder(abandoned)
    assert abandoned.exists()
    mine = make_folder("worker", str(tmp_path))
    remove_folder(mine)
    assert not mine.exists()
