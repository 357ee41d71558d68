"""Sentences are written in `core/wording` and in errors, and nothing reads one back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardviz
from tests.structure.imports import python_files
from tests.structure.sentences import compared_sentences, sentences

ROOT = Path(shardviz.__file__).parent
# What an example of the gallery is called stands beside it, as data.
ELSEWHERE = ("core/wording/", "gallery/")
# Templates of code and of a page, and patterns for what jax prints.
NO_ENGLISH = {
    "core/backend/tracing/effect_rules.py",
    "core/backend/tracing/listening.py",
    "core/backend/tracing/mesh_context.py",
    "widgets/html_page.py",
    "widgets/jax_code.py",
    "widgets/jax_function.py",
}
# How many sentences these files still have. The list only gets shorter.
STILL = {
    "api/adopt.py": 1,
    "api/layouts.py": 1,
    "api/wanted_layouts.py": 1,
    "core/backend/call_cache/cached_function.py": 1,
    "core/backend/devices.py": 1,
    "core/backend/exits.py": 1,
    "core/backend/failures.py": 3,
    "core/backend/run/checks.py": 3,
    "core/backend/run/hosts/cluster.py": 1,
    "core/backend/run/hosts/run.py": 2,
    "core/backend/run/targets.py": 2,
    "core/backend/run/worker/export.py": 3,
    "core/backend/shardy/lowering.py": 3,
    "core/format.py": 4,
    "core/layout/array_spec.py": 4,
    "core/layout/layout.py": 2,
    "core/layout/mesh.py": 3,
    "core/layout/partition_spec.py": 2,
    "core/layout/rules/path_matching.py": 1,
    "core/layout/rules/resolution.py": 1,
    "core/layout/rules/rule_tables.py": 1,
    "core/layout/rules/rules.py": 6,
    "core/layout/rules/verdicts.py": 3,
    "core/program/constraints.py": 2,
    "core/program/contracts.py": 1,
    "core/program/program.py": 3,
    "exercises/programs.py": 1,
    "picture/processes.py": 1,
    "picture/report.py": 1,
    "picture/reshard.py": 1,
    "picture/roofline.py": 2,
    "picture/rules.py": 1,
    "picture/show.py": 1,
    "picture/tables.py": 1,
}


@pytest.fixture(scope="module")
def files() -> dict[str, ast.Module]:
    return {
        file: tree
        for file, tree in python_files(ROOT).items()
        if not file.startswith(ELSEWHERE) and file not in NO_ENGLISH
    }


def test_sentences_are_written_in_wording_alone(files: dict[str, ast.Module]):
    found = []
    for file, tree in files.items():
        own = sentences(tree)
        if len(own) > STILL.get(file, 0):
            found += [f"{file}:{line}: {text}" for line, text in own]
    assert not found, "\n".join(found)


def test_the_list_of_files_that_still_have_some_is_true(files: dict[str, ast.Module]):
    counts = {file: len(sentences(tree)) for file, tree in files.items()}
    assert {file: count for file, count in counts.items() if count} == STILL


def test_nothing_is_compared_with_a_sentence(files: dict[str, ast.Module]):
    found = []
    for file, tree in files.items():
        found += [f"{file}:{line}: {text}" for line, text in compared_sentences(tree)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('x = "it is split here"', 1),
        ('x = f"{a} is split over {b}"', 1),
        ('def f():\n    """A docstring of four words."""\n    return "no more words"', 0),
        ('raise ValueError("it is split here")', 0),
        ('problem = ProgramError("it is split here")', 0),
        ('x = f"{a} {b} {c}, local"', 0),
        ('x = "--flag=a --other=b -c -d"', 0),
        ('x = {"a": ("one two three", "one two three four")}', 1),
    ],
)
def test_planted_sentences_are_found(source: str, count: int):
    assert len(sentences(ast.parse(source))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('x == "it is split here"', 1),
        ('"it is split here" in x', 1),
        ('x.startswith("the estimate is uncertain")', 1),
        ('x == "applied"', 0),
    ],
)
def test_planted_comparisons_are_found(source: str, count: int):
    assert len(compared_sentences(ast.parse(source))) == count
