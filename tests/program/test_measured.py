"""Measured times, against the compiled text, the loops, and jaxlib's own reader of profiles."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.compiled.measured import (
    Measured,
    MeasuredRow,
    NotMeasured,
    measured,
    with_least_times,
)
from shardviz.compiled.module import Module
from shardviz.compiled.profile import ProfiledEvent, device_events
from shardviz.compiled.roofline import Roofline
from shardviz.hardware.chips import find_chip
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import run, run_here
from tests.program.measured_programs import arrays, matmul_chain, programs

PROGRAMS = programs()
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*? ([a-z\-]+)\(", re.MULTILINE)


def small():
    return sv.program(
        matmul_chain,
        *arrays(
            ((64, 64), "a, None", "float32"),
            ((64, 64), "None, b", "float32"),
            ((64, 64), "b, None", "float32"),
        ),
        mesh="a=4, b=2",
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_busy_time_belongs_to_instructions_of_the_program(name):
    cache = ExecutableCache()
    report = run_here(PROGRAMS[name], cache=cache, measure=True)
    assert report.ok, report
    result = report.measured
    assert result.joined_share >= 0.95
    assert set(result.busy_seconds) == set(range(8))
    opcodes = dict(INSTRUCTION.findall(cache.find(report.key).stage.as_text()))
    listed: list[str] = []
    for row in result.rows:
        assert 0 <= row.fastest <= row.seconds <= row.slowest <= max(result.busy_seconds.values())
        listed += row.instructions
        kinds = {opcodes[instruction] for instruction in row.instructions}
        if row.part == "op":
            assert not kinds & {c.kind for c in report.collectives}
            continue
        collective = report.collectives[row.collective]
        assert row.instructions == (collective.name,)
        assert kinds == {collective.kind}
        assert 0 <= row.hidden <= 1
        assert collective.trips in (None, row.runs)
    assert len(listed) == len(set(listed))
    ran = [row.collective for row in result.rows if row.part == "collective"]
    assert sorted(ran) == list(range(len(report.collectives)))
    exposed = result.exposed_seconds
    for device, busy in result.busy_seconds.items():
        assert 0 <= exposed[device] <= busy


def test_a_loop_of_unknown_length_shows_how_often_it_ran():
    (row,) = [
        r for r in run_here(PROGRAMS["while"], measure=True).measured.rows if r.hidden is not None
    ]
    assert row.runs == 6  # the condition's sum runs once more than the body


def test_a_worker_measures_simulated_devices():
    report = run(small(), target="cpu:8", measure=True)
    assert report.ok
    assert len(report.measured.busy_seconds) == 8
    assert report.measured.joined_share >= 0.95
    assert "all-reduce over b" in sv.text(report.measured)
    assert sv.text(report.measured).splitlines()[0] in sv.text(report)


def test_nothing_is_measured_unless_asked():
    assert run_here(small()).measured is None


def test_a_profile_of_the_user_goes_on(tmp_path):
    jax.profiler.start_trace(str(tmp_path))
    try:
        report = run_here(small(), measure=True)
        jnp.sin(jnp.ones(7)).block_until_ready()
    finally:
        jax.profiler.stop_trace()
    assert report.ok
    assert report.measured is None
    assert NotMeasured("other profile") in report.notes
    assert list(Path(tmp_path).rglob("*.xplane.pb"))


def test_events_are_those_of_jaxlibs_reader(tmp_path):
    x = jax.device_put(jnp.ones((64, 64)), jax.devices()[3])
    compiled = jax.jit(lambda x: jnp.sin(x @ x) @ x).lower(x).compile()
    with jax.profiler.trace(str(tmp_path)):
        compiled(x).block_until_ready()
    (file,) = Path(tmp_path).rglob("*.xplane.pb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nanobind's types have no module
        expected = []
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        expected.append((event.name, stats["hlo_op"], stats["device_ordinal"]))
    name = compiled.runtime_executable().hlo_modules()[0].name
    events = device_events(file.read_bytes(), name)
    assert expected
    assert sorted((e.instruction, e.instruction, str(e.device)) for e in events) == sorted(
        (name, op, str(device)) for name, op, device in expected
    )
    assert {event.device for event in events} == {3}
    assert all(event.start < event.end for event in events)
    assert device_events(file.read_bytes(), "jit_other") == []


@pytest.fixture(scope="module")
def module():
    mesh = jax.make_mesh((8,), ("a",))
    sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=sharded)
    compiled = jax.jit(lambda x: jnp.sin(x).sum(0)).lower(x).compile()
    hlo = compiled.runtime_executable().hlo_modules()[0]
    return sv.report(compiled), Module(hlo.as_serialized_hlo_module_proto())


def test_overlap_is_that_of_unions(module):
    report, read = module
    (collective,) = report.collectives
    op = next(i.name for c in read.computations for i in c.instructions if i.opcode == "fusion")
    second = 10**12
    events = [
        ProfiledEvent(0, collective.name, 2 * second, 6 * second),
        # Two operations at the same time count once.
        ProfiledEvent(0, op, 0, 3 * second),
        ProfiledEvent(0, op, 1 * second, 4 * second),
        ProfiledEvent(0, "", 8 * second, 9 * second),
        ProfiledEvent(7, op, 0, second),  # another program's device
    ]
    result = measured(events, read, report.collectives, {0: 5}, calls=1)
    rows = {row.part: row for row in result.rows}
    assert (rows["collective"].seconds, rows["collective"].hidden) == (4.0, 0.5)
    assert (rows["op"].seconds, rows["op"].runs, rows["collective"].at) == (4.0, 2.0, 2.0)
    assert (result.busy_seconds, result.exposed_seconds) == ({5: 7.0}, {5: 2.0})
    assert result.joined_share == 6 / 7
    assert measured([], read, (), {0: 0}, 1) == NotMeasured("no events")


def test_least_times_stand_beside_collectives_and_products():
    program = small()
    plan, ran = sv.plan(program), run_here(program, measure=True)
    chip = find_chip("v5e")
    report = with_least_times(ran.replace(roofline=Roofline(chip.name, chip)), plan)
    by_part: dict[str, list[MeasuredRow]] = {}
    for row in report.measured.rows:
        by_part.setdefault(row.part, []).append(row)
    bytes_sent = [c.sent_bytes for c in report.collectives]
    rate = chip.link_bandwidth * chip.ici_links
    assert sum(row.least for row in by_part["collective"]) >= sum(bytes_sent) / rate
    products = [row for row in by_part["op"] if row.least]
    # Six products of 64 rows over a=4 with a matrix halved over b=2.
    assert sum(row.least for row in products) == pytest.approx(
        6 * 2 * 16 * 64 * 32 / chip.peak_bf16
    )
    assert all(row.least is None for row in by_part["op"] if row not in products)
    first, *_, last = report.measured.differences
    assert (first.difference is None, last.difference is None) == (False, True)


def test_work_on_one_device_is_not_said_of_each():
    row = MeasuredRow("pure_callback", "op", 2e-6, 1e-6, 0.3, 1.0)
    text = sv.text(
        Measured((row,), 3, {0: 0.3, 1: 4e-6, 2: 3e-6}, dict.fromkeys(range(3), 0.0), 1.0)
    )
    assert "the devices are busy from 3 µs to 300 ms per call, 4 µs in\n  the median." in text
    assert "pure_callback · up to 300 ms on one device" in text


def test_every_value_has_words_and_a_picture():
    rows = (
        MeasuredRow("all-gather over a", "collective", 2e-3, 1e-3, 3e-3, 1, hidden=0.5, least=1e-3),
    )
    result = Measured(rows, 3, {0: 2e-3}, {0: 1e-3}, 0.5)
    for fact in (result, *rows, *map(NotMeasured, ("hosts", "no events", "other profile"))):
        assert str(fact)
    assert result._repr_mimebundle_()["text/plain"]
    assert rows[0].exposed == 1e-3
