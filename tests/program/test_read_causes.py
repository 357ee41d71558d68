"""Sources, operands and causes of collectives in short modules written by hand."""

from __future__ import annotations

import pytest

from shardviz.base.cause import UNKNOWN, ValueName
from shardviz.compiled.read_collectives import read_collectives
from tests.program.hlo import parsed

ALL = "replica_groups={{0,1,2,3}}"
SUM, GATHER = f"to_apply=%add, {ALL}", f"dimensions={{0}}, {ALL}"


def read(*lines):
    return read_collectives(parsed("\n".join(lines)), ("x",), (4,))


def named(op, line=3):
    return f'metadata={{op_name="jit(f)/{op}" source_file="/home/me/f.py" source_line={line}}}'


def argument(name):
    return ValueName("argument", name)


def operation(name, line):
    return ValueName("operation", name, f"f.py:{line}")


P = '%p = f32[8,8] parameter(0), metadata={op_name="w"}'
Q = '%q = f32[8,8] parameter(1), metadata={op_name="x"}'
ZERO = "%z = f32[] constant(0)"
ZEROS = "%b = f32[8,8] broadcast(%z), dimensions={}"
DOT, SINE, COSINE = named("dot_general"), named("sin", 4), named("cos", 5)
SINED = f"%n = f32[8,8] sine(%p), {SINE}"

# --- operands that are padded or joined -----------------------------------------------

MASK = "%m = pred[8,8] parameter(1)"
# Lines up to `%o`, which has the name of the gather, and the operand of the gather.
CHOSEN = {
    "padded with zeros": (
        [P, ZERO, ZEROS, MASK, f"%o = f32[8,8] select(%m, %p, %b), {DOT}"],
        argument("w"),
    ),
    "joined with zeros": (
        [P, ZERO, ZEROS, f"%o = f32[16,8] concatenate(%p, %b), dimensions={{0}}, {DOT}"],
        argument("w"),
    ),
    "joined with itself": (
        [P, f"%o = f32[16,8] concatenate(%p, %p), dimensions={{0}}, {DOT}"],
        argument("w"),
    ),
    "joined with another": (
        [P, Q, f"%o = f32[16,8] concatenate(%p, %q), dimensions={{0}}, {DOT}"],
        operation("dot_general", 3),
    ),
    "joined by another operation": (
        [P, ZERO, ZEROS, f"%o = f32[16,8] concatenate(%p, %b), dimensions={{0}}, {SINE}"],
        operation("sin", 4),
    ),
}


@pytest.mark.parametrize(("lines", "operand"), CHOSEN.values(), ids=CHOSEN)
def test_operands_that_are_padded_or_joined(lines, operand):
    rows = "16" if "[16,8]" in lines[-1] else "8"
    gather = f"ROOT %g = f32[{4 * int(rows)},8] all-gather(%o), {GATHER}, {DOT}"
    (c,) = read(*lines, gather)
    assert c.operand == operand
    # Padding and joining may change the dimension that is gathered.
    if operand.is_argument:
        assert (c.cause.code, c.cause.dimension) == ("gathered", None)


BY_DEVICE = [
    "%i = u32[] partition-id()",
    "%k = u32[] constant(2)",
    "%c = pred[] compare(%i, %k), direction=EQ",
    "%m = pred[8,8] broadcast(%c), dimensions={}",
]
MASKED = [MASK]
CHOOSE = f"%o = f32[8,8] select(%m, %p, %b), {SINE}"


@pytest.mark.parametrize(("mask", "code"), [(BY_DEVICE, "from one"), (MASKED, "summed")])
def test_a_sum_of_zeros_from_all_but_one_device(mask, code):
    (c,) = read(P, ZERO, ZEROS, *mask, CHOOSE, f"ROOT %r = f32[8,8] all-reduce(%o), {SUM}, {DOT}")
    expected = argument("w") if code == "from one" else operation("sin", 4)
    assert (c.cause.code, c.operand) == (code, expected)
    if code == "from one":
        assert c.cause.wanted_by == operation("dot_general", 3)


# --- sources --------------------------------------------------------------------------


