"""Collectives and groups of short modules written by hand, with facts counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shardviz.base.cause import UNKNOWN, ValueName
from shardviz.compiled import read_collectives as reading
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.read_groups import GroupReader, Slices, slices_of
from shardviz.hardware.topology import FIRST_ID
from tests.program.hlo import parsed

ALL = "replica_groups={{0,1,2,3}}"
P, Q = "%p = f32[8,8] parameter(0)", "%q = f32[8,8] parameter(1)"
PERMUTE = "collective-permute(%p), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"


def read(*lines, devices=4):
    return read_collectives(parsed("\n".join(lines)), ("x",), (devices,))


def named(op, line=3):
    return f'metadata={{op_name="jit(f)/{op}" source_file="/home/me/f.py" source_line={line}}}'


# --- sizes and shapes -----------------------------------------------------------------

GATHER = f"all-gather(%p), dimensions={{0}}, {ALL}"
SCATTER = f"reduce-scatter(%p), dimensions={{0}}, to_apply=%add, {ALL}"
SUM = f"all-reduce(%p), to_apply=%add, {ALL}"
# The instruction, and bytes per device, shape and size of the groups: 4 bytes a number.
SIZES = {
    "all-gather": (f"ROOT %r = f32[32,8] {GATHER}", (1024, "f32[32,8]", 4)),
    "all-reduce": (f"ROOT %r = f32[8,8] {SUM}", (256, "f32[8,8]", 4)),
    # Its bytes are those of the operand.
    "reduce-scatter": (f"ROOT %r = f32[2,8] {SCATTER}", (256, "f32[2,8]", 4)),
    "collective-permute": (f"ROOT %r = f32[8,8] {PERMUTE}", (256, "f32[8,8]", 4)),
    "half of the devices": (
        f"ROOT %r = f32[8,8] {SUM.replace(ALL, 'replica_groups={{0,2},{1,3}}')}",
        (256, "f32[8,8]", 2),
    ),
    "groups of half of the devices": (
        f"ROOT %r = f32[4,8] {SCATTER.replace(ALL, 'replica_groups={{0,2},{1,3}}')}",
        (256, "f32[4,8]", 2),
    ),
    # If the size of the groups is unknown, all devices count.
    "a reduce-scatter in groups of two sizes": (
        f"ROOT %r = f32[2,8] {SCATTER.replace(ALL, 'replica_groups={{0},{1,2,3}}')}",
        (256, "f32[2,8]", 0),
    ),
    "groups of two sizes": (
        f"ROOT %r = f32[8,8] {SUM.replace(ALL, 'replica_groups={{0},{1,2,3}}')}",
        (256, "f32[8,8]", 0),
    ),
}


@pytest.mark.parametrize(("line", "expected"), SIZES.values(), ids=SIZES)
def test_sizes(line, expected):
    (c,) = read(P, line)
    assert (c.bytes_per_device, c.shape, c.group_size) == expected
    assert not c.is_async
    assert (c.trips, c.in_loop, c.between_slices, c.rematerialises) == (1, False, False, False)


# A start's result has operands and contexts too; only the results count.
STARTS = {
    "all-gather": (
        f"%s = (f32[8,8], f32[32,8]) all-gather-start(%p), dimensions={{0}}, {ALL}",
        "ROOT %d = f32[32,8] all-gather-done(%s)",
        (1024, "f32[32,8]"),
    ),
    "all-reduce": (
        f"%s = f32[8,8] all-reduce-start(%p), to_apply=%add, {ALL}",
        "ROOT %d = f32[8,8] all-reduce-done(%s)",
        (256, "f32[8,8]"),
    ),
    "collective-permute": (
        f"%s = (f32[8,8], f32[8,8], u32[], u32[]) {PERMUTE.replace('(', '-start(', 1)}",
        "ROOT %d = f32[8,8] collective-permute-done(%s)",
        (256, "f32[8,8]"),
    ),
}


@pytest.mark.parametrize("has_done", [True, False])
@pytest.mark.parametrize(("start", "done", "expected"), STARTS.values(), ids=STARTS)
def test_starts_count_their_results_once(start, done, expected, has_done):
    lines = [P, start, done] if has_done else [P, start.replace("%s =", "ROOT %s =")]
    (c,) = read(*lines)
    assert (c.bytes_per_device, c.shape, c.is_async) == (*expected, True)


def test_the_done_shows_which_results_are_arrays():
    start = f"(f32[8,8], f32[8,8], s32[], s32[]) {PERMUTE.replace('(', '-start(', 1)}"
    (c,) = read(P, f"%s = {start}", "ROOT %d = f32[8,8] collective-permute-done(%s)")
    assert (c.bytes_per_device, c.shape) == (256, "f32[8,8]")


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_start_that_is_waited_for_at_once_is_not_asynchronous(is_sync):
    start, done, _ = STARTS["all-gather"]
    config = 'backend_config={"collective_backend_config":{"is_sync":true}}'
    (c,) = read(P, f"{start}, {config}" if is_sync else start, done)
    assert c.is_async is not is_sync


def test_members_of_a_combined_sum():
    small = "%q = f32[2,8] parameter(1)"
    add = f"(%q, %p), to_apply=%add, {ALL}"
    (c,) = read(P, small, f"ROOT %r = (f32[2,8], f32[8,8]) all-reduce{add}")
    assert c.shape == "(f32[2,8], f32[8,8])"
    assert [(m.bytes_per_device, m.shape) for m in c.members] == [
        (256, "f32[8,8]"),
        (64, "f32[2,8]"),
    ]
    assert c.bytes_per_device == 320


def test_members_of_a_combined_reduce_scatter_have_the_bytes_of_their_operands():
    scatter = f"reduce-scatter(%p, %q), dimensions={{0}}, to_apply=%add, {ALL}"
    (c,) = read(P, "%q = f32[4,8] parameter(1)", f"ROOT %r = (f32[2,8], f32[1,8]) {scatter}")
    assert [m.bytes_per_device for m in c.members] == [256, 128]
    assert c.bytes_per_device == 384


# The shapes of a combined sum, and the bytes of its members: 1 byte a number.
TINY = {
    "one byte": (("s8[1]", "s8[0]"), [1, 0]),
    "no bytes": (("s8[0]", "s8[0]"), [0, 0]),
    "two bytes": (("s8[1]", "s8[1]"), [1, 1]),
}


@pytest.mark.parametrize(("shapes", "sizes"), TINY.values(), ids=TINY)
def test_members_of_a_byte_or_none(shapes, sizes):
    reads = [
        f"%{n} = {s} parameter({i})" for i, (n, s) in enumerate(zip("pq", shapes, strict=True))
    ]
    (c,) = read(*reads, f"ROOT %r = ({', '.join(shapes)}) all-reduce(%p, %q), to_apply=%add, {ALL}")
    assert [m.bytes_per_device for m in c.members] == sizes
    assert c.bytes_per_device == sum(sizes)


def test_an_all_to_all_of_a_tuple_is_one_array():
    exchange = f"all-to-all(%p, %q), {ALL.replace('0,1,2,3', '0,1},{2,3')}"
    (c,) = read(P, Q, f"ROOT %r = (f32[8,8], f32[8,8]) {exchange}")
    assert c.members == ()
    assert (c.bytes_per_device, c.operand) == (512, UNKNOWN)


@pytest.mark.parametrize(("second", "operand"), [("%p", True), ("%q", False)])
def test_an_exchange_of_one_value_in_parts_has_an_operand(second, operand):
    named_w, named_x = (f'{line}, metadata={{op_name="{n}"}}' for line, n in ((P, "w"), (Q, "x")))
    exchange = f"all-to-all(%p, {second}), {ALL.replace('0,1,2,3', '0,1},{2,3')}"
    (c,) = read(named_w, named_x, f"ROOT %r = (f32[8,8], f32[8,8]) {exchange}")
    assert c.operand == (ValueName("argument", "w") if operand else UNKNOWN)


# --- collectives in other computations ------------------------------------------------

IN_FUSION = """HloModule f

