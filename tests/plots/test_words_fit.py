"""Every word of a picture lies on the page, however coarse the paper; answers are never cut."""

from __future__ import annotations

import dataclasses
import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.resolution import resolve
from shardviz.base.collective import Collective
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.comparison import compare
from shardviz.compiled.report import Check, Report
from shardviz.compiled.stages import Stages
from shardviz.draw.page import broken, text_width
from shardviz.draw.paint import paint
from shardviz.draw.picture import Picture
from shardviz.pictures import draw
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp
from shardviz.programs.failure import Failure
from tests.picture.values import BAD, MESH, PROGRAM, REPORT, RULES, VALUES, W

DOTS = (60, 100, 144)  # an inch
LONG_NAME = "transformer.decoder.layers_17.self_attention.query_projection.kernel_and_its_bias"
SENTENCE = "MWmw the partitioner made an all-reduce of 128 KiB over data instead; " * 6
PATH = "jit(train)/transpose(jvp(layer))/while/body/closed_call/checkpoint/attn/" * 6
MANY = Spec.parse("model, data, None, None, None, None, None, None")
OPS = {
    spec: PlannedOp(LONG_NAME, "op", "dot_general", PATH, "f.py:3", (), (8,) * 8, "bfloat16", spec)
    for spec in (MANY, Spec())
}
PLANS = {spec: Plan(LONG_NAME, MESH, (op,), collectives=()) for spec, op in OPS.items()}
MOVES = (
    Collective("all-reduce", ("data", "model"), 1 << 40, PATH, "a_module_of_mine.py:12345"),
    Collective("all-gather", ("data",), 256, trips=1_000_000, value=LONG_NAME),
)
LONG = {
    "report": REPORT.replace(
        collectives=MOVES,
        checks=(Check(LONG_NAME, False, SENTENCE), Check("x", None, SENTENCE)),
        effects=("ordered io",) * 40,
    ),
    "failure": Report("f", "cpu × 8", error=Failure("compile", SENTENCE * 3, "block.py:31")),
    "name": Report(LONG_NAME, "cpu × 8"),
    "comparison": compare(MOVES, (dataclasses.replace(MOVES[0], source=""),) * 3),
    "difference": PLANS[MANY].diff(PLANS[Spec()]),
    "difference of collectives": PLANS[MANY].diff(
        Plan(LONG_NAME, MESH, (OPS[MANY],), collectives=MOVES)
    ),
    "plan": PLANS[MANY],
    "plan of many moves": Plan(
        "f",
        MESH,
        (OPS[MANY],),
        collectives=tuple(
            dataclasses.replace(MOVES[1], kind=kind, bytes_per_device=size, trips=trips)
            for kind, size, trips in (
                ("all-gather", 256, 1_000_000),
                ("all-reduce", 1 << 40, 1),
                ("all-to-all", 1024, 1),
                ("all-reduce", 7, 3),
            )
        ),
    ),
    "explanation": PLANS[MANY].why(LONG_NAME),
    "stages": Stages(PROGRAM, PLANS[MANY], REPORT.replace(partitioned=MOVES, collectives=MOVES)),
    "audit": audit([W.replace(name=LONG_NAME), BAD.replace(name=LONG_NAME + "x")], RULES, MESH),
    "request": request(W.replace(name=LONG_NAME), MESH, RULES),
    "resolution": resolve((LONG_NAME, "mlp"), [(LONG_NAME, "model"), ("mlp", "model")]),
    "mesh": make_mesh({LONG_NAME: 2, "MWMW" * 9: 4}),
}


def boxes(picture: Picture, dots: float) -> list[tuple[str, float, float]]:
    """Every text with its left and right edge, in points of the picture."""
    figure = paint(picture)
    figure.set_dpi(dots)
    renderer = FigureCanvasAgg(figure).get_renderer()
    found = []
    for text in figure.axes[0].texts:
        box = text.get_window_extent(renderer)
        found.append((text.get_text(), box.x0 * 72 / dots, box.x1 * 72 / dots))
    return found


@pytest.mark.parametrize("dots", DOTS)
@pytest.mark.parametrize("name", LONG)
def test_long_words_lie_on_the_page(name, dots):
    assert_on_page(draw(LONG[name]), dots)


@pytest.mark.parametrize("name", VALUES)
def test_the_words_of_every_value_lie_on_the_page(name):
    assert_on_page(draw(VALUES[name]), 60)


def assert_on_page(picture: Picture, dots: float) -> None:
    for text, left, right in boxes(picture, dots):
        assert left >= -1, text
        assert right <= picture.width + 1, text


def words(picture: Picture) -> str:
    return " ".join(v.text.strip() for v in picture.labels)


ANSWERS = {
    "plan of many moves": "all-gather result of 256 B × 1,000,000 over data, all-reduce result",
    "failure": SENTENCE.strip(),
    "report": SENTENCE.strip(),
    "comparison": str(LONG["comparison"].changes[0]),
    "difference": f"{MANY} -> P()",
    "difference of collectives": f"with a result of 256 B × 1,000,000 over data for {LONG_NAME}",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_not_cut(name):
    picture = draw(LONG[name])
    said = " ".join([words(picture), *(words(p) for _, _, p in picture.panels)])
    # A name too long for a line goes on in the next one.
    assert re.sub(r"\s", "", ANSWERS[name]) in re.sub(r"\s", "", said)


TEXTS = {
    "sentence": SENTENCE[:60],
    "spec": "P(None, 'model', None, ('data', 'model')) → P('data')",
    "capitals": "QUERY KEY VALUE OUTPUT WMWM",
    "numbers": "1,048,576 B × 1,000 (+ 12 %) = 42 <->",
    "signs": "✓ ✗ → ↔ · × − – … “here”",
    "accents": "größer über é",
}


@pytest.mark.parametrize("bold", [False, True], ids=["plain", "bold"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_widths_are_from_above(text, bold):
    for dots in (100, 144, 200):
        figure = Figure(dpi=dots)
        made = figure.text(0, 0, text, size=9, weight="bold" if bold else "normal")
        box = made.get_window_extent(FigureCanvasAgg(figure).get_renderer())
        assert box.width * 72 / dots <= text_width(text, 9, bold=bold) + 0.5, dots


@pytest.mark.parametrize("width", [30, 80, 200, 5000])
def test_broken_lines_lose_nothing_and_fit(width):
    lines = broken(SENTENCE + PATH, width, 9)
    assert "".join(lines).replace(" ", "") == (SENTENCE + PATH).replace(" ", "")
    assert all(text_width(line, 9) <= width for line in lines)