def test_a_sum_without_a_name_completes_its_operand():
    user = f"ROOT %t = f32[8,8] tanh(%r), {COSINE}"
    (c,) = read(P, SINED, f"%r = f32[8,8] all-reduce(%n), {SUM}", user)
    assert (c.op, c.source) == ("jit(f)/sin", "f.py:4")


def test_a_gather_without_a_name_is_for_its_reader():
    user = f"ROOT %t = f32[32,8] cosine(%r), {COSINE}"
    (c,) = read(P, SINED, f"%r = f32[32,8] all-gather(%n), {GATHER}", user)
    assert (c.op, c.source) == ("jit(f)/cos", "f.py:5")
    # Without a reader it is for the operation that made its operand.
    (c,) = read(P, SINED, f"ROOT %r = f32[32,8] all-gather(%n), {GATHER}")
    assert (c.op, c.source) == ("jit(f)/sin", "f.py:4")


COMBINED = f"%r = (f32[8,8], f32[16,8]) all-reduce(%n, %o), {SUM}, {DOT}"
ENDS = [
    "%d = f32[8,8] get-tuple-element(%r), index=0",
    "%e = f32[16,8] get-tuple-element(%r), index=1",
]
LARGE = '%l = f32[16,8] parameter(1), metadata={op_name="x"}'


def test_members_of_a_sum_have_the_sources_of_their_operands():
    large = f"%o = f32[16,8] cosine(%l), {COSINE}"
    last = "ROOT %t = (f32[8,8], f32[16,8]) tuple(%d, %e)"
    (c,) = read(P, LARGE, SINED, large, COMBINED, *ENDS, last)
    found = [(m.bytes_per_device, m.source, m.operand) for m in c.members]
    assert found == [(512, "f.py:5", operation("cos", 5)), (256, "f.py:4", operation("sin", 4))]
    # The collective has the operation of its largest member.
    assert (c.source, c.op, c.operand) == ("f.py:5", "jit(f)/cos", operation("cos", 5))
    assert (c.cause, c.stack) == (c.members[0].cause, ("f.py:5",))


def test_members_of_a_sum_keep_the_names_of_their_results():
    unknown = ["%n = f32[8,8] iota(), iota_dimension=0", "%o = f32[16,8] iota(), iota_dimension=0"]
    ends = [f"{ENDS[0]}, {SINE}", f"{ENDS[1]}, {DOT}"]
    readers = [f"%s = f32[8,8] tanh(%d), {COSINE}", f"%t = f32[16,8] tanh(%e), {COSINE}"]
    last = "ROOT %u = (f32[8,8], f32[16,8]) tuple(%s, %t)"
    (c,) = read(*unknown, COMBINED, *ends, *readers, last)
    assert [(m.source, m.operand) for m in c.members] == [("f.py:3", UNKNOWN), ("f.py:4", UNKNOWN)]
    # A reader isn't what is summed, and equal names are that of all arrays together.
    for ends in (ENDS, [f"{end}, {DOT}" for end in ENDS]):
        (c,) = read(*unknown, COMBINED, *ends, *readers, last)
        assert [m.source for m in c.members] == ["", ""]


def test_members_of_a_gather_have_the_sources_of_their_readers():
    gather = f"%r = (f32[32,8], f32[64,8]) all-gather(%p, %l), {GATHER}, {DOT}"
    ends = [
        "%d = f32[32,8] get-tuple-element(%r), index=0",
        "%e = f32[64,8] get-tuple-element(%r), index=1",
        f"%u = f32[32,8] sine(%d), {SINE}",
        f"%v = f32[64,8] cosine(%e), {COSINE}",
        "ROOT %t = (f32[32,8], f32[64,8]) tuple(%u, %v)",
    ]
    (c,) = read(P, LARGE, gather, *ends)
    assert [(m.source, m.operand) for m in c.members] == [
        ("f.py:5", argument("x")),
        ("f.py:4", argument("w")),
    ]


# --- causes ---------------------------------------------------------------------------

OR = """HloModule f

%or (a: pred[], b: pred[]) -> pred[] {
  %a = pred[] parameter(0)
  %b = pred[] parameter(1)
  ROOT %s = pred[] or(%a, %b)
}

ENTRY %main {
  %p = pred[8] parameter(0)
  %z = pred[] constant(false)
  %d = pred[] reduce(%p, %z), dimensions={0}, to_apply=%or, NAME
  ROOT %r = pred[] all-reduce(%d), to_apply=%or, GROUPS, NAME
}
"""