%NAME (a: f32[8,8]) -> f32[2,8] {
  %a = f32[8,8] parameter(0)
  %z = s32[] constant(0)
  %r = f32[8,8] all-reduce(%a), to_apply=%add, GROUPS
  ROOT %d = f32[2,8] dynamic-slice(%r, %z, %z), dynamic_slice_sizes={2,8}
}

ENTRY %main {
  %p = f32[8,8] parameter(0)
  ROOT %f = f32[2,8] fusion(%p), kind=kCustom, calls=%NAME
}
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("all-reduce-scatter.1", "reduce-scatter"), ("fused_computation", "all-reduce")],
)
def test_a_sum_that_is_fused_with_a_slice(name, kind):
    text = IN_FUSION.replace("NAME", name).replace("GROUPS", ALL)
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.kind, c.bytes_per_device, c.added_in) == (kind, 256, "")


SYNC = 'backend_config={"collective_backend_config":{"is_sync":true}}'
ASYNC = """HloModule f

%wrapped (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8] parameter(0)
  ROOT %r = f32[8,8] collective-permute(%a), source_target_pairs={{0,1}}
}

ENTRY %main {
  %p = f32[8,8] parameter(0)
  %s = ((f32[8,8]), f32[8,8], s32[]) async-start(%p), calls=%wrapped, SYNC
  ROOT %d = f32[8,8] async-done(%s)
}
"""


