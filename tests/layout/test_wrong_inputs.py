"""Wrong inputs through the functions: one printable sentence each, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

import shardviz as sv
from tests.wrong import WRONG

MESH = sv.mesh(data=4, model=2)
RULES = sv.rules(("batch", "data"), ("mlp", "model"))
SHAPE = (8, 12)
LAYOUT = sv.layout(SHAPE, "data", MESH)
PROGRAM = sv.program(abs, sv.array("x", (8,)), mesh=MESH)

#: field -> how the functions take it, beside inputs that are fine
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "axis name": (lambda v: sv.mesh([(v, 4)]), lambda v: sv.mesh([("data", 4), (v, 1)])),
    "axis size": (lambda v: sv.mesh(data=v), lambda v: sv.mesh({"data": 4, "model": v})),
    "array name": (lambda v: sv.array(v, SHAPE),),
    "mesh": (
        lambda v: sv.mesh(v),
        lambda v: sv.layout(SHAPE, "data", v),
        lambda v: sv.audit([("w", SHAPE, "embed mlp")], RULES, v),
    ),
    "shape": (
        lambda v: sv.array("w", v),
        lambda v: sv.layout(v, "", MESH),
        lambda v: sv.resolve("embed mlp", RULES, mesh=MESH, shape=(v,)),
    ),
    "dtype": (
        lambda v: sv.array("w", SHAPE, dtype=v),
        lambda v: sv.audit([sv.array("w", SHAPE).replace(dtype=v)], RULES, MESH),
    ),
    "logical": (
        lambda v: sv.array("w", SHAPE, v),
        lambda v: sv.resolve(v, RULES, mesh=MESH, shape=SHAPE),
    ),
    "spec": (
        lambda v: sv.layout(SHAPE, v, MESH),
        lambda v: sv.layout(sv.array("w", SHAPE, spec=v), mesh=MESH),
    ),
    "rules": (
        lambda v: sv.rules(v),
        lambda v: sv.resolve("embed mlp", v),
        lambda v: sv.audit([("w", SHAPE, "embed mlp")], v, MESH),
    ),
    "paths": (
        lambda v: sv.resolve("w", v, dialect="regex"),
        lambda v: sv.audit([("w", SHAPE, "embed mlp")], v, MESH, dialect="regex"),
    ),
    "dialect": (
        lambda v: sv.resolve("embed mlp", RULES, dialect=v),
        lambda v: sv.audit([("w", SHAPE, "embed mlp")], RULES, MESH, dialect=v),
    ),
    "axis types": (lambda v: sv.mesh(data=4, model=2, axis_types=v),),
    "device ids": (lambda v: sv.mesh(data=4, model=2, device_ids=v),),
    "processes": (lambda v: sv.mesh(data=4, model=2, processes=v),),
    "tree": (lambda v: sv.audit(v, RULES, MESH),),
    "device id": (LAYOUT.box, MESH.position, MESH.coordinates),
    "process": (MESH.local,),
    "block number": (LAYOUT.holders,),
    "thing": (sv.text, sv.to_jax),
    "text width": (lambda v: sv.text(MESH, v),),
    "compiler options": (lambda v: sv.compile(PROGRAM, options=v),),
    "function": (lambda v: sv.program(v, sv.array("x", (8,)), mesh=MESH),),
    "program name": (lambda v: sv.program(abs, sv.array("x", (8,)), mesh=MESH, name=v),),
}

CASES = [
    pytest.param(field, function, value, id=f"{field}-{number}-{label}")
    for field, values in WRONG.items()
    for number, function in enumerate(FUNCTIONS[field])
    for label, value in values.items()
]


def test_every_field_has_a_function():
    assert set(FUNCTIONS) == set(WRONG)


@pytest.mark.parametrize(("field", "function", "value"), CASES)
def test_each_gives_one_printable_sentence(field, function, value):
    with pytest.raises(sv.ShardvizError) as caught:
        function(value)
    sentence = str(caught.value)
    assert sentence.isprintable(), ascii(sentence)
    assert 10 < len(sentence) <= 500, (len(sentence), sentence[:200])
    assert sentence[0] != " ", sentence
    assert sentence.endswith((".", "?", ":")), sentence


def test_nothing_changes_after_all_of_them():
    assert sv.mesh(data=4, model=2) == MESH
    assert sv.rules(("batch", "data"), ("mlp", "model")) == RULES
    assert str(sv.resolve("batch mlp", RULES, mesh=MESH, shape=SHAPE).spec) == "P('data', 'model')"
