"""No argument of a public function takes a value of a wrong type in silence."""

from __future__ import annotations

import pytest

import shardviz as sv
from tests.wrong_arguments import ARGUMENTS, cases, outcome

NO_ARGUMENTS = {"mesh_context", "targets", "cache"}  # and types, which begin with a capital


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_wrong_values_are_refused(argument):
    problems = {}
    for label in (label for name, label in cases() if name == argument):
        problem = outcome(argument, label)
        if problem:
            problems[label] = problem
    assert problems == {}


def test_every_public_function_is_in_the_table():
    functions = {n for n in sv.__all__ if n[0].islower()} - NO_ARGUMENTS
    assert {argument.partition("(")[0] for argument in ARGUMENTS} >= functions