@pytest.mark.parametrize(
    ("op", "vmapped"),
    [("vmap(f)/while/cond/reduce_or", True), ("while/cond/reduce_or", False)],
)
def test_a_reduction_that_decides_about_a_loop(op, vmapped):
    text = OR.replace("NAME", named(op)).replace("GROUPS", ALL)
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.cause.code, c.cause.reducer, c.cause.vmapped_loop) == ("reduced", "or", vmapped)


BACKWARD = named("shard_map/transpose(jvp())/psum_invariant", 4)
TANGENT = "%g = f32[8,8] tanh(%q)"
# The operation of the forward pass on the same line, and the argument of the gradient.
FORWARD = {
    "of one argument": ("sine(%p)", named("shard_map/jvp()/sin", 4), argument("w")),
    "of two": ("add(%p, %q)", named("shard_map/jvp()/add", 4), None),
    "on another line": ("sine(%p)", named("shard_map/jvp()/sin", 5), None),
    "of the backward pass": ("sine(%p)", named("shard_map/transpose(jvp())/sin", 4), None),
}


@pytest.mark.parametrize(("forward", "name", "of"), FORWARD.values(), ids=FORWARD)
def test_a_sum_that_grad_adds(forward, name, of):
    total = f"%r = f32[8,8] all-reduce(%g), {SUM}, {BACKWARD}"
    last = "ROOT %t = (f32[8,8], f32[8,8]) tuple(%f, %r)"
    (c,) = read(P, Q, f"%f = f32[8,8] {forward}, {name}", TANGENT, total, last)
    assert (c.cause.code, c.cause.gradient_of) == ("gradient", of)


def test_a_sum_has_the_shape_of_the_argument():
    small = '%s = f32[4,8] parameter(2), metadata={op_name="s"}'
    forward = f"%f = f32[4,8] sine(%s), {named('shard_map/jvp()/sin', 4)}"
    total = f"%r = f32[8,8] all-reduce(%g), {SUM}, {BACKWARD}"
    last = "ROOT %t = (f32[4,8], f32[8,8]) tuple(%f, %r)"
    (c,) = read(P, Q, small, forward, TANGENT, total, last)
    assert c.cause.gradient_of is None


def test_a_reduce_scatter_that_grad_adds_is_for_a_gather():
    gather = f"%f = f32[32,8] all-gather(%p), {GATHER}, {named('shard_map/jvp()/all_gather', 4)}"
    tangent = "%g = f32[32,8] tanh(%f)"
    name = named("shard_map/transpose(jvp())/reduce_scatter", 4)
    scatter = f"ROOT %r = f32[8,8] reduce-scatter(%g), dimensions={{0}}, {SUM}, {name}"
    c = read(P, gather, tangent, scatter)[-1]
    assert (c.cause.code, c.cause.gradient_of) == ("gradient", argument("w"))


def test_psum_is_for_the_end_of_a_shard_map():
    name = named("transpose(jvp())/shard_map/psum", 4)
    total, last = (
        f"%r = f32[8,8] all-reduce(%g), {SUM}, {name}",
        "ROOT %t = (f32[8,8], f32[8,8]) tuple(%f, %r)",
    )
    for forward, of in (("jvp()/shard_map", argument("w")), ("jvp()/shard_map/sin", None)):
        (c,) = read(P, Q, f"%f = f32[8,8] sine(%p), {named(forward, 4)}", TANGENT, total, last)
        assert c.cause.gradient_of == of


def test_who_needs_a_gathered_value():
    gather = f"%g = f32[32,8] all-gather(%p), {GATHER}, "
    call = f'ROOT %t = f32[32,8] custom-call(%g), custom_call_target="any", {DOT}'
    (c,) = read(P, gather + DOT, call)
    assert (c.cause.code, c.cause.wanted_by) == ("unsplittable", operation("dot_general", 3))
    (c,) = read(P, gather + DOT, call.replace("any", "xla_python_callback"))
    assert (c.cause.code, c.cause.wanted_by) == ("gathered", operation("dot_general", 3))
    # An elementwise operation has the sharding that its result needs.
    (c,) = read(P, gather + SINE, f"ROOT %t = f32[32,8] sine(%g), {SINE}")
    assert (c.cause.code, c.cause.wanted_by) == ("gathered", None)
    assert (c.cause.through, c.cause.dtype) == (operation("sin", 4), "f32")
    constraint = f"ROOT %c = f32[32,8] copy(%t), {named('sharding_constraint', 7)}"
    (c,) = read(P, gather + SINE, f"%t = f32[32,8] sine(%g), {SINE}", constraint)
    assert c.cause.wanted_by == operation("sharding_constraint", 7)
    assert c.cause.through == operation("sin", 4)


