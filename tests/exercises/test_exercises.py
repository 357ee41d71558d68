"""Every exercise, with right, wrong and absurd answers."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardviz as sv
from shardviz import exercises
from shardviz.exercises import programs as graders
from shardviz.exercises import registry
from shardviz.exercises.words import LESSONS as NUMBERS
from tests.exercises import (
    code_answers,
    cost_answers,
    layout_answers,
    program_answers,
    short_answers,
    sizing_answers,
    training_answers,
)
from tests.structure.isolation import printed

ANSWERS = layout_answers.ANSWERS | program_answers.ANSWERS | short_answers.ANSWERS
ANSWERS |= (
    code_answers.ANSWERS | cost_answers.ANSWERS | sizing_answers.ANSWERS | training_answers.ANSWERS
)
NAMES = exercises.names()
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LESSONS = sorted(set(NUMBERS.values()))


def made(answer: Any) -> Any:
    return answer.make() if isinstance(answer, layout_answers.Late) else answer


@pytest.fixture(autouse=True)
def fresh_hints_and_our_own_exercises_alone():
    yield
    exercises.reset()
    # A page of the documentation adds one, too.
    for name in set(registry.EXERCISES).difference(NAMES):
        del registry.EXERCISES[name]


def test_every_lesson_has_exercises_and_many_ask_for_code():
    asks_for_code = [name for name in NAMES if callable(registry.find(name).solution)]
    assert len(asks_for_code) >= 20
    assert [int(path.name[:2]) for path in NOTEBOOKS if path.name[0].isdigit()] == LESSONS
    for lesson in LESSONS:
        assert 2 <= len(exercises.names(lesson)) <= 9, lesson
    assert exercises.names("rules") == exercises.names(12)
    assert set(ANSWERS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_of_different_forms_are_accepted(name):
    right = ANSWERS[name][0]
    functions = all(callable(made(a)) for a in right)
    assert len({id(a) if functions else (type(a), repr(a)) for a in right}) >= 5
    assert len({type(made(a)) for a in right}) >= (1 if functions else 3)
    for answer in map(made, right):
        found = exercises.check(name, answer)
        assert found.ok, (answer, found)
        assert found
        assert found.hint == ""
        assert found.does


@pytest.mark.parametrize("name", NAMES)
def test_wrong_answers_are_refused_with_a_hint_that_speaks_of_them(name):
    wrong = ANSWERS[name][1]
    assert len(wrong) >= 10
    hints = []
    for answer in wrong:
        found = exercises.check(name, made(answer))
        assert not found.ok, (answer, found)
        hints.append(found.hint)
    assert len(set(hints)) >= 8  # they depend on the answer


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_is_right_and_says_why(name):
    found = exercises.solution(name)
    assert exercises.check(name, found.answer).ok
    assert len(found.why) > 30
    assert repr(found).startswith(f"{name}:")


def accepted(name: str, text: str) -> bool:
    return exercises.check(name, text).ok


@pytest.mark.parametrize("name", NAMES)
def test_no_hint_and_no_task_holds_an_answer(name):
    words = registry.find(name)
    solution = " ".join(str(exercises.solution(name).answer).split())
    for text in (words.task, *words.hints):
        parts = re.findall(r"`([^`]+)`", text) + re.findall(r"[\d.,]+ ?(?:[KMG]i?B|ms|s)?\b", text)
        assert [p for p in (text, *parts) if accepted(name, p)] == []
        assert len(solution) < 4 or solution not in text
    for answer in ANSWERS[name][1]:
        assert len(solution) < 6 or solution not in exercises.check(name, made(answer)).hint


def literals(path: Path) -> set[str]:
    """Every text in the code of a lesson, and the source of every cell."""
    found: set[str] = set()
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            found.add(source)
            tree = ast.parse(source)
            # The width in `f"{name:20}"` is a text of the syntax tree, but not of the lesson.
            formats = [n.format_spec for n in ast.walk(tree) if isinstance(n, ast.FormattedValue)]
            left_out = {id(n) for spec in formats if spec for n in ast.walk(spec)}
            constants = [n for n in ast.walk(tree) if isinstance(n, ast.Constant)]
            kept = [n.value for n in constants if id(n) not in left_out]
            found |= {value for value in kept if isinstance(value, str)}
        else:
            found |= set(re.findall(r"`([^`\n]+)`", source))
    return found


@pytest.mark.long
def test_no_lesson_holds_an_answer():
    # Exercises with axes, names or sizes of their own; an argument's name is in any program.
    own = [n for n in NAMES if n != "compiler/origin"]
    texts = sorted(set().union(*map(literals, NOTEBOOKS)))
    assert len(texts) > 300
    found = [(name, text) for name in own for text in texts if accepted(name, text)]
    assert found == []


def test_an_answer_planted_in_a_lesson_is_found(tmp_path):
    cell = {"cell_type": "code", "source": ["sv.layout(x, '(host, chip)', mesh)"]}
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    assert [t for t in literals(path) if accepted("arrays/eight-shards", t)] == ["(host, chip)"]


#: Absurd answers.
ODD = (
    None, True, -1, 7, 10**30, 1e300, float("nan"), 2j, "", "x", "P(", "(((", "a -> b",
    "a[b] c[d]", "0x10", "1e999", "9" * 400, b"x", ..., object(), object, len, slice(1),
    range(0), np.float32(1), np.array([]), np.zeros((2, 2)), np.array("x"), ast, [], [None],
    [1, 2], ["x", "y"], {"x": 1}, {1: 2}, {"a", "b"}, [["x"]], (1, ("x",)), lambda: 1,
)  # fmt: skip


@pytest.mark.parametrize("lesson", LESSONS)
def test_any_object_is_refused_with_a_sentence_and_nothing_is_raised(lesson):
    # Right by chance: functions that raise for any audit do not pass, and none of these is right.
    for name in exercises.names(lesson):
        for answer in ODD:
            found = exercises.check(name, answer)
            assert not found.ok, (name, answer)
            assert found.hint.isprintable()
            assert 10 < len(found.hint) <= 600, (name, found.hint)


def test_nothing_is_evaluated(tmp_path):
    file = tmp_path / "made"
    text = f"__import__('pathlib').Path({str(file)!r}).touch()"
    for name in NAMES:
        assert not exercises.check(name, text).ok
    assert not file.exists()


@pytest.mark.parametrize("name", ["arrays/eightshards", "", None, 3, ["a"]])
def test_a_name_that_there_is_not_is_a_sentence(name):
    assert not exercises.check(name, 1).ok
    with pytest.raises(sv.ShardvizError):
        exercises.task(name)


@pytest.mark.parametrize("lesson", [0, 99, -1, "matmuls", True, 1.5])
def test_an_unknown_lesson_is_refused(lesson):
    with pytest.raises(sv.ShardvizError):
        exercises.names(lesson)


def test_three_hints_then_the_solution_is_named():
    some = [exercises.hint("arrays/memory") for _ in range(5)]
    assert len(set(some[:3])) == 3
    assert some[3] == some[4]
    assert "solution('arrays/memory')" in some[3]
    exercises.reset()
    assert exercises.hint("arrays/memory") == some[0]


@pytest.fixture
def locked():
    exercises.lock("gather")
    yield
    exercises.unlock("gather")


def test_a_lock_hides_solutions_and_says_how_to_show_them(locked):
    with pytest.raises(sv.ShardvizError, match=r"exercises\.unlock"):
        exercises.solution("arrays/memory")
    for word in ("scatter", "", None, 7, "Gather"):
        with pytest.raises(sv.ShardvizError):
            exercises.unlock(word)
    with pytest.raises(sv.ShardvizError, match=r"exercises\.unlock"):
        exercises.lock("scatter")  # another word does not replace the first
    exercises.reset()
    with pytest.raises(sv.ShardvizError):
        exercises.solution("arrays/memory")
    assert exercises.check("arrays/memory", "16 MiB")  # grading and hints go on
    assert exercises.hint("arrays/memory")
    exercises.unlock("gather")
    assert exercises.solution("arrays/memory").answer == "16 MiB"


def test_a_notebook_can_lock_without_the_word():
    said = exercises.lock("gather")
    assert "gather" not in said
    hashed = re.search(r"hashed='(\w+)'", said)[1]
    exercises.unlock("gather")
    exercises.lock(hashed=hashed)
    exercises.lock(hashed=hashed)  # a cell may run twice
    exercises.unlock("gather")
    for word in ("", None, 7):
        with pytest.raises(sv.ShardvizError):
            exercises.lock(word)


def test_a_report_counts_what_was_tried_asked_for_and_shown():
    exercises.reset()
    assert exercises.report().marks == ()
    exercises.check("arrays/memory", ...)  # the dots of a notebook are no answer
    exercises.check("arrays/memorry", 1)
    assert exercises.report().marks == ()

    exercises.check("rules/two-rules", "hidden -> x")
    exercises.solution("rules/two-rules")
    exercises.check("rules/two-rules", "hidden -> x\nwidth -> y")
    for answer in (1, "16 MiB", object()):
        exercises.check("arrays/memory", answer)
    for _ in range(5):
        exercises.hint("arrays/memory")
    exercises.solution("arrays/memory")  # looked up after a right answer
    exercises.hint("keep/contract")

    report = exercises.report()
    assert report.marks == (
        exercises.Mark("arrays/memory", tried=3, right=True, hints=3),
        exercises.Mark("rules/two-rules", tried=2, right=True, solution_seen=True),
        exercises.Mark("keep/contract", hints=1),
    )
    assert report.right == 2
    assert json.loads(report.to_json()) == report.to_dict()
    assert report.to_dict()["arrays/memory"] == {
        "tried": 3, "right": True, "hints": 3, "solution_seen": False,
    }  # fmt: skip
    assert [row.split() for row in repr(report).splitlines()[1:]] == [
        ["arrays/memory", "3", "yes", "3", "no"],
        ["rules/two-rules", "2", "yes", "0", "yes"],
        ["keep/contract", "0", "no", "1", "no"],
        ["Right:", "2", "of", "3", "begun", "exercises."],
    ]
    assert [mark.exercise for mark in exercises.report("rules").marks] == ["rules/two-rules"]
    exercises.report().marks[0].tried = 99  # a report is a copy
    assert exercises.report().marks[0].tried == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_exercise_has_three_hints_and_shows_what_it_gives(name):
    one = registry.find(name)
    assert len(one.hints) == 3
    shown = exercises.task(name)
    assert one.task in shown
    assert all(thing in shown for thing in vars(exercises.setup(name)))
    assert f"check({name!r}, …)" in shown


def test_values_show_themselves_in_a_notebook():
    found = exercises.check("rules/two-rules", "a<b -> x")
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == repr(found)
    assert bundle["text/html"].startswith("<p><b>✗ rules/two-rules</b>: ")
    assert "a&lt;b" in bundle["text/html"]
    assert (
        "<b>rules/two-rules</b>"
        in exercises.solution("rules/two-rules")._repr_mimebundle_()["text/html"]
    )
    task = exercises.task("rules/two-rules")
    assert repr(task) == task._repr_mimebundle_()["text/markdown"] == str(task)


def test_the_estimate_is_what_the_partitioner_does_where_plans_grade():
    given = exercises.setup("matmul/sent-bytes")
    cases = [graders._product(given, vars(given)["A"], given.B)]
    for name in ("matmul/nothing-moves", "matmul/one-all-reduce"):
        things = exercises.setup(name)
        pair = (vars(things)["A"], things.B)
        split = graders.read_pair(exercises.solution(name).answer, pair, things.mesh)
        cases.append(graders._product(things, *split))
    cases.append(exercises.setup("keep/unasked-gather").program)
    for program in cases:
        estimated, real = graders.planned(program).collectives, graders.partitioned(program)
        assert [(c.kind, c.mesh_axes, c.bytes_per_device) for c in estimated] == [
            (c.kind, c.mesh_axes, c.bytes_per_device) for c in real
        ]


def test_a_course_adds_its_own_exercise():
    @exercises.add(
        "mine/first",
        task="Which spec?",
        given=lambda: exercises.Setup(mesh=sv.mesh(a=2), x=sv.array("x", (8, 8))),
        hints=("Look.", "Look again."),
        solution="a",
        why="Because.",
    )
    def first(given, answer):
        layout = sv.layout(given.x, answer, given.mesh)
        exercises.require(layout.num_blocks == 2, f"{layout.num_blocks} shards, not two.")
        exercises.require(layout.shard_shape[0] == 4, "Split the rows.")
        return "Two shards."

    assert exercises.check("mine/first", "a").does == "Two shards."
    assert exercises.check("mine/first", "").hint == "1 shards, not two."
    assert exercises.check("mine/first", "None, a").hint == "Split the rows."
    assert [exercises.hint("mine/first") for _ in range(2)] == ["Look.", "Look again."]
    assert exercises.solution("mine/first").why == "Because."
    assert exercises.names("mine") == ("mine/first",)
    start = "**mine/first**\n\nWhich spec?\n\n    mesh = a=2\n    x = f32[8, 8]"
    assert exercises.task("mine/first").startswith(start)


def test_layouts_are_graded_without_jax_and_programs_name_what_is_missing():
    code = """
from shardviz import exercises
good = [exercises.check(n, exercises.solution(n).answer).ok for n in exercises.names(1)]
assert all(good) and exercises.check("rules/two-rules", "hidden -> x\\nwidth -> y")
print(exercises.check("matmul/nothing-moves", ("U", "None, V")).hint)
"""
    sentence = printed(code, without=("jax", "jaxlib", "ipywidgets", "matplotlib"))
    assert sentence == "sv.plan needs jax, which is not installed here: pip install jax."
