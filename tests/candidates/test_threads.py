"""The edits that were named in public threads, and those that remove the collectives of `OURS`."""

from __future__ import annotations

import importlib.util

import pytest

import shardviz as sv
from shardviz.base.collective import sent_in_all
from tests.candidates.threads import CASES, OURS, Case, place

pytestmark = pytest.mark.long  # each compiles a dozen programs
NEED_EDITS = [case for case in (*CASES, *OURS) if not case.is_fixed]


@pytest.mark.parametrize("case", NEED_EDITS, ids=lambda case: case.name)
def test_the_edit_that_was_named_is_among_the_first(case: Case, eight_devices):
    if case.target is not None and importlib.util.find_spec("libtpu") is None:
        pytest.skip("the TPU compiler is not installed")
    with case.context():
        program = case.program()
        collective = case.collective(sv.compile(program, target=case.target))
        changes = sv.changes(program, collective, target=case.target)
    for candidate in changes:
        again = sv.compile(candidate.program, target=case.target)
        assert sent_in_all(again.collectives) == candidate.bytes
        assert candidate.values is None or candidate.values.ok is not False
    at = place(case, changes)
    if case.missed:
        assert at == 0, "the edit is proposed now: case.missed can go"
    elif case.advice:
        assert at == len(changes) + 1
    else:
        assert 1 <= at <= 3
