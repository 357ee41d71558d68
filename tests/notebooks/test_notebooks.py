"""The lessons as documents: short cells, prose beside code, checked claims, stored outputs.

That they run, and print what is stored, is tested by `pytest --nbval-lax -p
tests.notebooks.compared notebooks`.
"""

import ast
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nbconvert
import nbformat
import pytest

from shardviz import exercises
from tests.notebooks.outputs import KEY, MOST_BYTES, ROOT, stale

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
NAMES = [n.stem for n in NOTEBOOKS]


@pytest.fixture(params=NOTEBOOKS, ids=NAMES)
def notebook(request):
    return json.loads(request.param.read_text())


def cells(notebook, kind):
    return [c for c in notebook["cells"] if c["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def claims(cell):
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source(cell))))


def words(notebook, kind):
    return sum(len(source(c).split()) for c in cells(notebook, kind))


# Those of the appendix have no exercises that are graded; their answers are in folded cells.
COURSE = [path for path in NOTEBOOKS if path.name[0].isdigit()]


def number_of(path):
    return int(path.name[:2])


def test_the_lessons_are_numbered_without_gaps():
    assert [number_of(path) for path in COURSE] == list(range(1, len(COURSE) + 1))
    appendix = NAMES[len(COURSE) :]
    assert [name[:2] for name in appendix] == [f"a{n}" for n in range(1, 6)]


