"""The time that lessons and docs/course.md state is the one counted."""

import json
import re
from pathlib import Path

import pytest

from tests.docs.made_pages import extension
from tests.notebooks import minutes
from tests.notebooks.minutes import MAIN_LESSONS, Minutes, counted, stated

NOTEBOOKS = sorted(minutes.FOLDER.glob("*.ipynb"))
# A word more is no reason to write the time again.
TOLERANCE = 3
COURSE = Path(__file__).resolve().parents[2] / "docs" / "course.md"
HOURS = {
    "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
    "thirteen": 13,
}  # fmt: skip


def lesson(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_time_that_a_lesson_states_is_what_it_takes(path):
    said, is_so = stated(lesson(path)), counted(lesson(path))
    if said is None:
        assert path.name.startswith("a"), "state the time: python -m tests.notebooks.minutes"
        return
    assert (said.exercises, said.write, said.more) == (is_so.exercises, is_so.write, is_so.more)
    repair = f"python -m tests.notebooks.minutes: {is_so}"
    assert abs(said.read - is_so.read) <= TOLERANCE, repair
    assert abs(said.solve - is_so.solve) <= TOLERANCE, repair


def in_hours(time):
    return f"{time // 60} hours and {time % 60} minutes"


def test_the_course_states_the_times_of_its_lessons_and_their_sums():
    text = COURSE.read_text()
    rows = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\) \| (\d+) min", text)
    times = {name: int(time) for name, time in rows}
    for path in NOTEBOOKS:
        said = stated(lesson(path))
        if not path.name.startswith("a"):
            assert abs(times[path.stem] - said.read - said.solve) <= TOLERANCE, path.stem
    main = {int(name[:2]): time for name, time in times.items() if int(name[:2]) <= MAIN_LESSONS}
    text = " ".join(text.split())
    said = f"lessons 1 to {MAIN_LESSONS} take {in_hours(sum(main.values()))}"
    assert said in text
    # The title names whole hours, and the course is at most half an hour longer.
    hours = HOURS[re.match(r"# A course of (\w+) hours ", text)[1]]
    assert abs(sum(main.values()) - 60 * hours) <= 30
    day = re.search(r"In one day, teach lessons ([\d, and]+): (\d+ hours and \d+ minutes)", text)
    chosen = [int(number) for number in re.findall(r"\d+", day[1])]
    assert day[2] == in_hours(sum(main[number] for number in chosen))
    assert sum(main[number] for number in chosen) <= 360


def test_the_site_lists_the_same_lessons_as_the_main_course():
    assert extension("site_pages").COURSE == MAIN_LESSONS


def test_the_rates_that_the_course_states_are_those_counted_with():
    said = " ".join(COURSE.read_text().split())
    sentence = (
        f"{minutes.PROSE} words of prose or output per minute, {minutes.CODE} words of code per"
        f" minute, {minutes.PICTURE * 60:.0f} seconds per picture, and {minutes.SOLVE} minutes per"
        f" exercise ({minutes.WRITE} if it asks for code), in addition to reading its task"
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
        cell("markdown", "exercises-more", "w " * 500),
        cell("code", "exercise-3", "w " * 500, outputs=[printed]),
        cell("code", "check-3", "w " * 500, outputs=[printed]),
        cell("markdown", "end", "w " * 150),
    ]
    time = Minutes(5 + 2 + 1 + 2 + 1, 6, exercises=1, write=15, more=5)
    assert counted({"cells": cells}) == time
    assert stated({"cells": [cell("markdown", "title", str(time))]}) == time
    assert stated({"cells": cells}) == Minutes(1, 0, 0)


def test_a_stated_time_that_does_not_add_up_is_found():
    wrong = cell("markdown", "title", "*9 minutes: 4 to read and run, 4 for 2 exercises.*")
    with pytest.raises(ValueError, match="add up"):
        stated({"cells": [wrong]})
