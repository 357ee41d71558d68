"""What is read of a module's locations and types is what their text says."""

from __future__ import annotations

import jaxlib.version
import pytest
from jaxlib.mlir import ir

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.shardy import attributes, pipeline
from shardviz.core.backend.shardy.attributes import AttributeCache, call_around
from shardviz.core.backend.shardy.build_plan import lower_to_plan
from shardviz.core.backend.tracing.trace import trace
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
    return pipeline.propagate(lowered.module)


def own(location):
    around = call_around(location)
    return location if around is None else own(around[2])


def test_a_location_is_what_its_text_says(propagated):
    cache, functions = AttributeCache(), set()
    for op in operations(propagated.operation):
        location = cache.location(op)
        assert location == attributes.source_location(str(own(op.location)))
        functions.update(location.calls)
    assert functions


@pytest.mark.skipif(
    jaxlib.version.__version__ == "0.10.0", reason="jaxlib 0.10.0 has no classes of locations"
)
def test_most_locations_are_read_without_their_text(propagated, monkeypatch):
    found = list(operations(propagated.operation))
    parsed = []
    parse = attributes.source_location
    monkeypatch.setattr(
        attributes, "source_location", lambda text: parsed.append(text) or parse(text)
    )
    cache = AttributeCache()
    for op in found:
        cache.location(op)
    assert all("callsite" not in text for text in parsed)


def test_copies_share_what_was_read(propagated):
    cache = AttributeCache()
    for op in operations(propagated.operation):
        cache.location(op)
        for value in op.results:
            assert cache.tensor(value) == attributes.parse_tensor(str(value.type))
        for name in op.attributes:
            name = getattr(name, "name", name)
            assert cache.text(op, name) == str(op.attributes[name])
    read = len(cache._locations), len(cache._tensors), len(cache._texts)
    for op in operations(propagated.operation.clone()):
        cache.location(op)
        for value in op.results:
            cache.tensor(value)
    assert read == (len(cache._locations), len(cache._tensors), len(cache._texts))


def test_what_an_operation_does_not_say_is_empty(propagated):
    assert AttributeCache().text(propagated.operation, "no such") == ""


@pytest.mark.parametrize("name", ["é", "日😀", "a\\b", "a\\C3", 'say "x"', "\\", "a\nb"])
def test_names_come_back_as_they_went_in(name):
    written = str(ir.StringAttr.get(name, ir.Context()))
    assert attributes.unescaped(written[1:-1]) == name