@pytest.mark.parametrize(("config", "is_async"), [(", SYNC", False), ("", True)])
def test_a_collective_that_is_started_by_a_generic_start(config, is_async):
    text = ASYNC.replace(", SYNC", config).replace("SYNC", SYNC)
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.is_async, c.bytes_per_device) == (is_async, 256)
    # Another operation is started together with it.
    text = text.replace("  ROOT %r", "  %k = f32[8,8] negate(%a)\n  ROOT %r").replace(
        "permute(%a)", "permute(%k)"
    )
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.is_async, c.bytes_per_device) == (is_async, 256)


PART = """
%part.N (a: f32[8,8]) -> f32[32,8] {
  %a = f32[8,8] parameter(0)
  ROOT %g = f32[32,8] all-gather(%a), dimensions={0}, GROUPS, CHANNELCHAIN
}
"""
PARTS = f"""HloModule f
{PART.replace(".N", ".0")}{PART.replace(".N", ".1")}
ENTRY %main {{
  %p = f32[8,8] parameter(0)
  %f = f32[32,8] fusion(%p), kind=kCustom, calls=%part.0
  ROOT %g = f32[32,8] fusion(%p), kind=kCustom, calls=%part.1
}}
"""


@pytest.mark.parametrize(
    ("channels", "chains", "count"),
    [
        # The compiler splits one gather into parts with the same channel and chain.
        ((1, 1), ("7", "7"), 1),
        ((1, 1), ("7", "8"), 2),
        ((1, 2), ("7", "7"), 2),
        ((1, 1), (None, None), 2),
        ((None, None), ("7", "7"), 2),
        ((0, 0), ("7", "7"), 2),
    ],
)
def test_parts_of_a_gather_are_counted_once(channels, chains, count):
    text = PARTS.replace("GROUPS", ALL)
    for channel, chain in zip(channels, chains, strict=True):
        number = "" if channel is None else f"channel_id={channel}"
        about = "" if chain is None else f'frontend_attributes={{chain_id="{chain}"}}'
        words = ", ".join(word for word in (number, about) if word)
        text = text.replace(", CHANNELCHAIN", f", {words}" if words else "", 1)
    found = read_collectives(parsed(text), ("x",), (4,))
    assert len(found) == count
    # Parts of a split collective run beside other work.
    assert {c.is_async for c in found} == {chains[0] is not None}


