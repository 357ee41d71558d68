"""Everything wrong that can be typed into a field: a sentence there, and the last good state."""

import json

import pytest

from shardviz.explorer.document import ARRAY_FIELDS
from shardviz.explorer.session import Session
from shardviz.explorer.session_view import session_view
from shardviz.gallery import programs

# (field, text): each must leave a sentence at its field and change nothing else.
WRONG: dict[str, tuple[str, ...]] = {
    "mesh": (
        "", " ", "data", "data=", "=4", "data=0", "data=-4", "data=four", "data=4.5",
        "data=4,data=2",
        "data=99999999999", "data=4096,model=8192", "data=4 model", "data=nan", "data=1e3",
        "data=0x4", "'data=4", "data=4=2", "<b>", ",", ";;", "data==4", "a=1," * 40, "data=½",
    ),
    "hosts": ("", " ", "0", "3", "-1", "two", "1.5", "nan", "9" * 40, "<b>", "½", "٤", "+2"),
    "rules": (
        "batch", "batch ->", "-> data", "batch -> data extra", "batch -> (data", "batch -> data)",
        "batch -> 'data", "{'batch': 'data'}", "batch -> {data}", "= =", "(batch, data", "[[]]",
        "batch ->-> data", "batch -> (data,, model)", "batch -> ''", "'' -> data",
    ),
    "name": ("", "x", "w_out", "a" * 101, "\x00", "\x1b[0m", "a\nb", "\u202ea"),
    "shape": (
        "5,,", "512", "512, -2048", "512, x", "512; 2048", "1e3, 2", "nan, 2", "512, 2048, 4",
        "0.5, 2", "9" * 40 + ", 1", "99999999999, 99999999999", "((512, 2048)", "512 2048", "½, 1",
        "٤, 1", "True, 1", "512, None", "<b>, 1",
    ),
    "dtype": ("", "float", "float33", "bf17", "None", "<b>", "int3", "object", "float32, 2"),
    "logical": (
        "embed", "embed mlp extra", "embed 'mlp", "embed=mlp", "(embed mlp", "a" * 101 + " b",
        "embed {mlp}", "embed -> mlp",
    ),
    "spec": (
        "P(", "P('x'", "f(data)", "data model", "data,,model", "P(data, model, data)",
        "(data, (model,))",
        "P(data) + 1", "{data}", "P(data))", "'data", "data=4", "unreduced={", "lambda: 0",
        "__import__('os')",
    ),
}  # fmt: skip
CASES = [(field, text) for field, wrong in WRONG.items() for text in wrong]
# Fields that take what is well formed and say on the card why it cannot be laid out.
WELL_FORMED = (
    ("spec", "nowhere, None"), ("spec", "data, data"), ("spec", "(data, data), None"),
    ("spec", "P(unreduced={'data'})"), ("spec", "'<b>', None"), ("logical", "embed embed"),
    ("mesh", "other=8"), ("rules", "mlp -> nowhere"), ("shape", "512, 2047"),
)  # fmt: skip


def fresh() -> Session:
    return Session(programs.get(), programs.DEFAULT)


def field_error(session: Session, field: str) -> str:
    errors = session.now.fields[0].errors if field in ARRAY_FIELDS else session.now.errors
    return errors.get(field, "")


@pytest.mark.parametrize(("field", "text"), CASES, ids=lambda v: ascii(v)[:40])
def test_a_wrong_text_gives_one_sentence_at_its_field(field, text):
    session = fresh()
    before = session.program
    session.edit(field, text, 0)
    sentence = field_error(session, field)
    assert sentence
    assert "\n" not in sentence
    assert sentence.isprintable()
    assert len(sentence) < 500
    assert session.program is before
    json.dumps(session_view(session.now))


@pytest.mark.parametrize(("field", "text"), WELL_FORMED, ids=lambda v: ascii(v)[:30])
def test_what_is_well_formed_and_does_not_work_is_said_on_the_card(field, text):
    session = fresh()
    session.edit(field, text, 0)
    assert field_error(session, field) == ""
    card = session_view(session.now)["layout_0"]
    if (field, text) == ("spec", "'<b>', None"):
        assert "<b>" in card["problem"]
    assert card["problem"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("select", 99), ("remove", 99), ("by", "position"), ("dims", [0, 0]), ("dims", [0, 9]),
        ("program", "no such"), ("preset", "mesh:none"), ("preset", "x"), ("types", "Autoo"),
        ("target", "moon"), ("dialect", "perl"), ("move", [9, 0]),
    ],
)  # fmt: skip
def test_a_choice_that_does_not_work_is_refused_in_words(field, value):
    session = fresh()
    before = session.program
    session.edit(field, value)
    assert session.now.errors[field]
    assert session.program is before
