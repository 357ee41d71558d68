"""What the files for packagers and readers say of the package agrees with pyproject.toml."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

import shardviz
from tests.packaging.installed import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
# What conda-forge calls otherwise than the Python index.
CONDA = {"flatbuffers": "python-flatbuffers", "matplotlib": "matplotlib-base"}


def test_the_citation_names_the_version_the_licence_and_the_title():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["version"] == shardviz.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["abstract"] == PROJECT["description"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["authors"]


def test_the_recipe_asks_for_what_the_package_asks_for():
    wanted = {re.sub(r"(?<=\w)(?=[><=])", " ", text, count=1) for text in PROJECT["dependencies"]}
    wanted = {" ".join([CONDA.get(n, n), v]) for n, v in (text.split(" ", 1) for text in wanted)}
    asked = set(RECIPE["requirements"]["run"])
    assert asked - {"python >=${{ python_min }}"} == wanted
    assert PROJECT["requires-python"] == f">={RECIPE['context']['python_min']}"
    assert PYPROJECT["build-system"]["requires"] == [
        text.replace(" ", "")
        for text in RECIPE["requirements"]["host"]
        if text.startswith("hatchling")
    ]
    assert RECIPE["context"]["version"] == shardviz.__version__
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    for file in PROJECT["license-files"]:
        assert (ROOT / file).is_file()


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_what_is_installed_beside_the_package_has_a_bound(extra):
    for text in PROJECT["optional-dependencies"][extra]:
        assert text.startswith("shardviz[") or re.search(r"[=><]=?\d", text), text


def test_what_the_site_is_made_with_is_bounded_on_both_sides():
    for text in PROJECT["optional-dependencies"]["docs"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+,<\d+", text), text


def test_the_sdist_has_what_builds_and_tests_it():
    included = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    needed = {"shardviz", "tests", "docs", "notebooks", "recipe", "CITATION.cff", "CONTRIBUTING.md"}
    assert needed <= included
    assert [name for name in sorted(included) if not (ROOT / name).exists()] == []


def test_badges_are_true():
    """A badge that shows a version or a state comes from a place that knows it; else it is none."""
    badges = re.findall(r"!\[[^\]]*\]\((https?://[^)]*)\)", (ROOT / "README.md").read_text())
    assert PROJECT.get("urls") or badges == []
