"""The fixture shardviz_lock in other people's test runs."""

from __future__ import annotations

import json

import pytest

import shardviz as sv
import shardviz.advise.contracts
import shardviz.advise.public  # so that it is not imported anew in the runs below
import shardviz.pytest_plugin
from tests.structure.isolation import loaded_by

pytest_plugins = ["pytester"]

MODEL = """
import pytest
import shardviz as sv

RULES = [("mlp", "model")]

def model(rules):
    rows = [(f"layers_{n}/w", (64, 64), "embed mlp") for n in range(4)]
    return sv.audit(rows, rules, "data=4, model=2")
"""
TESTS = """
from decoder_rules import RULES, model

def test_model(shardviz_lock):
    shardviz_lock(model(RULES)).sharded(at_least=0.9)
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """A project of one test, in a run that loads this plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(decoder_rules=MODEL, test_model=TESTS)
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n")
    return pytester


def run(project, *arguments: str):
    return project.runpytest("-p", "shardviz.pytest_plugin", *arguments)


LOCK = "shardviz_locks/test_model.test_model.json"


def test_a_lock_is_missing_written_holds_breaks_and_is_written_again(project):
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E*ContractError: *{LOCK}*--shardviz-update*"])

    result = run(project, "--shardviz-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*shardviz locks*", f"written: {LOCK}"])
    first = (project.path / LOCK).read_text()
    assert json.loads(first)["arrays"] == {"layers_{0..3}/w": "float32[64, 64] P(None, 'model')"}
    result = run(project, "--shardviz-update")
    result.stdout.no_fnmatch_line("written: *")
    assert (project.path / LOCK).read_text() == first

    project.makepyfile(decoder_rules=MODEL.replace('("mlp", "model")', '("embed", "data")'))
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*layers_{0..3}/w: P(None, 'model') -> P('data')"])
    result.stdout.no_fnmatch_line("*contracts.py*")  # the traceback is that of the test
    (project.path / LOCK).write_text("<<<<<<< HEAD")
    result = run(project)
    result.stdout.fnmatch_lines(["E*ProgramError: 'test_model.test_model.json' is not a lock*"])
    run(project, "--shardviz-update").assert_outcomes(passed=1)
    run(project).assert_outcomes(passed=1)


def test_names_of_locks(project):
    project.makepyfile(
        test_names="""
import pytest
from decoder_rules import RULES, model

class TestIt:
    @pytest.mark.parametrize("word", ["a/b", "c d"])
    def test_in_class(self, shardviz_lock, word):
        shardviz_lock(model(RULES))

def test_twice(shardviz_lock):
    shardviz_lock(model(RULES))
    shardviz_lock(model([]))

def test_named(shardviz_lock):
    shardviz_lock(model(RULES), "the model")

def test_named_too(shardviz_lock):
    shardviz_lock(model(RULES), "the model")
"""
    )
    run(project, "--shardviz-update", "test_names.py").assert_outcomes(passed=5)
    files = sorted(f.name for f in (project.path / "shardviz_locks").iterdir())
    assert files == [
        "test_names.TestIt.test_in_class-a-b.json",
        "test_names.TestIt.test_in_class-c-d.json",
        "test_names.test_twice-2.json",
        "test_names.test_twice.json",
        "the model.json",
    ]
    run(project, "test_names.py").assert_outcomes(passed=5)


def test_two_tests_may_not_disagree_on_a_lock(project):
    project.makepyfile(
        test_two="""
from decoder_rules import RULES, model

def test_one(shardviz_lock):
    shardviz_lock(model(RULES), "shared")

def test_other(shardviz_lock):
    shardviz_lock(model([]), "shared")
"""
    )
    result = run(project, "--shardviz-update", "test_two.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*test_two.py::test_one*shardviz_locks/shared.json*"])


@pytest.mark.parametrize("name", ["../x", "", ".hidden"])
def test_a_name_that_no_file_can_have(project, name):
    project.makepyfile(
        test_name=f"""
from decoder_rules import RULES, model

def test_one(shardviz_lock):
    shardviz_lock(model(RULES), {name!r})
"""
    )
    result = run(project, "--shardviz-update", "test_name.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*ProgramError: The name of a lock*"])


def test_a_lock_without_collectives_is_not_taken_for_one_with_them(project):
    project.makepyfile(
        test_program="""
import jax.numpy as jnp
import shardviz as sv

def test_program(shardviz_lock):
    x = sv.array("x", (8, 4), spec="data")
    shardviz_lock(sv.program(jnp.sin, x, mesh="data=1"), "sine", collectives=COLLECTIVES)
""".replace("COLLECTIVES", "False")
    )
    run(project, "--shardviz-update", "test_program.py").assert_outcomes(passed=1)
    file = project.path / "test_program.py"
    file.write_text(file.read_text().replace("False", "True"))
    result = run(project, "test_program.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*ContractError: The lock shardviz_locks/sine.json has no coll*"])
    run(project, "--shardviz-update", "test_program.py").assert_outcomes(passed=1)
    assert json.loads((project.path / "shardviz_locks/sine.json").read_text())["collectives"] == []
    run(project, "test_program.py").assert_outcomes(passed=1)


def test_a_run_that_does_not_use_it_is_as_without(project):
    project.makepyfile(test_plain="def test_plain():\n    assert True\n")
    with_it = run(project, "test_plain.py", "-q").stdout.str().splitlines()
    without = project.runpytest("test_plain.py", "-q").stdout.str().splitlines()
    assert with_it[0] == without[0]
    assert len(with_it) == len(without)
    assert loaded_by("import shardviz.pytest_plugin", ("jax", "numpy", "matplotlib")) == set()


def test_the_plugin_is_named_in_the_project():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"shardviz": "shardviz.pytest_plugin"}
    assert sv.ContractError in AssertionError.__subclasses__()