def test_the_value_of_a_constraint():
    constraint = f"%c = f32[8,8] copy(%n), {named('sharding_constraint', 7)}"
    gather = f"%g = f32[32,8] all-gather(%c), {GATHER}, {named('sharding_constraint', 7)}"
    (c,) = read(P, SINED, constraint, gather, f"ROOT %t = f32[32,8] cosine(%g), {COSINE}")
    assert c.operand == operation("sharding_constraint", 7)


def test_an_unknown_operand_is_an_unknown_cause():
    iota = "%p = f32[8,8] iota(), iota_dimension=0"
    (c,) = read(iota, f"ROOT %g = f32[32,8] all-gather(%p), {GATHER}")
    assert (c.cause.code, c.operand, c.cause.operand) == ("unknown", UNKNOWN, UNKNOWN)


# The instruction between the argument and a gather along dimension 1.
BETWEEN = {
    "nothing": (None, 1),
    "a copy": ("f32[8,8] copy(%p)", 1),
    "an exchange": (f"f32[8,8] all-to-all(%p), dimensions={{0}}, {ALL}", 1),
    # A reshape may have changed the dimensions.
    "a reshape": ("f32[8,8] reshape(%p)", None),
    "a transpose": ("f32[8,8] transpose(%p), dimensions={1,0}", None),
}


@pytest.mark.parametrize(("instruction", "dimension"), BETWEEN.values(), ids=BETWEEN)
def test_the_dimension_that_is_gathered(instruction, dimension):
    gather = f"ROOT %g = f32[8,32] all-gather(%p), dimensions={{1}}, {ALL}, {DOT}"
    lines = [P, gather]
    if instruction is not None:
        lines = [P, f"%o = {instruction}", gather.replace("(%p)", "(%o)")]
    c = read(*lines)[-1]
    assert (c.operand, c.cause.dimension) == (argument("w"), dimension)


@pytest.mark.parametrize(
    ("instruction", "before"),
    [
        (f"f32[8,8] all-to-all(%p), dimensions={{0}}, {ALL}", "all-to-all"),
        ("f32[8,8] collective-permute(%p), source_target_pairs={{0,1}}", "collective-permute"),
        (f"f32[8,8] all-reduce(%p), {SUM}", ""),
        ("f32[8,8] copy(%p)", ""),
    ],
)
def test_what_split_the_operand_before(instruction, before):
    gather = f"ROOT %g = f32[32,8] all-gather(%o), {GATHER}, {DOT}"
    assert read(P, f"%o = {instruction}", gather)[-1].cause.before == before


def test_members_of_a_gather_without_readers_have_the_sources_of_their_operands():
    gather = f"ROOT %r = (f32[32,8], f32[64,8]) all-gather(%n, %o), {GATHER}, {DOT}"
    large = f"%o = f32[16,8] cosine(%l), {COSINE}"
    (c,) = read(P, LARGE, SINED, large, gather)
    assert [m.source for m in c.members] == ["f.py:5", "f.py:4"]


def test_another_operand_of_the_reader():
    # The sum of both is needed elsewhere, so the exchanged value follows the other one.
    exchange = f"%e = f32[8,8] all-to-all(%p), dimensions={{0}}, {ALL}, {SINE}"
    add = f"%s = f32[8,8] add(%e, %q), {SINE}"
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    reader = f"ROOT %d = f32[8,8] dot(%s, %s), {dims}, {DOT}"
    (c,) = read(P, Q, exchange, add, reader)
    assert (c.cause.code, c.cause.beside) == ("resplit", argument("x"))
    # A gather has no such operand.
    gather = "%e = f32[8,8] all-gather(%l), dimensions={0}, " + f"{ALL}, {SINE}"
    small = '%l = f32[2,8] parameter(0), metadata={op_name="w"}'
    (c,) = read(small, Q, gather, add, reader)
    assert (c.cause.code, c.cause.beside) == ("gathered", None)
    # Nor has a constraint behind the reader.
    constraint = f"ROOT %c = f32[8,8] copy(%s), {named('sharding_constraint', 7)}"
    (c,) = read(P, Q, exchange, add, constraint)
    assert (c.cause.wanted_by, c.cause.beside) == (operation("sharding_constraint", 7), None)


