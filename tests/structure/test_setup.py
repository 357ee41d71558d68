from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import shardviz

REPO = Path(__file__).parents[2]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)


def test_the_version_is_that_of_the_installed_package():
    assert shardviz.__version__ == version("shardviz")


def test_jax_has_no_upper_bound():
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"jax>=0.10", "jaxlib>=0.10"} <= {*project["dependencies"]}
    assert project["requires-python"] == ">=3.11"


@needs_make
def test_a_python_without_venv_hears_what_to_install(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    venv = tmp_path / "venv"
    done = make(f"PYTHON={python}", f"VENV={venv}", f"{venv}/.installed")
    assert done.returncode
    assert "install its venv module" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert not venv.exists()


@needs_make
def test_an_old_python_hears_what_is_needed(tmp_path: Path):
    python = tmp_path / "python"
    old = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c \'{old}\' "$2"\n')
    python.chmod(0o755)
    venv = tmp_path / "venv"
    done = make(f"PYTHON={python}", f"VENV={venv}", f"{venv}/.installed")
    assert done.returncode
    assert "shardviz needs Python 3.11 or newer" in done.stderr
    assert "is 3.9" in done.stderr
    assert not venv.exists()


@needs_make
def test_the_lessons_need_less_than_the_tests(tmp_path: Path):
    venv = f"VENV={tmp_path / 'venv'}"
    extras = {"lab": "[notebooks,hosts,tpu]", "check": "[test,check]", "test": "[test,tpu,gpu]"}
    extras |= {"docs": "[docs,tpu]", "wheel": "[test,check]"}
    for goal, needed in extras.items():
        installed = re.findall(r'-e "\.(.*)"', make("--dry-run", venv, goal).stdout)
        assert installed == [needed], goal
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "shardviz[notebooks,hosts]" in project["optional-dependencies"]["test"]


@needs_make
@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ("lab", "notebooks/01_see_a_sharding.ipynb"),
        ("test", "pytest --nbval-lax"),
        ("test", "-p tests.notebooks.compared"),
        ("test", '-m "not long"'),
        ("long", "-m long"),
        ("docs", "-m sphinx -W --keep-going"),
        ("wheel", "-m tests.packaging.installed dist"),
        ("check", "pyright"),
        ("check", "jsconfig.json"),
        ("bench", "-m tests.bench"),
        ("images", "-m tests.browser.images"),
    ],
)
def test_a_goal_of_the_makefile_does_what_the_readme_says(goal: str, words: str):
    assert words in make("--dry-run", goal).stdout
