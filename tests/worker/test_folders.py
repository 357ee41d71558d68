"""Folders of processes that have ended are removed, and no others."""

from __future__ import annotations

import subprocess
import sys

from shardviz.core.backend.run.folders import make_folder, remove_abandoned, remove_folder

MAKE = """
import sys
from shardviz.core.backend.run.folders import make_folder
print(make_folder("dump", sys.argv[1]), flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_process_that_was_killed_is_removed_and_no_other(tmp_path):
    mine = make_folder("worker", str(tmp_path))
    foreign = tmp_path / "shardviz-notes"
    foreign.mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    name = other.stdout.readline().strip()
    remove_abandoned(str(tmp_path))
    assert sorted(map(str, tmp_path.iterdir())) == sorted([str(mine), str(foreign), name])
    other.kill()
    other.communicate()
    remove_abandoned(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted([mine, foreign])
    remove_folder(mine)
    assert list(tmp_path.iterdir()) == [foreign]