def test_an_array_is_exchanged_to_be_joined():
    # TPU compilers write a concatenation as a maximum of padded arrays.
    name = named("concatenate", 4)
    exchange = f"all-to-all(%p), dimensions={{0}}, {ALL}, {name}"
    lines = [
        f"%e = f32[8,8] {exchange}",
        "%b = bf16[8,8] convert(%e)",
        f"%o = bf16[16,8] pad(%b, %z), padding=0_8x0_0, {name}",
        f"%m = bf16[16,8] maximum(%o, %o), {name}",
        f"%f = bf16[16,8] {exchange.replace('%p', '%m')}",
        f"ROOT %d = bf16[16,16] dot(%f, %f), lhs_contracting_dims={{1}}, "
        f"rhs_contracting_dims={{1}}, {DOT}",
    ]
    cause = read(P, ZERO, *lines)[0].cause
    assert (cause.code, cause.wanted_by, cause.through) == (
        "resplit",
        operation("concatenate", 4),
        None,
    )


def test_a_reader_without_a_name_is_not_named():
    gather = f"%g = f32[32,8] all-gather(%p), {GATHER}, {COSINE}"
    lines = [gather, "%b = f32[32,8] tanh(%g)", f"%c = f32[32,8] cosine(%b), {COSINE}"]
    (c,) = read(P, *lines, f"ROOT %s = f32[32,8] sine(%c), {SINE}")
    assert (c.cause.wanted_by, c.cause.through) == (None, operation("cos", 5))


# --- how far values and readers are followed ------------------------------------------


@pytest.mark.parametrize(("copies", "known"), [(1, True), (63, True), (64, False)])
def test_values_are_followed_over_64_instructions(copies, known):
    chain = [f"%c{n} = f32[8,8] copy(%{f'c{n - 1}' if n else 'p'})" for n in range(copies)]
    gather = f"ROOT %g = f32[32,8] all-gather(%c{copies - 1}), {GATHER}, {DOT}"
    assert read(P, *chain, gather)[-1].operand == (argument("w") if known else UNKNOWN)


@pytest.mark.parametrize(("unnamed", "source"), [(0, "f.py:5"), (7, "f.py:5"), (8, "")])
def test_the_reader_is_one_of_the_next_eight(unnamed, source):
    gather = f"%user0 = f32[32,8] all-gather(%p), {GATHER}"
    chain = [f"%user{n + 1} = f32[32,8] tanh(%user{n})" for n in range(unnamed)]
    last = f"ROOT %t = f32[32,8] cosine(%user{unnamed}), {COSINE}"
    assert read(P, gather, *chain, last)[-1].source == source


@pytest.mark.parametrize(("others", "source"), [(1, "f.py:5"), (2, "")])
def test_two_readers_of_a_value_are_followed(others, source):
    gather = f"%g = f32[32,8] all-gather(%p), {GATHER}"
    unnamed = [f"%user{n} = f32[32,8] tanh(%g)" for n in range(others)]
    named_one = f"%t = f32[32,8] cosine(%g), {COSINE}"
    names = ", ".join(f"%user{n}" for n in range(others))
    shapes = ", ".join(["f32[32,8]"] * (others + 1))
    last = f"ROOT %z = ({shapes}) tuple({names}, %t)"
    assert read(P, gather, *unnamed, named_one, last)[-1].source == source


