"""Every argument of every public function refuses what is wrong for it, in a child process.

What is endless or far too large would take the memory of the tests, and what ends a process theirs.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import shardviz as sv
from tests.wrong_arguments import ARGUMENTS, VALUES, cases, outcome

NO_ARGUMENTS = {"mesh_context", "targets", "cache"}  # and types, which begin with a capital


def test_each_case_gives_one_sentence_in_time_and_memory():
    done = subprocess.run(
        [sys.executable, "-m", "tests.wrong_arguments"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *wrong, count = map(json.loads, done.stdout.splitlines())
    assert not wrong, wrong
    assert count == len(cases()) >= 1000


def test_every_public_function_is_in_the_table():
    functions = {n for n in sv.__all__ if n[0].islower()} - NO_ARGUMENTS
    assert {argument.partition("(")[0] for argument in ARGUMENTS} >= functions
    assert len(VALUES) >= 40


def test_the_table_finds_what_is_not_refused(monkeypatch):
    monkeypatch.setitem(ARGUMENTS, "taken", lambda v: v)
    assert outcome("taken", "nan") == "takes it: float"
    monkeypatch.setitem(ARGUMENTS, "raising", len)
    assert outcome("raising", "nan").startswith("raises TypeError")


#: (argument, label) -> words of its sentence
WORDS = {
    ("mesh(axes)", "jax array"): "A mesh is text such as",
    ("mesh(device_ids)", "endless count"): "more than 4 device ids",
    ("mesh(device_ids)", "range of a trillion"): "more than 4 device ids",
    ("mesh(device_ids)", "list of such a range"): "more than 4 device ids",
    ("mesh(device_ids)", "nan"): "must be whole numbers; got nan",
    ("mesh(processes)", "range of a trillion"): "more than 4 process indices",
    ("mesh(axes)", "range of a trillion"): "at most 32; got 1,000,000,000,000",
    ("array(dtype)", "numpy array"): "no array",
    ("array(name)", "lone surrogate"): "control characters",
    ("layout(mesh)", "jax array"): "A mesh is text such as",
    ("layout(thing)", "hostile len"): "raised RuntimeError when it was read",
    ("explore(thing)", "range of a trillion"): "at most",
    ("program(donate)", "range of a trillion"): "at most 1; got 1,000,000,000,000",
    ("program(array)", "list of itself"): "Does a list hold itself?",
    ("plot(dims)", "endless count"): "can be at most 64; got more",
    ("plot(colour)", "numpy array"): "The mesh has no axis",
    ("save_html(path)", "control character"): "A path holds plain text",
}


@pytest.mark.parametrize(("case", "words"), WORDS.items(), ids=lambda v: " ".join(v) if v else "")
def test_the_sentence_says_what_was_wrong(case, words):
    argument, label = case
    with pytest.raises(sv.ShardvizError) as caught:
        ARGUMENTS[argument](VALUES[label][1]())
    assert words in str(caught.value)


def test_a_state_with_too_long_a_number_is_no_json():
    text = '{"shardviz":1,"selected":' + "9" * 5000 + "}"
    with pytest.raises(sv.ShardvizError, match="This is no JSON"):
        sv.explore(text)
