"""Exercises on programs, which are planned or compiled (lessons 3 to 6, and one of
lesson 8).

Their words are in `programs.md`. Where plans may differ from XLA's partitioner, it
decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.api.programs import compile as compile_program
from shardviz.api.programs import plan as plan_program
from shardviz.api.programs import program, run
from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, joined, plural, seconds_text, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.parse import limited
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use
from shardviz.core.wording import exercises as words
from shardviz.core.wording.exercises import moves, says
from shardviz.exercises.answers import (
    MOST,
    check_mesh,
    compare,
    opened,
    read_layout,
    read_names,
    read_number,
    read_table,
)
from shardviz.exercises.registry import Setup, Wrong, exercise
from shardviz.gallery import programs, puzzles

GIB, MIB = 1 << 30, 1 << 20


def _array(name: str, shape: tuple[int, ...], spec: str | None = None) -> ArraySpec:
    if spec is None:
        return ArraySpec(name, shape)
    return ArraySpec(name, shape, spec=Spec.parse(spec))


def read_pair(
    answer: Any, arrays: tuple[ArraySpec, ArraySpec], mesh: MeshSpec
) -> list[Layout]:
    """The layouts of two arrays: two specs, a dict of them, `A[I_U, J] B[J, K_V]`, or a
    program.

    Raises:
        Wrong: for anything else.
        ShardvizError: for what is no spec, and where it cannot be laid out.
    """
    answer = opened(answer)
    names = [array.name for array in arrays]
    if isinstance(answer, Program):
        two = [answer, answer]
    elif isinstance(answer, str):
        two = _bracketed(answer, names, mesh)
    elif isinstance(answer, Mapping):
        if set(limited(answer, MOST, "The specs", ShardvizError)) != set(names):
            raise Wrong(
                f"Name a spec for each of {joined(names)}; got {shown(answer)}."
            )
        two = [answer[name] for name in names]
    else:
        two = limited(answer, MOST, "Two specs", ShardvizError)
        if len(two) != 2:
            raise Wrong(f"This takes two specs, of {joined(names)}; got {len(two)}.")
    return [read_layout(a, array, mesh) for a, array in zip(two, arrays, strict=True)]


_ARRAY = re.compile(r"(\w{1,20})\s*\[([^\[\]]{0,200})\]")
_DIMENSION = re.compile(r"\s*[A-Za-z]+\s*(?:_\s*\{?\s*([A-Za-z]{1,20})\s*\}?)?\s*")


def _bracketed(text: str, names: list[str], mesh: MeshSpec) -> list[Spec]:
    """The specs of `A[I_U, J] B[J, K_UV]`: mesh axes of one letter after an underscore."""
    written = dict(_ARRAY.findall(text[:1000]))
    if set(written) != set(names):
        raise Wrong(
            f"Write both arrays with their dimensions, as {names[0]}[I, J_U]"
            f" {names[1]}[…]; got {shown(text)}."
        )
    specs = []
    for name in names:
        entries = []
        for part in written[name].split(","):
            dim = _DIMENSION.fullmatch(part)
            if dim is None:
                dims = shown(written[name])
                raise Wrong(f"Cannot read the dimensions of {name}: {dims}.")
            # `K_UV` is split over U and V: axes have one letter here.
            entries.append(tuple(dim[1] or ()))
            for axis in entries[-1]:
                if axis not in mesh.shape:
                    known = joined(mesh.axis_names)
                    raise Wrong(
                        f"{name} is split over {axis}, and the mesh axes are {known}."
                    )
        specs.append(Spec.of(*entries))
    return specs


@lru_cache(maxsize=64)  # many answers are alike
def planned(program: Program) -> Plan:
    """The plan of a program.

    Raises:
        Wrong: where there is none, with the reason.
        ShardvizError: where jax is not installed.
    """
    for problem in program.problems:
        raise Wrong(problem)
    found = plan_program(program)
    if found.error is not None:
        raise Wrong(words.does_not_compile(found.error.message))
    return found


@lru_cache(maxsize=64)
def partitioned(program: Program) -> tuple[Collective, ...]:
    """The collectives that XLA's partitioner inserts, for as many simulated CPUs as the
    mesh has.

    Raises:
        Wrong: where the program does not compile, with the reason.
        ShardvizError: where jax is not installed.
    """
    for problem in program.problems:
        raise Wrong(problem)
    report = compile_program(program, f"cpu:{program.mesh.size}")
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    return report.partitioned or ()


def sent_bytes(collectives: Iterable[Collective]) -> int:
    """What each device sends in some collectives, in bytes."""
    return sum(c.sent_in_all for c in collectives)


def _kinds(collectives: Iterable[Collective]) -> list[str]:
    return [c.kind for c in collectives]


def read_topology(answer: Any) -> Topology:
    """A topology: text, our own, or a target that has one.

    Raises:
        ShardvizError: for anything else.
    """
    if isinstance(answer, Target):
        answer = answer.topology or answer.name
    if isinstance(answer, Topology):
        return answer
    return Topology.parse(answer)


# Lesson 3: the cases of a sharded matmul, A[I, J] B[J, K].

_XY = make_mesh(U=4, V=2)
_A, _B = _array("A", (512, 1024)), _array("B", (1024, 2048))


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


def _product(one: Layout | ArraySpec, two: Layout | ArraySpec) -> Program:
    """The program of A times B, split as they are."""
    return _program(
        _matmul,
        _array("A", one.shape, str(one.spec)),
        _array("B", two.shape, str(two.spec)),
    )


@lru_cache(maxsize=256)
def _program(function: Any, *arrays: ArraySpec, out: Spec | None = None) -> Program:
    return Program(function, arrays, _XY, out_specs=out)


@exercise(
    "matmul/nothing-moves",
    lambda: Setup(mesh=_XY, A=_A, B=_B),
    lambda g: "A[I_U, J] B[J, K_V]",
)
def _nothingmoves(g: Setup, answer: Any) -> str:
    a, b = read_pair(answer, (g.A, g.B), g.mesh)
    for name, one in (("A", a), ("B", b)):
        if one.num_blocks == 1:
            raise Wrong(f"Every device holds all of {name}; split both.")
    plan = planned(_product(a, b))
    # Of the operation: its result could still be resharded afterwards.
    spec = plan.op("dot_general").spec
    if plan.collectives:
        raise Wrong(words.pair_needs(a, b, plan.collectives))
    blocks = lay_out((a.shape[0], b.shape[1]), spec, g.mesh).num_blocks
    if blocks < g.mesh.size:
        raise Wrong(
            f"The product is {spec}: {plural(blocks, 'shard')} on {g.mesh.size} devices."
        )
    return words.product(spec)


@exercise(
    "matmul/one-all-reduce",
    lambda: Setup(mesh=_XY, A=_A, B=_B),
    lambda g: "A[I, J_UV] B[J_UV, K]",
)
def _one_all_reduce(g: Setup, answer: Any) -> str:
    a, b = read_pair(answer, (g.A, g.B), g.mesh)
    for name, one in (("A", a), ("B", b)):
        if one.replicas > 1:
            raise Wrong(
                f"{name}: {says(one)} It takes a shard of its own on each device."
            )
    plan = planned(_product(a, b))
    if _kinds(plan.collectives) != ["all-reduce"]:
        raise Wrong(words.pair_needs(a, b, plan.collectives))
    return words.pair_needs(a, b, plan.collectives)


@exercise(
    "matmul/move-the-small-one",
    lambda: Setup(
        mesh=_XY,
        A=_array("A", (8, 8192)),
        B=_array("B", (8192, 8192), "U, V"),
        most=MIB,
    ),
    lambda g: "P(None, 'U')",
)
def _move_the_small_one(g: Setup, answer: Any) -> str:
    a = read_layout(answer, g.A, g.mesh)
    if a.num_blocks == 1:
        raise Wrong(f"{says(a)} It has to be split.")
    some = partitioned(_product(a, g.B))
    if sent_bytes(some) > g.most:
        raise Wrong(
            f"{words.array_sends('A', a, sent_bytes(some), some)} That is more than"
            f" {bytes_text(g.most)}."
        )
    return words.array_sends("A", a, sent_bytes(some), some)


@exercise(
    "matmul/sent-bytes",
    lambda: Setup(
        mesh=_XY, A=_array("A", (512, 1024), "V, U"), B=_array("B", (1024, 2048), "U")
    ),
    lambda g: bytes_text(sent_bytes(planned(_product(g.A, g.B)).collectives)),
)
def _sent_bytes(g: Setup, answer: Any) -> str:
    value = read_number(answer, "bytes")
    (one,) = planned(_product(g.A, g.B)).collectives
    right, held = sent_bytes([one]), one.bytes_per_device
    slips = (
        held,  # what the collective gives, not what is sent
        right / 2,  # once around the ring
        2 * held,  # with a device's own part
        2 * right,  # for a product that is not split along I
        right * g.mesh.size,  # what all devices send
    )
    compare("matmul/sent-bytes", value, right, bytes_text(int(value)), slips, 1e-9)
    return words.sends(right, one)


# Lesson 4: collectives.


@exercise(
    "collectives/one-all-to-all",
    lambda: Setup(mesh=_XY, x=_A.renamed("x")),
    lambda g: ("P('U', None)", "P(None, 'U')"),
)
def _one_all_to_all(g: Setup, answer: Any) -> str:
    before, after = read_pair(
        answer, (g.x.renamed("before"), g.x.renamed("after")), g.mesh
    )
    some = planned(_reshard(g, before.spec, after.spec)).collectives
    if _kinds(some) != ["all-to-all"]:
        raise Wrong(words.reshards(before.spec, after.spec, some))
    return words.reshards(before.spec, after.spec, some)


def _same(x: Any) -> Any:
    return x


def _reshard(g: Setup, before: Spec | None, after: Spec | None) -> Program:
    return _program(_same, g.x.replace(spec=before), out=after)


@exercise(
    "collectives/all-reduce-sends",
    lambda: Setup(gradient=_array("gradient", (4096, 4096)), devices=8),
    lambda g: bytes_text(_reduced(g).sent_bytes or 0),
)
def _all_reduce_sends(g: Setup, answer: Any) -> str:
    value, size, n = read_number(answer, "bytes"), g.gradient.bytes, g.devices
    right = _reduced(g).sent_bytes or 0
    slips = (
        size,  # the gradient itself
        right / 2,  # a reduce-scatter alone
        2 * size,  # with a device's own part
        (n - 1) * size,  # everything to all others
        size / n,  # one part, sent once
        right * n,  # what all devices send
    )
    compare(
        "collectives/all-reduce-sends",
        value,
        right,
        bytes_text(int(value)),
        slips,
        1e-9,
    )
    return words.sends(right, _reduced(g))


def _reduced(g: Setup) -> Collective:
    return Collective("all-reduce", ("data",), g.gradient.bytes, group_size=g.devices)


@exercise(
    "collectives/ring-seconds",
    lambda: Setup(
        topology=Topology.parse("tpu:v5e:16x16"),
        mesh=make_mesh(y=16, x=16),
        axis="x",
        bytes=GIB,
    ),
    lambda g: seconds_text(_ring_seconds(g)),
)
def _ring_time(g: Setup, answer: Any) -> str:
    value, right = read_number(answer, "seconds"), _ring_seconds(g)
    chip, rate = g.topology.chip, g.topology.chip.link_bandwidth
    slips = (
        2 * right,  # one way around only
        right / 2,  # over the links of both axes
        GIB / chip.hbm_bandwidth,  # through memory
        8 * right,  # bits for bytes
        g.bytes / 16 / rate,  # one step of the ring
    )
    compare("collectives/ring-seconds", value, right, seconds_text(value), slips, 0.08)
    return words.ring(right, g.bytes, rate)


def _ring_seconds(g: Setup) -> float:
    gather = Collective("all-gather", (g.axis,), g.bytes)
    use = collective_link_use(gather, g.mesh, g.topology)
    assert use is not None  # the axis is one of the mesh
    return max(seconds or 0.0 for seconds in use.times(g.bytes).values())


@exercise("collectives/all-rings", lambda: Setup(chips=192), lambda g: "tpu:v5p:4x4x12")
def _all_rings(g: Setup, answer: Any) -> str:
    found = read_topology(answer)
    if found.chip.platform != "tpu":
        raise Wrong(f"{found} has no torus: {found.words()}")
    if found.slices > 1:
        raise Wrong(
            f"{found} is {found.slices} slices; no ring goes from one to another."
        )
    if found.chips != g.chips:
        raise Wrong(f"{found} has {plural(found.chips, 'chip')}; it takes {g.chips}.")
    if not all(found.wraps):
        raise Wrong(f"{found}: {found.words()}")
    return f"{found}: {found.words()}"


# Lesson 5: kinds of parallelism. The mesh has other axis names than the lessons.

_OUTER = make_mesh(outer=4, inner=2)


def _known(name: str, registry: Any = programs) -> Setup:
    made = registry.get(name).replace(mesh=_OUTER, rules=None)
    return Setup(mesh=_OUTER, program=made, arrays=made.arrays)


def _under(g: Setup, table: Rules) -> Program:
    changed = g.program.replace(rules=table)
    for problem in changed.problems:
        raise Wrong(problem)
    return changed


def _layout(changed: Program, at: int) -> Layout:
    found = changed.requests[at].layout
    assert found is not None  # `_under` refuses what cannot be laid out
    return found


def _refuse_split(changed: Program, name: str, least: int, most: int) -> None:
    at = [array.name for array in changed.arrays].index(name)
    found = _layout(changed, at).num_blocks
    if not least <= found <= most:
        wanted = str(least)
        if least < most:
            wanted += " or more"
        raise Wrong(
            f"{name} is in {plural(found, 'shard')} on {_OUTER}; it takes {wanted}."
        )


@exercise(
    "parallelism/data",
    lambda: _known("MLP, gradient"),
    lambda g: "batch -> (outer, inner)",
)
def _data_parallel(g: Setup, answer: Any) -> str:
    changed = _under(g, read_table(answer, g.mesh))
    _refuse_split(changed, "w_in", 1, 1)
    _refuse_split(changed, "w_out", 1, 1)
    _refuse_split(changed, "x", 8, 8)
    spec = _layout(changed, 2).spec
    if not spec or not spec.dims[0]:
        raise Wrong(f"x becomes {spec}, which does not split the batch.")
    some = partitioned(changed)
    # One for each weight, or one for both together.
    if set(_kinds(some)) != {"all-reduce"}:
        raise Wrong(f"{words.inserts(some)}, where all-reduces would do.")
    return f"{words.inserts(some)}."


@exercise(
    "parallelism/tensor",
    lambda: _known("MLP"),
    lambda g: "batch -> outer\nmlp -> inner",
)
def _tensor_parallel(g: Setup, answer: Any) -> str:
    changed = _under(g, read_table(answer, g.mesh))
    for name in ("w_in", "w_out", "x"):
        _refuse_split(changed, name, 2, 8)
    some = partitioned(changed)
    if _kinds(some) != ["all-reduce"]:
        raise Wrong(f"{words.inserts(some)}; one all-reduce is enough.")
    return f"{words.inserts(some)}."


@exercise(
    "parallelism/fsdp",
    lambda: _known("fsdp, gradient", puzzles),
    lambda g: "batch -> (outer, inner)\nembed -> (outer, inner)",
)
def _fully_sharded(g: Setup, answer: Any) -> str:
    changed = _under(g, read_table(answer, g.mesh))
    for name in ("w_in", "w_out", "x"):
        _refuse_split(changed, name, 8, 8)
    some = partitioned(changed)
    gathered, names = [], set()
    for c in some:
        # Of activations it may gather what it likes: those are no arguments.
        if c.operand is None or not c.operand.is_argument:
            continue
        if c.kind == "all-gather":
            gathered.append(c)
            names.add(c.operand.name)
    if not names or names - {"w_in", "w_out"}:
        raise Wrong(f"{words.inserts(some)}; fsdp gathers weights only.")
    return f"{words.inserts(gathered)}."


@exercise(
    "parallelism/experts",
    lambda: _known("mixture of experts"),
    lambda g: "expert -> (outer, inner)",
)
def _expert_parallel(g: Setup, answer: Any) -> str:
    changed = _under(g, read_table(answer, g.mesh))
    for at, name in ((1, "w_in"), (2, "w_out")):
        found = _layout(changed, at)
        if found.shard_shape != (2, *found.shape[1:]):
            raise Wrong(f"{name}: {says(found)} Two complete experts are [2, …].")
    some = partitioned(changed)
    expert = _layout(changed, 1).bytes_per_device
    # Tokens are small: what is larger than two experts gathers weights.
    large = [c for c in some if c.kind == "all-gather" and c.bytes_per_device > expert]
    if large:
        raise Wrong(f"The experts do not stay where they are: {moves(large)}.")
    return words.experts_stay(some)


# Lesson 6: what the compiler decides.


def _transformer() -> Setup:
    table = Rules.parse("batch -> outer\nheads -> inner\nmlp -> inner")
    made = programs.get("transformer block").replace(mesh=_OUTER, rules=table)
    return Setup(
        program=made,
        line="mixed = jnp.einsum('bhqk,bkhd->bqhd', weights, v)",
        axis="inner",
    )


def _mixed_origin(g: Setup) -> str:
    # XLA's name has the formula of the einsum, which may make a transpose as well.
    ops = [op for op in planned(g.program).ops if op.opcode == "dot_general"]
    (mixed,) = [op for op in ops if "bhqk,bkhd->" in op.op]
    return mixed.origins[g.axis].name


@exercise("compiler/origin", _transformer, _mixed_origin)
def _origin(g: Setup, answer: Any) -> str:
    known = [a.name for a in g.program.arrays]
    origin = opened(answer)
    # As plans and reports write it.
    if isinstance(origin, str):
        origin = origin.removeprefix("argument ")
    names, right = read_names(origin, known, "The arguments"), _mixed_origin(g)
    if names != {right}:
        if len(names) != 1:
            raise Wrong(
                f"You name {plural(len(names), 'argument')}; the axis came from one."
            )
        (name,) = names
        rows = {r.path: r for r in g.program.requests}
        if g.axis not in rows[name].spec.axes:
            raise Wrong(
                f"{name} is {rows[name].spec}: it has no axis {g.axis} to give."
            )
        raise Wrong(
            f"{name} has the axis {g.axis}, but it does not reach this value first."
        )
    return words.came_from(right)


@exercise(
    "compiler/rows",
    lambda: Setup(mesh=make_mesh(data=4, model=2), columns=16, between=(1001, 1040)),
    lambda g: 1024,
)
def _rows(g: Setup, answer: Any) -> str:
    shape = getattr(answer, "shape", answer)
    if isinstance(shape, (list, tuple)) and len(shape) == 2 and shape[1] == g.columns:
        answer = shape[0]
    count = read_number(answer, "rows")
    low, high = g.between
    if count != int(count) or not low <= count <= high:
        raise Wrong(
            f"It takes a number of rows from {low} to {high}; got {shown(answer)}."
        )
    rows = int(count)
    from_gallery = puzzles.get("a constraint that replicates")
    x = _array("x", (rows, g.columns), "None, None")
    (result,) = _results(from_gallery.replace(arrays=(x,)))
    if result.spec.axes != ("data",):
        left = rows % 4
        raise Wrong(
            f"{rows:,} rows leave {left} over, and the result is {result.spec}."
        )
    return words.result_is(result.spec, rows)


def _results(made: Program) -> list[PlannedOp]:
    return [op for op in planned(made).ops if op.kind == "result"]


def _pinned() -> Setup:
    a, b = _array("A", (512, 1024), "U"), _array("B", (1024, 2048), "None, V")
    return Setup(mesh=_XY, A=a, B=b, spec=Spec.parse("V, U"))


def _constrained(a: Any, b: Any) -> Any:
    import jax

    return jax.lax.with_sharding_constraint(a @ b, jax.sharding.PartitionSpec("V", "U"))


@exercise("compiler/pin-the-result", _pinned, lambda g: _constrained)
def _pin_the_result(g: Setup, answer: Any) -> str:
    made = opened(answer)
    if not isinstance(made, Program):
        if not callable(made):
            raise Wrong(f"This takes a function of A and B; got {shown(made)}.")
        made = program(made, g.A, g.B, mesh=g.mesh)
    check_mesh(made.mesh, g.mesh)
    if list(map(_split_shape, made.arrays)) != [_split_shape(g.A), _split_shape(g.B)]:
        raise Wrong("The arguments have to stay as they are: A and B as given.")
    result = _results(made)
    shapes = [list(o.shape) for o in result]
    if shapes != [[512, 2048]]:
        raise Wrong(
            f"Your function returns {joined(shapes) or 'nothing'}; A @ B is [512, 2048]."
        )
    if not result[0].spec.equivalent(g.spec):
        raise Wrong(f"The result is {result[0].spec}, not {g.spec}.")
    _refuse_other_values(g, made)
    return words.result_is(result[0].spec)


def _split_shape(array: ArraySpec) -> tuple[tuple[int, ...], str]:
    # The names of the arguments are up to whoever writes the function.
    return array.shape, str(array.spec)


def _refuse_other_values(g: Setup, made: Program) -> None:
    """Refuses a function that computes anything but A @ B."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(g.A.shape).astype("float32")
    b = rng.standard_normal(g.B.shape).astype("float32")
    # On one device no sharding can change the values.
    report = run(made.replace(mesh=make_mesh(U=1, V=1)), a, b)
    if report.error is not None:
        raise Wrong(
            f"It does not run on one device: {shown(report.error.message, 200)}"
        )
    off = np.linalg.norm(np.asarray(report.outputs) - a @ b) / np.linalg.norm(a @ b)
    if not off < 0.01:  # an accelerator may multiply in bfloat16
        raise Wrong("The result has the right shape and sharding, but it is not A @ B.")


