"""Files are written as a whole or not at all."""

from __future__ import annotations

import os

import pytest

import shardviz as sv
from shardviz.base.files import write_text

OLD, NEW = "old", "new text"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text(OLD)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(sv.ShardvizError, match="No space left"):
        write_text(path, NEW, "a file")
    assert path.read_text() == OLD
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text(OLD)

    def interrupt(*paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, NEW, "a file")
    assert path.read_text() == OLD
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path, mode):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text(OLD)
    path.chmod(mode)
    link.symlink_to(path)
    write_text(link, NEW, "a file")
    assert link.is_symlink()
    assert path.read_text() == NEW
    assert path.stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text(OLD)
    write_text(tmp_path / "folder" / "file", NEW, "a file")
    plain, new = ((tmp_path / name).stat().st_mode for name in ("plain", "folder/file"))
    assert plain == new


def test_a_device_is_written_to_and_stays(tmp_path):
    write_text("/dev/null", NEW, "a file")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("path", ["a\x00b", "", ".", "x" * 300, "/dev/null/x"])
def test_paths_that_cannot_be_written_are_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sv.ShardvizError):
        write_text(path, NEW, "a file")
    assert os.listdir(tmp_path) == []
