"""The time that lessons and docs/course.md state is the one counted."""

import json
import re
from pathlib import Path

import pytest

from tests.notebooks import minutes
from tests.notebooks.minutes import Minutes, counted, stated

NOTEBOOKS = sorted(minutes.FOLDER.glob("*.ipynb"))
# A word more is no reason to write the time again.
TOLERANCE = 3
COURSE = Path(__file__).resolve().parents[2] / "docs" / "course.md"


def lesson(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_time_that_a_lesson_states_is_what_it_takes(path):
    said, is_so = stated(lesson(path)), counted(lesson(path))
    if said is None:
        assert path.name.startswith("a"), "state the time: python -m tests.notebooks.minutes"
        return
    assert (said.exercises, said.write) == (is_so.exercises, is_so.write)
    repair = f"python -m tests.notebooks.minutes: {is_so}"
    assert abs(said.read - is_so.read) <= TOLERANCE, repair
    assert abs(said.solve - is_so.solve) <= TOLERANCE, repair


def test_the_course_states_the_times_of_its_lessons_and_their_sum():
    text = COURSE.read_text()
    rows = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\) \| (\d+) min", text)
    times = {name: int(found) for name, found in rows}
    for path in NOTEBOOKS:
        said = stated(lesson(path))
        if not path.name.startswith("a"):
            assert abs(times[path.stem] - said.read - said.solve) <= TOLERANCE, path.stem
    main = sum(time for name, time in times.items() if name < "09")
    hours = re.search(r"lessons 1 to 14 take (\d+) hours and (\d+) minutes", " ".join(text.split()))
    assert int(hours[1]) * 60 + int(hours[2]) == main
    assert main <= 360  # "a course of six hours"


def test_the_rates_that_the_course_states_are_those_counted_with():
    said = " ".join(COURSE.read_text().split())
    sentence = (
        f"{minutes.PROSE} words of prose or output per minute, {minutes.CODE} words of code per"
        f" minute, {minutes.PICTURE * 60:.0f} seconds per picture, and {minutes.SOLVE} minutes per"
        f" exercise after reading its task, or {minutes.WRITE} if it asks for code"
    )
    assert sentence in said


def cell(kind, name, source, **more):
    return {"cell_type": kind, "id": name, "source": [source], **more}


def test_words_code_output_pictures_and_tasks_are_counted():
    shown = {"output_type": "execute_result", "data": {"text/plain": "w " * 150, "image/png": ""}}
    printed = {"output_type": "stream", "text": ["w " * 300]}
    title = "*1 minutes: 1 to read and run, 0 for 0 exercises.*"
    cells = [
        cell("markdown", "title", title + " w" * 740),
        cell("code", "code", "w " * 100, outputs=[shown, shown, printed]),
        cell("code", "exercise-1", "w " * 500, outputs=[{"data": {"text/plain": "w " * 150}}]),
        cell("code", "check-1", "w " * 500, outputs=[printed]),
        cell("markdown", "exercises-code", "w " * 500),
        cell("code", "exercise-2", "w " * 500, outputs=[printed]),
        cell("code", "check-2", "w " * 500, outputs=[printed]),
        cell("markdown", "end", "w " * 150),
    ]
    assert counted({"cells": cells}) == Minutes(5 + 2 + 1 + 2 + 1, 6, exercises=1, write=15)
    assert stated({"cells": cells}) == Minutes(1, 0, 0)


def test_a_stated_time_that_does_not_add_up_is_found():
    wrong = cell("markdown", "title", "*9 minutes: 4 to read and run, 4 for 2 exercises.*")
    with pytest.raises(ValueError, match="add up"):
        stated({"cells": [wrong]})
