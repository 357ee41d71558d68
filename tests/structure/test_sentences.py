"""Sentences are written in `words` and in errors, and nothing reads one back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardviz
from tests.structure.imports import python_files
from tests.structure.sentences import compared_sentences, sentences

ROOT = Path(shardviz.__file__).parent
# An example of the gallery has its name beside it, and an exercise its task, hints and solution.
ELSEWHERE = (
    "gallery/",
    "exercises/costs.py",
    "exercises/layouts.py",
    "exercises/programs.py",
    "exercises/short.py",
    "exercises/sizing.py",
    "exercises/training.py",
    "exercises/your_code.py",
)
# Templates of code and of a page, patterns for messages of jax and XLA, titles of publications, and
# the names of checks that the doctor lists.
NO_ENGLISH = {
    "hardware/chips.py",
    "base/backend/jax_compat.py",
    "base/backend/jax_compat_checks.py",
    "programs/backend/jaxpr_checks.py",
    "programs/backend/worker/exits.py",
    "programs/backend/failures.py",
    "runs/backend/hosts/cluster.py",
    "plans/backend/lowering.py",
    "programs/backend/effect_rules.py",
    "runs/backend/listening.py",
    "programs/backend/mesh_context.py",
    "advise/advice.py",
    "explorer/html_page.py",
    "explorer/jax_code.py",
    "explorer/jax_function.py",
}
# Codes of values, which house their kind and are compared as they are.
CODES = {
    "axis not in the mesh",
    "name is no axis",
    "no mesh in sight",
    "no rules in force",
    "only part of the tuple is free",
    "overridden by a later rule",
}
# Files in which an error is put together of parts: what it is about, or why.
PARTS_OF_ERRORS = {
    "base/public/adopt.py",
    "runs/backend/hosts/run.py",
    "runs/backend/worker/export.py",
    "base/format.py",
    "base/array_spec.py",
    "base/mesh.py",
    "base/partition_spec.py",
    "axis_rules/path_matching.py",
    "axis_rules/rule_tables.py",
    "axis_rules/rules.py",
    "advise/contracts.py",
    "programs/backend/jaxpr_names.py",
    "pictures.py",
}
MOST_WORDS_OF_A_PART = 8


def _has_words(file: str) -> bool:
    """Whether sentences are written in a file: in the words of a feature, or beside data."""
    return bool({"words", "words.py"} & set(file.split("/"))) or file.startswith(ELSEWHERE)


@pytest.fixture(scope="module")
def files() -> dict[str, ast.Module]:
    return {
        file: tree
        for file, tree in python_files(ROOT).items()
        if not _has_words(file) and file not in NO_ENGLISH
    }


def test_sentences_are_written_in_wording_alone(files: dict[str, ast.Module]):
    found = []
    for file, tree in files.items():
        for line, text in sentences(tree):
            is_part = file in PARTS_OF_ERRORS and len(text.split()) <= MOST_WORDS_OF_A_PART
            if text not in CODES and not is_part:
                found.append(f"{file}:{line}: {text}")
    assert not found, "\n".join(found)


def test_the_exceptions_are_needed(files: dict[str, ast.Module]):
    texts = {file: [text for _, text in sentences(tree)] for file, tree in files.items()}
    every = {text for own in texts.values() for text in own}
    assert every >= CODES
    assert {file for file, own in texts.items() if set(own) - CODES} == PARTS_OF_ERRORS


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