# --- sums that are added --------------------------------------------------------------

ADDED = {
    "by one addition": (["ROOT %z = f32[8,8] add(%r, %q)"], "z"),
    "by two": (["%z = f32[8,8] add(%r, %q)", "ROOT %t = f32[8,8] add(%z, %p)"], "t"),
    "after a copy": (["%c = f32[8,8] copy(%r)", "ROOT %z = f32[8,8] add(%c, %q)"], "z"),
    "after a transpose": (
        ["%c = f32[8,8] transpose(%r), dimensions={1,0}", "ROOT %z = f32[8,8] add(%c, %q)"],
        "z",
    ),
    "not at all": (["ROOT %z = f32[8,8] multiply(%r, %q)"], ""),
    "after a negation": (["%c = f32[8,8] negate(%r)", "ROOT %z = f32[8,8] add(%c, %q)"], ""),
    "and used elsewhere": (
        ["%z = f32[8,8] add(%r, %q)", "ROOT %t = (f32[8,8], f32[8,8]) tuple(%z, %r)"],
        "",
    ),
}


@pytest.mark.parametrize(
    "first",
    [
        f"%r = f32[8,8] {SUM.replace('%add', '%largest')}",
        f"%r = f32[8,8] {SCATTER.replace('(%p)', '(%w)')}",
        PERMUTE.join(["%r = f32[8,8] ", ""]),
    ],
)
def test_only_sums_to_every_device_are_sums_that_are_added(first):
    largest = """HloModule f

%largest (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %m = f32[] maximum(%a, %b)
}

ENTRY %main {
"""
    lines = [P, Q, "%w = f32[32,8] parameter(2)", first, "ROOT %z = f32[8,8] add(%r, %q)"]
    (c,) = read_collectives(parsed(largest + "\n".join(lines) + "\n}\n"), ("x",), (4,))
    assert c.added_in == ""


@pytest.mark.parametrize(("lines", "added_in"), ADDED.values(), ids=ADDED)
def test_sums_that_are_only_added(lines, added_in):
    (c,) = read(P, Q, f"%r = f32[8,8] {SUM}", *lines)
    assert c.added_in == added_in


# --- operands and causes --------------------------------------------------------------

W = 'metadata={op_name="w"}'
WEIGHT = f"%p = f32[8,8] parameter(0), {W}"
DOT, SINE = named("dot_general"), named("sin", 4)
ARGUMENT, OPERATION = ValueName("argument", "w"), ValueName("operation", "sin", "f.py:4")
SINED = f"%n = f32[8,8] sine(%p), {SINE}"
# Lines that lead from the argument to `%o`, and the operand of a gather of that.
OPERANDS = {
    "a copy": ([WEIGHT, "%o = f32[8,8] copy(%p)"], ARGUMENT),
    "an unnamed reshape": ([WEIGHT, "%o = f32[8,8] reshape(%p)"], ARGUMENT),
    "a reshape of the program": ([WEIGHT, f"%o = f32[8,8] reshape(%p), {SINE}"], OPERATION),
    "an operation": ([WEIGHT, SINED, "%o = f32[8,8] copy(%n)"], OPERATION),
    "an element of a tuple": (
        [WEIGHT, SINED, "%t = (f32[8,8], f32[8,8]) tuple(%n, %p)",
         "%o = f32[8,8] get-tuple-element(%t), index=1"], ARGUMENT),
    "the other element": (
        [WEIGHT, SINED, "%t = (f32[8,8], f32[8,8]) tuple(%n, %p)",
         "%o = f32[8,8] get-tuple-element(%t), index=0"], OPERATION),
    "a nested tuple": (
        [WEIGHT, SINED, "%t = (f32[8,8], f32[8,8]) tuple(%n, %p)",
         "%u = ((f32[8,8], f32[8,8]), f32[8,8]) tuple(%t, %n)",
         "%v = (f32[8,8], f32[8,8]) get-tuple-element(%u), index=0",
         "%o = f32[8,8] get-tuple-element(%v), index=1"], ARGUMENT),
    "an exchange": (
        [WEIGHT, f"%o = f32[8,8] all-to-all(%p), dimensions={{0}}, {ALL}"], ARGUMENT),
    "the first sum of two": (
        [WEIGHT, SINED, f"%t = (f32[8,8], f32[8,8]) all-reduce(%n, %p), to_apply=%add, {ALL}",
         "%o = f32[8,8] get-tuple-element(%t), index=0"], OPERATION),
    "the second": (
        [WEIGHT, SINED, f"%t = (f32[8,8], f32[8,8]) all-reduce(%n, %p), to_apply=%add, {ALL}",
         "%o = f32[8,8] get-tuple-element(%t), index=1"], ARGUMENT),
    "the second, which was started": (
        [WEIGHT, SINED,
         f"%s = (f32[8,8], f32[8,8]) all-reduce-start(%n, %p), to_apply=%add, {ALL}",
         "%t = (f32[8,8], f32[8,8]) all-reduce-done(%s)",
         "%o = f32[8,8] get-tuple-element(%t), index=1"], ARGUMENT),
    "an unnamed operation": ([WEIGHT, "%o = f32[8,8] sine(%p)"], UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "operand"), OPERANDS.values(), ids=OPERANDS)
