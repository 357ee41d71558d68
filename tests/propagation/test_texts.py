"""What is read off a module's parts is what its text says."""

from __future__ import annotations

import jaxlib.version
import pytest

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.shardy import mlir_text, pipeline
from shardviz.core.backend.shardy.build_plan import lower_to_plan
from shardviz.core.backend.shardy.mlir_text import AttributeCache
from shardviz.core.backend.tracing import trace
from tests.propagation import test_constructs
from tests.propagation.planning import MESH, program

PROGRAMS = ("nested jit", "scan, gradient", "loop in a loop", "cond", "remat")


def operations(op):
    yield op
    for region in op.regions:
        for block in region.blocks:
            for item in block.operations:
                yield from operations(item.operation)


@pytest.fixture(params=PROGRAMS)
def propagated(request, eight_devices):
    fn, letters, _ = test_constructs.COVERED[request.param]
    made = program(fn, **{a: test_constructs.ARGUMENTS[a] for a in letters})
    lowered = lower_to_plan(made, trace(made, abstract_mesh(MESH)))
    return pipeline.propagate(lowered.module, per_call=True)


def test_a_place_is_what_the_text_of_its_location_says(propagated):
    texts, functions = AttributeCache(), set()
    for op in operations(propagated.operation):
        told = texts.place(op)
        assert told == mlir_text.source_location(str(op.location))
        functions.update(told.calls)
    assert functions


@pytest.mark.skipif(
    jaxlib.version.__version__ == "0.10.0", reason="jaxlib 0.10.0 has no classes of locations"
)
def test_most_places_are_read_without_their_text(propagated, monkeypatch):
    found = list(operations(propagated.operation))
    asked = []
    whole = mlir_text.source_location
    monkeypatch.setattr(mlir_text, "place", lambda text: asked.append(text) or whole(text))
    texts = AttributeCache()
    for op in found:
        texts.place(op)
    assert all("callsite" not in text for text in asked)


def test_copies_share_what_was_read(propagated):
    texts = AttributeCache()
    for op in operations(propagated.operation):
        texts.place(op)
        for value in op.results:
            assert texts.tensor(value) == mlir_text.parse_tensor(str(value.type))
        for name in op.attributes:
            name = getattr(name, "name", name)
            assert texts.attribute(op, name) == str(op.attributes[name])
    read = len(texts._places), len(texts._tensors), len(texts._attributes)
    for op in operations(propagated.operation.clone()):
        texts.place(op)
        for value in op.results:
            texts.tensor(value)
    assert read == (len(texts._places), len(texts._tensors), len(texts._attributes))


def test_what_an_operation_does_not_say_is_empty(propagated):
    assert AttributeCache().attribute(propagated.operation, "no such") == ""