# Lines up to `%m`, the condition of a select; whether it chooses a device.
CONDITIONS = {
    "a device": (BY_DEVICE, True),
    # Twelve instructions are read: broadcast, comparison, constant, eight copies, the device.
    "behind eight copies": (
        ["%i0 = u32[] partition-id()", *(f"%i{n + 1} = u32[] copy(%i{n})" for n in range(8)),
         BY_DEVICE[1], BY_DEVICE[2].replace("%i,", "%i8,"), BY_DEVICE[3]], True),
    "behind nine copies": (
        ["%i0 = u32[] partition-id()", *(f"%i{n + 1} = u32[] copy(%i{n})" for n in range(9)),
         BY_DEVICE[1], BY_DEVICE[2].replace("%i,", "%i9,"), BY_DEVICE[3]], False),
    "numbers of several devices": (
        [*BY_DEVICE[:2], "%v = u32[8,8] broadcast(%i), dimensions={}",
         "%w = u32[8,8] broadcast(%k), dimensions={}",
         "%m = pred[8,8] compare(%v, %w), direction=EQ"], False),
    "a device and an argument": (
        [BY_DEVICE[0], "%k = u32[] parameter(1)", *BY_DEVICE[2:]], False),
    "an argument": (
        ["%i = u32[] parameter(1)", *BY_DEVICE[1:]], False),
}  # fmt: skip


@pytest.mark.parametrize(("condition", "one"), CONDITIONS.values(), ids=CONDITIONS)
def test_a_condition_that_chooses_a_device(condition, one):
    total = f"ROOT %r = f32[8,8] all-reduce(%o), {SUM}, {DOT}"
    (c,) = read(P, ZERO, ZEROS, *condition, CHOOSE, total)
    assert c.cause.code == ("from one" if one else "summed")


@pytest.mark.parametrize(("joins", "known"), [(1, True), (2, True), (3, False)])
def test_values_that_are_joined_twice_are_still_followed(joins, known):
    lines, rows = [P], 8
    for n in range(joins):
        before, rows = (f"%o{n - 1}" if n else "%p"), 2 * rows
        lines.append(
            f"%o{n} = f32[{rows},8] concatenate({before}, {before}), dimensions={{0}}, {DOT}"
        )
    gather = f"ROOT %g = f32[{4 * rows},8] all-gather(%o{joins - 1}), {GATHER}, {DOT}"
    expected = argument("w") if known else operation("dot_general", 3)
    assert read(*lines, gather)[-1].operand == expected


# Operations of a scan's body, from the argument on; the operand of a gather of the last.
SLICED = {
    "a slice": (["dynamic_slice"], ValueName("slice", "w")),
    "a slice without its dimension": (["dynamic_slice", "squeeze"], ValueName("slice", "w")),
    "a slice of a slice of a slice": (
        ["dynamic_slice", "dynamic_slice", "squeeze"],
        operation("squeeze", 6),
    ),
    "another operation": (["dynamic_slice", "sin"], operation("sin", 5)),
    "a slice outside": (["../dynamic_slice"], operation("dynamic_slice", 4)),
}


@pytest.mark.parametrize(("names", "operand"), SLICED.values(), ids=SLICED)
def test_a_slice_that_an_iteration_reads(names, operand):
    lines, before = [P, "%i = s32[] parameter(1)"], "%p"
    for n, name in enumerate(names):
        op = name.removeprefix("../") if "../" in name else f"while/body/{name}"
        opcode = {"squeeze": f"reshape({before})", "sin": f"sine({before})"}.get(
            name, f"dynamic-slice({before}, %i, %i), dynamic_slice_sizes={{8,8}}"
        )
        lines.append(f"%cut{n} = f32[8,8] {opcode}, {named(op, 4 + n)}")
        before = f"%cut{n}"
    gather = f"ROOT %g = f32[32,8] all-gather({before}), {GATHER}, {DOT}"
    assert read(*lines, gather)[-1].operand == operand


# --- names and lines that are missing -------------------------------------------------

LINE_9 = 'metadata={op_name="NAME" source_file="/home/me/f.py" source_line=9}'
# The metadata of a gather and of a sum between `sin` on line 4 and `cos` on line 5; operation
# and line of the gather, and of the sum.
MISSING = {
    "nothing": (
        ", " + LINE_9.replace("NAME", "jit(f)/dot"), ("jit(f)/dot", "f.py:9"),
        ("jit(f)/dot", "f.py:9")),
    "a name of the program": (
        ", " + LINE_9.replace("NAME", "all"), ("jit(f)/cos", "f.py:9"), ("jit(f)/sin", "f.py:9")),
    "the line": (
        ', metadata={op_name="jit(f)/dot"}', ("jit(f)/dot", "f.py:5"), ("jit(f)/dot", "f.py:4")),
    "both": ("", ("jit(f)/cos", "f.py:5"), ("jit(f)/sin", "f.py:4")),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "gather", "total"), MISSING.values(), ids=MISSING)