def test_outputs_are_stored_and_the_kernel_is_anybodys(notebook):
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert stale(notebook) == [], "run `make lessons`"
    assert notebook["metadata"][KEY]["made_with"]["jax"].startswith("0.")
    for number, cell in enumerate(cells(notebook, "code"), 1):
        assert cell["execution_count"] == number
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "execute_result", "display_data")
            assert set(output.get("data", {})) <= {"text/plain", "image/png"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_every_figure_is_in_the_file_and_the_file_is_small(path):
    assert path.stat().st_size <= MOST_BYTES
    for cell in cells(json.loads(path.read_text()), "code"):
        last = source(cell).rstrip().splitlines()[-1]
        if last.startswith(("sv.plot(", "sv.explore(")) and not last.endswith(";"):
            stored = [o for o in cell["outputs"] if "image/png" in o.get("data", {})]
            assert stored, f"{cell['id']} shows a figure that is not stored"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_every_figure_has_an_alternative_text(path):
    for cell in cells(json.loads(path.read_text()), "code"):
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                words = output["metadata"].get("image/png", {}).get("alt", "")
                assert len(words.split()) >= 2, f"{cell['id']}: run `make lessons`"


def test_the_first_lesson_as_slides_has_every_figure_with_its_words():
    notebook = nbformat.read(COURSE[0], as_version=4)
    exporter = nbconvert.SlidesExporter()
    exporter.exclude_input_prompt = True
    page, _ = exporter.from_notebook_node(notebook)
    headings = sum(source(c).startswith("#") for c in cells(notebook, "markdown"))
    assert page.count("<section>") + page.count("<section ") >= headings
    images = re.findall(r'<img[^>]*src="data:image/png[^>]*>', page, re.S)
    stored = [
        o for c in cells(notebook, "code") for o in c["outputs"] if "image/png" in o.get("data", {})
    ]
    assert len(images) == len(stored) > 0
    assert all(re.search(r'alt="[^"]{10,}"', image) for image in images)


def test_a_stale_output_is_found(notebook):
    first, *_, last = cells(notebook, "code")
    last["source"] = [*last["source"], " "]
    assert stale(notebook) == [last["id"]]
    first["source"] = ["import shardviz"]
    assert len(stale(notebook)) == len(cells(notebook, "code"))  # they run after it
    notebook["metadata"].pop("shardviz")
    assert stale(notebook)[0] == first["id"]


def test_a_cell_that_was_removed_is_found(notebook):
    *_, last = cells(notebook, "code")
    notebook["cells"].remove(last)
    assert stale(notebook)


def test_cells_have_names_that_stay(notebook):
    ids = [c["id"] for c in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    # A tool that makes ids up makes eight hexadecimal digits; ours are words.
    assert not any(len(i) == 8 and set(i) <= set("0123456789abcdef") for i in ids)


def is_exercise(cell):
    return cell["id"].startswith(("exercise", "check-"))


def test_it_opens_with_prose_and_imports_shardviz(notebook):
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert "import shardviz as sv" in source(cells(notebook, "code")[0]).splitlines()


def test_the_first_figure_of_the_course_is_in_sight():
    title, figure, *_ = json.loads(COURSE[0].read_text())["cells"]
    assert source(title).count("\n") <= 10
    assert "image/png" in figure["outputs"][0]["data"]


def test_cells_are_short_and_prose_is_about_as_long_as_code(notebook):
    own = [c for c in notebook["cells"] if not is_exercise(c)]
    code = [c for c in own if c["cell_type"] == "code"]
    assert max(source(c).count("\n") + 1 for c in code) <= 24
    assert 0.75 <= len(code) / (len(own) - len(code)) <= 1.4
    assert 450 <= words({"cells": own}, "markdown") <= 1000


def test_most_cells_make_a_claim(notebook):
    code = [c for c in cells(notebook, "code") if not c["id"].startswith("exercise-")]
    graded = sum(c["id"].startswith("check-") for c in code)  # the reader's own claims
    assert graded + sum(map(claims, code)) >= len(code) * 0.6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_exercises_are_unanswered_and_their_tasks_are_those_of_today(path):
    code = {c["id"]: c for c in cells(json.loads(path.read_text()), "code")}
    checks = [cell for name, cell in code.items() if name.startswith("check-")]
    lesson = exercises.names(number_of(path)) if path in COURSE else ()
    assert [source(c).split('"')[1] for c in checks] == list(lesson)
    for number, cell in enumerate(checks, 1):
        name = re.fullmatch(r'exercises\.check\("(.+)", \.\.\.\)', source(cell))[1]
        shown = [code[f"exercise-{number}"], cell]
        texts = ["".join(c["outputs"][0]["data"]["text/plain"]) for c in shown]
        assert f'exercises.task("{name}")' in source(shown[0])
        assert texts == [exercises.task(name), repr(exercises.check(name))], "run `make lessons`"


def test_only_the_appendix_has_answers_and_they_can_be_hidden(notebook):
    answers = [c for c in cells(notebook, "code") if c["id"].startswith("answer")]
    assert len(answers) in (0, 3)
    assert not (answers and any(c["id"] == "check-1" for c in notebook["cells"]))
    for cell in answers:
        assert cell["metadata"]["jupyter"]["source_hidden"]
        assert "hide-input" in cell["metadata"]["tags"]
        assert claims(cell)


def test_it_ends_in_the_explorer(notebook):
    assert source(notebook["cells"][-1]).startswith("sv.explore(")


def plant(path, cells, jax):
    """A notebook with these cells: pairs of code and the output stored."""
    notebook = nbformat.v4.new_notebook(metadata={KEY: {"made_with": {"jax": jax}}})
    for number, (code, text) in enumerate(cells, 1):
        stored = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        cell = nbformat.v4.new_code_cell(code, execution_count=number, outputs=stored)
        notebook.cells.append(cell)
    nbformat.write(notebook, path)


def test_an_output_that_the_code_no_longer_prints_is_found(tmp_path):
    cells = [
        ("print('2 MiB, planned in 31 ms')", "2 MiB, planned\nin 1.2 s\n"),
        ("print('2 MiB per device')", "4 MiB per device\n"),
        ("print('2 MiB per device')", "2 MiB per device\n"),
    ]
    plant(tmp_path / "here.ipynb", cells, jax=version("jax"))
    plant(tmp_path / "another_jax.ipynb", cells, jax="0.1.2")  # whose numbers are not ours
    nbval = ["--nbval-lax", "--nbval-current-env", "-p", "tests.notebooks.compared"]
    command = [sys.executable, "-m", "pytest", *nbval, "-q", "--color=no", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "1 failed, 5 passed" in said
    assert "here.ipynb::Cell 1" in said
    assert "Cell 1: Cell outputs differ" in said