def test_operands(lines, operand):
    gather = f"ROOT %g = f32[32,8] all-gather(%o), dimensions={{0}}, {ALL}, {DOT}"
    assert read(*lines, gather)[-1].operand == operand


CALLED = """HloModule f

%body (b: f32[8,8]) -> f32[32,8] {
  %b = f32[8,8] parameter(0)
  ROOT %g = f32[32,8] all-gather(%b), dimensions={0}, GROUPS, DOT
}

ENTRY %main {
  %p = f32[8,8] parameter(0), WEIGHT
  %q = f32[8,8] parameter(1), metadata={op_name="x"}
  ROOT %c = f32[32,8] call(%p), to_apply=%body
}
"""


def test_an_operand_comes_from_the_only_caller():
    text = CALLED.replace("GROUPS", ALL).replace("DOT", DOT).replace("WEIGHT", W)
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.operand, c.cause.code, c.cause.dimension) == (ARGUMENT, "gathered", 0)
    # With a second caller the operand may be either.
    twice = text.replace("ROOT %c", "%d = f32[32,8] call(%q), to_apply=%body\n  ROOT %c")
    (c,) = read_collectives(parsed(twice), ("x",), (4,))
    assert c.operand == UNKNOWN


@pytest.mark.parametrize(
    ("collective", "code"),
    [
        (f"f32[32,8] all-gather(%p), dimensions={{0}}, {ALL}", "gathered"),
        (f"f32[8,8] all-to-all(%p), dimensions={{0}}, {ALL}", "resplit"),
        (f"f32[8,8] {PERMUTE}", "sent"),
        (f"f32[8,8] {SUM}", "summed"),
    ],
)
def test_codes_of_moves(collective, code):
    (c,) = read(WEIGHT, f"ROOT %r = {collective}, {DOT}")
    assert (c.cause.code, c.cause.operand, c.source) == (code, ARGUMENT, "f.py:3")


@pytest.mark.parametrize("kind", ["psum", "psum_invariant", "pmax", "unreduced_psum"])
def test_collectives_of_the_program_itself(kind):
    (c,) = read(WEIGHT, f"ROOT %r = f32[8,8] {SUM}, {named(kind)}")
    assert c.cause.code == "written"
    generated = 'frontend_attributes={is_spmd_generated="true"}'
    (c,) = read(WEIGHT, f"ROOT %r = f32[8,8] {SUM}, {generated}, {named(kind)}")
    assert c.cause.code == "summed"


def test_a_cause_needs_the_name_of_its_own_kind():
    (c,) = read(WEIGHT, f"ROOT %r = f32[8,8] {SUM}, {named('all_gather')}")
    assert c.cause.code == "summed"