def test_names_and_lines_come_from_the_nearest_operation(metadata, gather, total):
    reader = f"ROOT %t = f32[32,8] cosine(%r), {COSINE}"
    (c,) = read(P, SINED, f"%r = f32[32,8] all-gather(%n), {GATHER}{metadata}", reader)
    assert (c.op, c.source) == gather
    reader = f"ROOT %t = f32[8,8] cosine(%r), {COSINE}"
    (c,) = read(P, SINED, f"%r = f32[8,8] all-reduce(%n), {SUM}{metadata}", reader)
    assert (c.op, c.source) == total


def test_a_gather_of_a_constraint_is_for_its_reader():
    constraint = f"%c = f32[8,8] copy(%n), {named('sharding_constraint', 7)}"
    gather = f"%g = f32[32,8] all-gather(%c), {GATHER}, {named('sharding_constraint', 7)}"
    (c,) = read(P, SINED, constraint, gather, f"ROOT %t = f32[32,8] cosine(%g), {COSINE}")
    assert (c.cause.code, c.cause.operation) == ("gathered", operation("cos", 5))
    assert c.cause.operand == operation("sharding_constraint", 7)


def test_members_of_a_sum_that_grad_adds_are_for_arguments_of_their_shape():
    small = '%s = f32[4,8] parameter(2), metadata={op_name="s"}'
    name = named("shard_map/jvp()/sin", 4)
    forward = [f"%f = f32[8,8] sine(%p), {name}", f"%e = f32[4,8] sine(%s), {name}"]
    total = f"%r = (f32[8,8], f32[4,8]) all-reduce(%g, %h), {SUM}, {BACKWARD}"
    parts = [
        "%d0 = f32[8,8] get-tuple-element(%r), index=0",
        "%d1 = f32[4,8] get-tuple-element(%r), index=1",
        f"%user0 = f32[8,8] copy(%d0), {BACKWARD}",
        f"%user1 = f32[4,8] copy(%d1), {BACKWARD}",
        "ROOT %t = (f32[8,8], f32[4,8], f32[8,8], f32[4,8]) tuple(%f, %e, %user0, %user1)",
    ]
    (c,) = read(P, Q, small, *forward, TANGENT, "%h = f32[4,8] tanh(%e)", total, *parts)
    assert [(m.bytes_per_device, m.cause.code, m.cause.gradient_of) for m in c.members] == [
        (256, "gradient", argument("w")),
        (128, "gradient", argument("s")),
    ]


# --- calls, branches and loops --------------------------------------------------------

AROUND = """HloModule f

%inner (b: f32[8,8]) -> f32[8,8] {
  %b = f32[8,8] parameter(0)
  ROOT %r = f32[8,8] all-reduce(%b), to_apply=%add, GROUPS, INNER
}

ENTRY %main {
  %p = f32[8,8] parameter(0), metadata={op_name="w"}
  ROOT %c = f32[8,8] call(%p), to_apply=%inner, OUTER
}
"""


@pytest.mark.parametrize(
    ("inner", "outer", "code"),
    [
        # Names in the body of a shard_map lack the names of the calls around it.
        ("psum", "jit(f)/shard_map", "written"),
        ("psum", "jit(f)/transpose(jvp())/shard_map", "gradient"),
        ("jit(f)/psum", "jit(f)/transpose(jvp())/shard_map", "written"),
        ("jit(f)/transpose(jvp())/psum", "jit(f)/shard_map", "gradient"),
    ],
)
def test_a_sum_in_a_call_has_the_names_around_it(inner, outer, code):
    text = AROUND.replace("GROUPS", ALL)
    for word, op in (("INNER", inner), ("OUTER", outer)):
        text = text.replace(word, LINE_9.replace("NAME", op))
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.cause.code, c.operand) == (code, argument("w"))


