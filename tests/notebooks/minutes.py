"""How long a lesson takes, by counting what there is to read, to run and to solve.

`python -m tests.notebooks.minutes [NAME ...]` writes the time into the third line of the lessons
whose file names begin so (of all without names), and prints the sum of the main lessons.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
MAIN_LESSONS = 17  # the lessons up to this number are the main course; the others are short

# The rates that docs/course.md states.
PROSE = 150  # words a minute, as in a textbook; the same for printed output and for tasks
CODE = 50  # words a minute: code is read line by line
PICTURE = 0.5  # minutes to look at one
SOLVE = 5  # minutes for an exercise, beside reading its task
WRITE = 15  # minutes for an exercise that asks for code, its task included

_STATED = re.compile(
    r"\*(?P<minutes>\d+) minutes(?:: (?P<read>\d+) to read(?: and run)?,"
    r" (?P<solve>\d+) for (?P<exercises>\d+) exercises?"
    r"(?:; (?P<more>\d+) more for extra exercises)?"
    r"(?:; (?P<write>\d+) more if you write code)?| to read and run)\.\*"
)


class Minutes(NamedTuple):
    """The time of one lesson; exercises are a number, the rest minutes."""

    read: int
    solve: int
    exercises: int
    write: int = 0
    more: int = 0

    def __str__(self) -> str:
        if not self.exercises:
            return f"*{self.read} minutes to read and run.*"
        optional = f"; {self.more} more for extra exercises" if self.more else ""
        if self.write:
            optional += f"; {self.write} more if you write code"
        noun = "exercise" if self.exercises == 1 else "exercises"
        return (
            f"*{self.read + self.solve} minutes: {self.read} to read and run,"
            f" {self.solve} for {self.exercises} {noun}{optional}.*"
        )


def number_of(path: Path) -> int | None:
    """The number of a lesson; None for the appendix."""
    return int(path.name[:2]) if path.name[0].isdigit() else None


def _words(text: str | list[str]) -> int:
    return len("".join(text).split())


def counted(notebook: dict[str, Any]) -> Minutes:
    """The time by its words and pictures.

    A picture's text, which a reader without pictures gets, is not counted beside it.
    """
    read = solve = more = 0.0
    exercises = write = 0
    section = ""  # of exercises that the lesson's own time does not include
    for cell in notebook["cells"]:
        is_task = cell["id"].startswith("exercise-")
        is_check = cell["id"].startswith("check-")
        if cell["id"] in ("exercises-code", "exercises-more"):
            section = cell["id"]
        elif not (is_task or is_check):
            section = ""
        if section == "exercises-code":
            if is_check:
                write += WRITE
            continue
        if section == "exercises-more":
            more += SOLVE if is_check else 0
            continue
        if is_check:
            exercises += 1
            solve += SOLVE
            continue
        if cell["cell_type"] == "markdown":
            read += _words(cell["source"]) / PROSE
            continue
        if not is_task:
            read += _words(cell["source"]) / CODE
        for output in cell["outputs"]:
            data = output.get("data", {})
            said = _words(output.get("text") or data.get("text/plain", "")) / PROSE
            if is_task:
                solve += said
            elif "image/png" in data:
                read += PICTURE
            else:
                read += said
    return Minutes(round(read), round(solve), exercises, write, round(more))


def stated(notebook: dict[str, Any]) -> Minutes | None:
    """The time that a lesson states in its first cell; None where it states none."""
    found = _STATED.search("".join(notebook["cells"][0]["source"]))
    if found is None:
        return None
    if found["read"] is None:
        return Minutes(int(found["minutes"]), 0, 0)
    numbers = (int(found[n] or 0) for n in ("read", "solve", "exercises", "write", "more"))
    time = Minutes(*numbers)
    if int(found["minutes"]) != time.read + time.solve:
        raise ValueError(f"{found[0]} does not add up.")
    return time


def main(names: list[str]) -> None:
    """Writes the time into the lessons whose file names begin so; all without names."""
    total = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        time = counted(notebook)
        if (number_of(path) or MAIN_LESSONS + 1) <= MAIN_LESSONS:
            total += time.read + time.solve
        if not names or path.name.startswith(tuple(names)):
            print(f"{path.name}: {time}")
            if stated(notebook) is not None:
                path.write_text(_STATED.sub(str(time), text, count=1), encoding="utf-8")
    print(f"Lessons 1 to {MAIN_LESSONS}: {total} minutes.")


if __name__ == "__main__":
    main(sys.argv[1:])