# --- several slices -------------------------------------------------------------------

FIRST, SECOND = [0, 1], [FIRST_ID, FIRST_ID + 1]
TWO = Slices(np.array([[0, 2], [1, 3]]), dict(zip([0, FIRST_ID, 1, FIRST_ID + 1], range(4))))  # noqa: B905


def reduce_over(groups):
    line = f"ROOT %r = f32[8,8] all-reduce(%p), to_apply=%add, replica_groups={groups}"
    return parsed(f"{P}\n{line}").entry.root


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # No groups are one group of all devices of a slice.
        ("{}", ((0, 2), (1, 3))),
        ("{{0,1}}", ((0, 2), (1, 3))),
        ("{{0},{1}}", ((0,), (2,), (1,), (3,))),
        # A slice has no third device.
        ("{{0,2}}", ()),
    ],
)
def test_groups_in_a_slice_are_spread_over_the_slices(groups, expected):
    reader = GroupReader(("x", "y"), (2, 2), TWO)
    assert reader.of(reduce_over(groups)).groups == expected
    # Without slices the groups are those of the mesh.
    alone = GroupReader(("x", "y"), (2, 2)).of(reduce_over("{}"))
    assert (alone.groups, alone.size, alone.axes) == (((0, 1, 2, 3),), 4, ("x", "y"))


def test_equal_pairs_and_groups_are_not_confused():
    reader = GroupReader(("x",), (2,))
    permute = "ROOT %r = f32[8,8] collective-permute(%p), source_target_pairs={{0,1}}"
    assert reader.of(parsed(f"{P}\n{permute}").entry.root).groups == ((0, 1),)
    assert reader.of(reduce_over("{{0},{1}}")).groups == ((0,), (1,))


def test_one_slice_alone():
    assert TWO.spread(((0, 1),), only=1) == ((1, 3),)
    assert TWO.spread(((1, 0),), only=0) == ((2, 0),)
    assert TWO.spread(((0,), (1,)), only=0) == ((0,), (2,))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("{0,1}x{0:1}", ((0, 1), (2, 3))),
        ("{0,1}x{1}", ((2, 3),)),
        (f"{{{{0,{FIRST_ID}}},{{1,{FIRST_ID + 1}}}}}", ((0, 1), (2, 3))),
        (f"{{{{0->{FIRST_ID}}},{{{FIRST_ID + 1}->1}}}}", ((0, 1), (3, 2))),
        ("{0,2}x{0:1}", ()),
        ("{0,1}x{0:2}", ()),
    ],
)
def test_groups_between_slices(target, expected):
    assert TWO.crossing(target) == expected


@pytest.mark.parametrize(
    ("partitions", "device_ids", "expected"),
    [
        (2, [*FIRST, *SECOND], [[0, 1], [2, 3]]),
        (2, [0, FIRST_ID, 1, FIRST_ID + 1], [[0, 2], [1, 3]]),
        # The module is that of all devices.
        (4, [*FIRST, *SECOND], None),
        # The ids show one slice only, or slices of different sizes.
        (2, [0, 1, 2, 3], None),
        (2, [0, 1, 2, FIRST_ID], None),
        # A module has no more devices than the mesh.
        (8, [*FIRST, *SECOND], None),
    ],
)
def test_slices_by_device_ids(partitions, device_ids, expected):
    slices = slices_of(SimpleNamespace(partitions=partitions), device_ids)
    assert (None if slices is None else slices.positions.tolist()) == expected
    if slices is not None:
        assert slices.size == 2
        assert [slices.position_of[i] for i in device_ids] == list(range(4))