def test_a_sum_of_the_program_without_calls_around_it():
    (c,) = read(P, f"ROOT %r = f32[8,8] all-reduce(%p), {SUM}, {LINE_9.replace('NAME', 'psum')}")
    assert c.cause.code == "written"


BRANCHES = """HloModule f

%zero (a: f32[8,8]) -> f32[32,8] {
  %a = f32[8,8] parameter(0)
  ROOT %g = f32[32,8] all-gather(%a), DIMENSIONS, DOT
}

%one (b: f32[8,8]) -> f32[32,8] {
  %b = f32[8,8] parameter(0)
  ROOT %h = f32[32,8] all-gather(%b), DIMENSIONS, DOT
}

ENTRY %main {
  %p = f32[8,8] parameter(0), metadata={op_name="w"}
  %q = f32[8,8] parameter(1), metadata={op_name="x"}
  %i = s32[] parameter(2)
  ROOT %c = f32[32,8] conditional(%i, %p, %q), branch_computations={%zero, %one}
}
"""


def test_each_branch_has_its_own_operand():
    text = BRANCHES.replace("DIMENSIONS", GATHER).replace("DOT", DOT)
    found = read_collectives(parsed(text), ("x",), (4,))
    assert [c.operand for c in found] == [argument("w"), argument("x")]


LOOP = """HloModule f

%body (s: (s32[], f32[8,8], f32[8,8])) -> (s32[], f32[8,8], f32[8,8]) {
  %s = (s32[], f32[8,8], f32[8,8]) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %k = f32[8,8] get-tuple-element(%s), index=1
  %v = f32[8,8] get-tuple-element(%s), index=2
  %m = f32[8,8] sine(%v)
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  ROOT %t = (s32[], f32[8,8], f32[8,8]) tuple(%next, %k, %m)
}

%condition (u: (s32[], f32[8,8], f32[8,8])) -> pred[] {
  %u = (s32[], f32[8,8], f32[8,8]) parameter(0)
  %i = s32[] get-tuple-element(%u), index=0
  %five = s32[] constant(5)
  ROOT %l = pred[] compare(%i, %five), direction=LT
}

ENTRY %main {
  %p = f32[8,8] parameter(0), metadata={op_name="w"}
  %q = f32[8,8] parameter(1), metadata={op_name="x"}
  %zero = s32[] constant(0)
  %a = (s32[], f32[8,8], f32[8,8]) tuple(%zero, %p, %q)
  %w = (s32[], f32[8,8], f32[8,8]) while(%a), condition=%condition, body=%body, WHILE
  %e = f32[8,8] get-tuple-element(%w), index=NUMBER
  ROOT %g = f32[32,8] all-gather(%e), DIMENSIONS, DOT
}
"""


@pytest.mark.parametrize(
    # A value that every iteration keeps is the argument itself.
    ("number", "operand"),
    [(1, argument("w")), (2, operation("while", 6))],
)
def test_the_result_of_a_loop(number, operand):
    text = LOOP.replace("NUMBER", str(number)).replace("WHILE", named("while", 6))
    text = text.replace("DIMENSIONS", GATHER).replace("DOT", DOT)
    (c,) = read_collectives(parsed(text), ("x",), (4,))
    assert (c.operand, c.cause.dimension) == (operand, 0 if number == 1 else None)


def test_an_array_that_iterations_slice_is_not_carried():
    name = named("while/body/dynamic_slice", 5)
    cut = f"%m = f32[8,8] dynamic-slice(%k, %n, %n), dynamic_slice_sizes={{8,8}}, {name}"
    text = LOOP.replace("%m = f32[8,8] sine(%v)", cut).replace("WHILE", named("while", 6))
    lines = text.splitlines()
    start = lines.index("ENTRY %main {")
    gather = f"  %h = f32[8,8] all-gather(%p), dimensions={{0}}, {ALL}"
    lines[start + 4 : start + 5] = [gather, lines[start + 4].replace("%p,", "%h,")]
    text = "\n".join(lines).replace("NUMBER", "2").replace("DIMENSIONS", GATHER)
    first = read_collectives(parsed(text.replace("DOT", DOT)), ("x",), (4,))[0]
    assert (first.operand, first.cause.wanted_by) == (argument("w"), operation("dynamic_slice", 5))
