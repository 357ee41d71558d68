"""Every number in the prose of a lesson comes from a cell of the same lesson.

Numbers are integers of two or more digits, decimals, numbers with a unit, and fractions in words
("three eighths"). Each must be in the code of the lesson, an assert for example, or in its output.
That it is the right one of these numbers is for a reader to see: what this finds are numbers that
no cell has.
"""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


UNITS = {
    "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "%": 1e-2,
    "bytes": 1.0, "GB/s": 1e9, "TB/s": 1e12,
    "TFLOP": 1e12, "TFLOP/s": 1e12, "seconds": 1.0, "times": 1.0,
}  # fmt: skip
FRACTIONS = {
    "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "tenth": 10,
    "sixteenth": 16,
}  # fmt: skip
_LONGEST_FIRST = "|".join(map(re.escape, sorted(UNITS, key=len, reverse=True)))
# No digit of a name, such as `bf16`, `70B` and `v5e`.
NUMBER = re.compile(
    r"(?<![\w.,])(?P<number>\d+(?:[,_]\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w|\.\d)"
    rf"(?:[ \u00a0](?P<unit>{_LONGEST_FIRST})(?![\w/])|(?P<percent>%))?"
)
# "The third rule" is none.
FRACTION = re.compile(rf"\b(?:an?|one|two|three|five|seven) (?P<part>{'|'.join(FRACTIONS)})s?\b")
# What has digits and says nothing that a cell could: links, the time of the lesson, numbers of
# lists, of lessons, of years and of versions.
LEFT_OUT = (
    r"\]\([^)]*\)",
    r"https?://\S+",
    r"(?m)^\*\d+ minutes.*$",
    r"(?m)^\s*\d+\. ",
    r"(?i)\b(?:lessons?|part|chapter|steps?|rules?|cell|stage|case)s? \d+(?:(?:, | and | to )\d+)*",
    r"\b(?:19|20)\d\d\b",
    r"(?i)\b(?:jax|python) \d+\.\d+(?: (?:and|or|to) \d+\.\d+)*",
)


def source(cell):
    return "".join(cell["source"])


def value(text):
    return float(text.replace(",", "").replace("_", ""))  # 1,024 and 1_024


def numbers_of_prose(text):
    """Each number that has to be traced: as it is written, its value, and that in its unit."""
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text)
    for found in NUMBER.finditer(text):
        number, unit = found["number"], found["unit"] or found["percent"]
        if unit or len(number) > 1:
            yield found[0], value(number), value(number) * UNITS.get(unit, 1.0)
    for found in FRACTION.finditer(text):
        part = FRACTIONS[found["part"]]
        yield found[0], float(part), 1 / part


def is_exercise(cell):
    return cell["id"].startswith(("exercise-", "check-"))


def numbers_of_cells(notebook):
    """The numbers in code, and those in code and output in their units; exercises left out."""
    code, values = set(), set()
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code" or is_exercise(cell):
            continue
        code |= {plain for plain, _ in read(source(cell))}
        for output in cell["outputs"]:
            text = "".join(output.get("text") or output["data"].get("text/plain", ""))
            values |= {scaled for _, scaled in read(text)}
    return code, code | values


def read(text):
    """Each number in code or output: as it stands there, and in its unit."""
    for found in NUMBER.finditer(re.sub(r"(?<=\d):", " ", text)):
        plain = value(found["number"])
        yield plain, plain * UNITS.get(found["unit"] or found["percent"], 1.0)


def has(values, number):
    return any(abs(number - v) <= 1e-9 * max(abs(number), abs(v)) for v in values)


def untraced(notebook):
    """The numbers of the prose that are in no cell, in order."""
    code, all_values = numbers_of_cells(notebook)
    lost = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        for written, plain, scaled in numbers_of_prose(source(cell)):
            # In code a unit is a factor: `6 * MIB`.
            traced = has(code, plain) or has(all_values, scaled)
            if not traced:
                lost.append(f"{cell['id']}: {written}")
    return lost


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_every_number_in_prose_is_in_a_cell(path):
    assert untraced(json.loads(path.read_text())) == []


def lesson(prose, code="", printed=""):
    output = {"output_type": "stream", "name": "stdout", "text": [printed]}
    return {
        "cells": [
            {"cell_type": "markdown", "id": "about", "source": [prose]},
            {"cell_type": "code", "id": "code", "source": [code], "outputs": [output]},
        ]
    }


@pytest.mark.parametrize(
    ("prose", "code", "printed"),
    [
        ("It takes 1,024 rows.", "assert rows == 1024", ""),
        ("It sends 16 MiB.", "", "16.0 MiB sent"),
        ("It sends 16 MiB.", "assert sent == 16 * MIB", ""),
        ("A link carries 50 GB/s.", "LINK = 50e9", ""),
        ("A chip has an eighth of it.", "assert part == whole / 8", ""),
        (
            "Lessons 10 to 12, [this](a11.ipynb) of 2021, bf16 on v5e, jax 0.10 to 0.12:",
            "",
            "",
        ),
        ("It takes 4.5 MiB.", "assert sent == 4.5 * MIB", ""),
    ],
)
def test_a_number_that_a_cell_has_is_traced(prose, code, printed):
    assert untraced(lesson(prose, code, printed)) == []


@pytest.mark.parametrize(
    ("prose", "written"),
    [
        ("It takes 1,025 rows.", "1,025"),
        ("It sends 17 MiB.", "17 MiB"),
        ("It sends 4.6 MiB.", "4.6 MiB"),
        ("It takes 7 ms.", "7 ms"),
        ("A chip has a fifth of it.", "a fifth"),
        ("It takes 16 ms.", "16 ms"),
    ],
)
def test_a_planted_number_is_found(prose, written):
    cells = lesson(prose, "assert rows == 1024", "16.0 MiB, 4.5 MiB, 6 ms, 1/8")
    assert untraced(cells) == [f"about: {written}"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_wrong_number_planted_in_a_lesson_is_found(path):
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] = ["It takes 73,939 MiB."]
    assert "73,939 MiB" in untraced(notebook)[0]