ONE_SLICE = """HloModule f

%localizer.0 (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8] parameter(0)
  ROOT %r = f32[8,8] collective-permute(%a), source_target_pairs=FIRST
}

%localizer.1 (b: f32[8,8]) -> f32[8,8] {
  %b = f32[8,8] parameter(0)
  ROOT %s = f32[8,8] collective-permute(%b), source_target_pairs=SECOND
}

ENTRY %main {
  %p = f32[8,8] parameter(0)
  %i = s32[] parameter(1)
  ROOT %c = f32[8,8] conditional(%i, %p, %p), branch_computations={%localizer.0, %localizer.1}
}
"""


@pytest.mark.parametrize(
    ("first", "second", "groups"),
    [
        # The slices have the positions 0 and 2, and 1 and 3.
        ("{{0,1}}", "{{1,0}}", ((0, 2), (3, 1))),
        ("{{0,0}}", "{{1,0}}", ((0, 0), (3, 1))),
        # What is sent from a device to itself does not move.
        ("{{0,0},{1,1}}", "{{0,0}}", None),
    ],
)
def test_a_permutation_that_each_slice_does_in_its_own_way(monkeypatch, first, second, groups):
    monkeypatch.setattr(reading, "slices_of", lambda module, ids: TWO)
    text = ONE_SLICE.replace("FIRST", first).replace("SECOND", second)
    found = read_collectives(parsed(text), ("x", "y"), (2, 2))
    assert [c.groups for c in found] == ([] if groups is None else [groups])


def test_branches_of_the_program_are_not_those_of_slices(monkeypatch):
    monkeypatch.setattr(reading, "slices_of", lambda module, ids: TWO)
    text = ONE_SLICE.replace("localizer", "branch")
    text = text.replace("FIRST", "{{0,1}}").replace("SECOND", "{{1,0}}")
    found = read_collectives(parsed(text), ("x", "y"), (2, 2))
    assert [c.groups for c in found] == [((0, 2), (1, 3)), ((2, 0), (3, 1))]


HOST = '_xla_host_transfer_rendezvous="r1"'
BETWEEN = f"""HloModule f

ENTRY %main {{
  %p = f32[8,8] parameter(0), {W}
  %n = f32[8,8] sine(%p), {SINE}
  %k = token[] after-all()
  %s = (f32[8,8], u32[], token[]) send(%n, %k), channel_id=1, is_host_transfer=true,
    frontend_attributes={{{HOST}}}
  %e = token[] send-done(%s), channel_id=1, is_host_transfer=true
  %r = (f32[8,8], u32[], token[]) recv(%k), channel_id=2, is_host_transfer=true,
    frontend_attributes={{{HOST},_xla_megascale_transfer_type="TYPE",_xla_megascale_target="GROUPS"}}
  %d = (f32[8,8], token[]) recv-done(%r), channel_id=2, is_host_transfer=true
  %g = f32[8,8] get-tuple-element(%d), index=0
  ROOT %t = f32[8,8] tanh(%g), {DOT}
}}
"""
ACROSS = f"{{{{0,{FIRST_ID}}},{{1,{FIRST_ID + 1}}}}}"


@pytest.mark.parametrize(
    ("transfer", "target", "kind", "groups", "size"),
    [
        ("ALL_REDUCE", ACROSS, "all-reduce", ((0, 1), (2, 3)), 256),
        ("ALL_GATHER", ACROSS, "all-gather", ((0, 1), (2, 3)), 256),
        # Its bytes are those of the operand: of both members of a group.
        ("REDUCE_SCATTER", ACROSS, "reduce-scatter", ((0, 1), (2, 3)), 512),
        ("ONE_TO_ONE", f"{{{{0->{FIRST_ID}}}}}", "collective-permute", ((0, 1),), 256),
    ],
)
def test_a_step_between_slices(monkeypatch, transfer, target, kind, groups, size):
    monkeypatch.setattr(reading, "slices_of", lambda module, ids: TWO)
    text = BETWEEN.replace("TYPE", transfer).replace("GROUPS", target)
    (c,) = read_collectives(parsed(text), ("x", "y"), (2, 2))
    assert (c.kind, c.groups, c.bytes_per_device, c.shape) == (kind, groups, size, "f32[8,8]")
    assert (c.between_slices, c.is_async, c.operand) == (True, True, OPERATION)
    # A sum completes the operation before it, a gather is for the one after it.
    assert c.source == ("f.py:4" if kind in ("all-reduce", "reduce-scatter") else "f.py:3")
    assert c.mesh_axes == ("y",)


