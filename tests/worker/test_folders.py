"""Folders of processes that have ended are removed, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from shardviz.programs.backend.worker.folders import make_folder, remove_abandoned, remove_folder

MAKE = """
import sys
from shardviz.programs.backend.worker.folders import make_folder
print(make_folder("dump", sys.argv[1]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("step", ["mkdir", "open", "rename"])
def test_an_interrupt_while_a_folder_is_made_leaves_none(tmp_path, monkeypatch, step):
    real = getattr(os, step)

    def interrupted(*args, **options):
        monkeypatch.setattr(os, step, real)  # the removal needs them, too
        real(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_folder("test", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_was_interrupted_goes_on_later(tmp_path, monkeypatch):
    folder = make_folder("test", str(tmp_path))

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(folder)
    remove_abandoned(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


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