@exercise(
    "compiler/no-rematerialisation",
    lambda: Setup(
        mesh=_XY, x=_A.renamed("x"), before=Spec.parse("U"), after=Spec.parse("None, V")
    ),
    lambda g: "P('U', 'V')",
)
def _no_rematerialisation(g: Setup, answer: Any) -> str:
    between = read_layout(answer, g.x, g.mesh).spec
    some = partitioned(_reshard(g, g.before, between))
    some += partitioned(_reshard(g, between, g.after))
    direct = partitioned(_reshard(g, g.before, g.after))
    if any(c.rematerialises for c in some):
        raise Wrong(
            f"By way of {between} there is a full rematerialisation: {moves(some)}."
        )
    does = words.by_way_of(between, sent_bytes(some), sent_bytes(direct))
    if sent_bytes(some) >= sent_bytes(direct):
        raise Wrong(f"{does} That is no less.")
    return does


# Lesson 8: one of its exercises is about a program.


def _mistaken() -> Setup:
    specs = {"w_in": "None, inner", "w_out": "None, inner", "x": "outer"}
    made = programs.get("MLP")
    arrays = []
    for array in made.arrays:
        # Specs of their own, so that no rule has to be found.
        spec = Spec.parse(specs[array.name])
        arrays.append(array.replace(logical=None, spec=spec))
    made = made.replace(mesh=_OUTER, rules=None, arrays=tuple(arrays))
    return Setup(mesh=_OUTER, program=made, array="w_out")


@exercise("debugging/unasked-gather", _mistaken, lambda g: "P('inner', None)")
def _unasked_gather(g: Setup, answer: Any) -> str:
    w_in, w_out, x = g.program.arrays
    made = opened(answer)
    if isinstance(made, Program):
        check_mesh(made.mesh, g.mesh)
        others = {r.path: str(r.spec) for r in made.requests if r.path != w_out.name}
        if others != {a.name: str(a.spec) for a in (w_in, x)}:
            raise Wrong(f"Only {w_out.name} may change; the others are {others}.")
    found = read_layout(made, w_out, g.mesh)
    if found.num_blocks == 1:
        raise Wrong(f"{says(found)} It has to stay split.")
    some = planned(
        g.program.replace(arrays=(w_in, w_out.replace(spec=found.spec), x))
    ).collectives
    if _kinds(some) != ["all-reduce"]:
        raise Wrong(words.array_needs("w_out", found, some))
    return words.array_needs("w_out", found, some)