def test_steps_of_one_axis_over_slices_have_the_whole_axis(monkeypatch):
    monkeypatch.setattr(reading, "slices_of", lambda module, ids: TWO)
    add = "ROOT %t = f32[8,8] all-reduce(%p), to_apply=%add, replica_groups={{0,1}}"
    (inside,) = read_collectives(parsed(f"{P}\n{add}"), ("x",), (4,))
    assert (inside.groups, inside.mesh_axes, inside.parts) == (((0, 2), (1, 3)), ("x",), ())
    text = BETWEEN.replace("TYPE", "ALL_REDUCE").replace("GROUPS", ACROSS)
    (across,) = read_collectives(parsed(text), ("x",), (4,))
    assert (across.groups, across.mesh_axes, across.parts) == (((0, 1), (2, 3)), ("x",), ())


def test_a_step_between_slices_that_are_unknown():
    text = BETWEEN.replace("TYPE", "REDUCE_SCATTER").replace("GROUPS", ACROSS)
    (c,) = read_collectives(parsed(text), ("x", "y"), (2, 2))
    # Without groups all four devices count.
    assert (c.groups, c.mesh_axes, c.bytes_per_device) == ((), (), 4 * 256)


def test_a_permutation_as_a_send_and_a_recv_is_one_collective():
    pairs = '_xla_send_recv_source_target_pairs="{{0,1},{2,3}}"'
    text = BETWEEN.replace(", is_host_transfer=true", "").replace(HOST, pairs)
    (c,) = read_collectives(parsed(text), ("x", "y"), (2, 2))
    assert (c.kind, c.groups, c.mesh_axes) == ("collective-permute", ((0, 1), (2, 3)), ("y",))
    assert (c.bytes_per_device, c.shape, c.operand) == (256, "f32[8,8]", OPERATION)
    assert c.is_async


def test_other_transfers_of_hosts_are_no_collectives():
    text = BETWEEN.replace("TYPE", "OTHER").replace("GROUPS", ACROSS)
    assert read_collectives(parsed(text), ("x", "y"), (2, 2)) == ()


def test_a_step_between_slices_has_the_operand_of_its_own_send():
    text = BETWEEN.replace("TYPE", "ALL_REDUCE").replace("GROUPS", ACROSS)
    other = "  %o = (f32[8,8], u32[], token[]) send(%p, %k), channel_id=3, is_host_transfer=true"
    first = text.replace("  %s =", f'{other},\n    frontend_attributes={{{HOST[:-2]}2"}}\n  %s =')
    assert read_collectives(parsed(first), ("x", "y"), (2, 2))[0].operand == OPERATION
    # Without the name of a meeting no send belongs to it.
    alone = text.replace(f"{HOST},", "").replace(
        f"frontend_attributes={{{HOST}}}", "sharding={replicated}"
    )
    assert read_collectives(parsed(alone), ("x", "y"), (2, 2))[0].operand == UNKNOWN


def test_collectives_that_all_slices_do_alike_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(reading, "slices_of", lambda module, ids: TWO)
    permute = "%r = f32[8,8] collective-permute(%p), source_target_pairs={{0,1}}"
    add = "ROOT %t = f32[8,8] all-reduce(%r), to_apply=%add, replica_groups={{0,1}}"
    moved, total = read_collectives(parsed(f"{P}\n{permute}\n{add}"), ("x", "y"), (2, 2))
    assert (moved.groups, moved.mesh_axes) == (((0, 2), (1, 3)), ("x",))
    assert (total.groups, total.mesh_axes) == (((0, 2), (1, 3)), ("x",))
