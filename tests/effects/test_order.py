"""The order in which effects happened: every event once, and ordered ones in program order."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

import shardviz as sv
from tests.effects.programs import KINDS, PLACES, PROGRAMS, in_part_of_the_mesh

VALUES = np.arange(8, dtype=np.float32)


def observed(fn, count=8, **options):
    made = sv.program(fn, sv.array("x", (8,), spec="d"), mesh=sv.mesh(d=count, **options))
    return sv.observed_order(made, VALUES)


def steps(x):
    for word in ("first", "second", "third"):
        io_callback(lambda v: None, None, x.sum(), ordered=True)
        jax.debug.print(word + " {x}", x=x.sum())
    return x + 1


def test_ordered_events_keep_the_order_of_the_program_on_every_device(eight_devices):
    seen = []

    def numbered(x):
        for i in range(4):
            io_callback(lambda v, i=i: seen.append(i), None, x, ordered=True)
        return x

    found = observed(PLACES["shard_map"](numbered))
    assert found.report.ok, found
    assert set(found.per_device()) == set(range(8))
    for device, events in found.per_device().items():
        assert [e.values for e in events] == [f"[{float(device)}]"] * 4
        assert all(e.ordered for e in events)
    assert sorted(seen) == sorted([0, 1, 2, 3] * 8)  # the program's own callbacks were called
    assert [e.number for e in found.events] == list(range(32))


def test_outside_shard_map_everything_happens_once(eight_devices):
    found = observed(steps)
    assert found.report.ok, found
    assert set(found.per_device()) == {0}
    assert sum(e.ordered for e in found.events) == 3
    prints = sorted(e.what for e in found.events if not e.ordered)
    assert prints == ["first {x}", "second {x}", "third {x}"]
    np.testing.assert_array_equal(found.report.outputs, VALUES + 1)


def test_devices_are_named_by_their_own_ids(eight_devices):
    found = observed(PROGRAMS["print in shard_map"], device_ids=[7, 6, 5, 4, 3, 2, 1, 0])
    assert {e.device: e.values for e in found.events} == {7 - i: f"[{i}.0]" for i in range(8)}


@pytest.mark.parametrize(
    ("name", "events"),
    [("print in scan", 2), ("io, ordered in fori", 2), ("debug callback in cond", 0),
     ("pure callback in top", 1), ("ref in top", 0), ("print in scan in shard_map", 16),
     ("io in while", 2), ("print in vmap", 8), ("print in custom_jvp", 1), ("io in remat", 1)],
)  # fmt: skip
def test_every_event_is_seen_once(name, events, eight_devices):
    made = sv.program(PROGRAMS[name], sv.array("x", (8,), spec="d"), mesh=sv.mesh(d=8))
    found = sv.observed_order(made, -VALUES)
    assert found.report.error is None, found
    assert len(found.events) == events
    plain = sv.run(made, -VALUES)
    np.testing.assert_array_equal(found.report.outputs, plain.outputs)


def test_a_mesh_axis_left_to_the_compiler_has_no_certain_device(eight_devices):
    made = sv.program(
        in_part_of_the_mesh(KINDS["print"]), sv.array("x", (8,), spec="a"), mesh=sv.mesh(a=4, b=2)
    )
    found = sv.observed_order(made, VALUES)
    assert found.report.error is None, found
    assert {e.device for e in found.events} == {None}


def test_the_name_of_a_callback_is_recorded(eight_devices):
    names = {e.what for n in ("io", "debug callback", "pure callback")
             for e in observed(KINDS[n]).events}  # fmt: skip
    assert names == {"host"}


def test_a_refused_program_has_no_events(eight_devices):
    found = observed(KINDS["print, ordered"])
    assert found.events == ()
    assert found.report.error.stage == "program"


def test_a_function_that_fails_is_reported_as_by_a_run(eight_devices):
    found = observed(lambda x: x.no_such_attribute)
    assert found.report.error.stage == "trace"
    assert repr(found) == "Observed(<lambda>: 0 events)"


def test_rows_are_plain_json(eight_devices):
    rows = observed(steps).rows()
    assert json.loads(json.dumps(rows)) == rows
    assert len(rows) == 6
