"""Exercises on programs, which are planned or compiled (lessons 3 to 6, and one of
lesson 8).

Their words are in `programs.md`. Where plans may differ from XLA's partitioner, it
decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from shardviz.api.programs import compile as compile_program
from shardviz.api.programs import plan as plan_program
from shardviz.api.programs import program, run
from shardviz.core.errors import ShardvizError
from shardviz.core.format import joined, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.parse import limited
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use
from shardviz.core.wording import exercises as words
from shardviz.exercises.answers import (
    MOST,
    check_mesh,
    opened,
    read_layout,
    read_number,
    read_table,
)
from shardviz.exercises.layouts import GIB, MIB, named, number
from shardviz.exercises.registry import Found, Setup, Wrong, exercise
from shardviz.gallery import programs, puzzles


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
        two: Any = [answer, answer]
    elif isinstance(answer, str):
        two = _bracketed(answer, names, mesh)
    elif isinstance(answer, Mapping):
        two = [answer.get(name) for name in names]
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
            # `K_UV` is split over U and V: axes have one letter here.
            axes = tuple(dim[1] or ()) if dim else ("",)
            if not mesh.shape.keys() >= set(axes):
                raise Wrong(
                    f"Cannot read {shown(part)}, a dimension of {name}; the mesh axes"
                    f" are {joined(mesh.axis_names)}."
                )
            entries.append(axes)
        specs.append(Spec.of(*entries))
    return specs


@lru_cache(maxsize=64)  # many answers are alike
def planned(made: Program) -> Plan:
    """The plan of a program.

    Raises:
        Wrong: where there is none, with the reason.
        ShardvizError: where jax is not installed.
    """
    for problem in made.problems:
        raise Wrong(problem)
    found = plan_program(made)
    if found.error is not None:
        raise Wrong(words.does_not_compile(found.error.message))
    return found


@lru_cache(maxsize=64)
def partitioned(made: Program) -> tuple[Collective, ...]:
    """The collectives that XLA's partitioner inserts, for as many simulated CPUs as the
    mesh has.

    Raises:
        Wrong: where the program does not compile, with the reason.
        ShardvizError: where jax is not installed.
    """
    for problem in made.problems:
        raise Wrong(problem)
    report = compile_program(made, f"cpu:{made.mesh.size}")
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    return report.partitioned or ()


def sent_bytes(collectives: Iterable[Collective]) -> int:
    """What each device sends in some collectives, in bytes."""
    return sum(c.sent_in_all for c in collectives)


def _costs(head: str, some: Iterable[Collective], **facts: Any) -> Found:
    """Found: the collectives that an answer takes, their kinds, and what is sent."""
    some = tuple(some)
    kinds, sent = [c.kind for c in some], sent_bytes(some)
    said = words.costs(head, some, sent)
    return Found(said, collectives=some, kinds=kinds, sent=sent, **facts)


# Lesson 3: the cases of a sharded matmul.

_XY = make_mesh(U=4, V=2)
_A, _B = _array("A", (512, 1024)), _array("B", (1024, 2048))


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


def _product(one: Layout | ArraySpec, two: Layout | ArraySpec) -> Program:
    """The program of A times B, split as they are."""
    a, b = _array("A", one.shape, str(one.spec)), _array("B", two.shape, str(two.spec))
    return _program(_matmul, a, b)


# One function and equal arrays are one program, whose plan is kept.
@lru_cache(maxsize=256)
def _program(function: Any, *arrays: ArraySpec, out: Spec | None = None) -> Program:
    return Program(function, arrays, _XY, out_specs=out)


def _pair(g: Setup, answer: Any) -> Found:
    """Found: the plan of a product of two arrays that are split so."""
    a, b = read_pair(answer, (g.A, g.B), g.mesh)
    plan = planned(_product(a, b))
    # Of the operation: its result could still be resharded afterwards.
    out = lay_out((a.shape[0], b.shape[1]), plan.op("dot_general").spec, g.mesh)
    return _costs(f"A as {a.spec}, B as {b.spec}", plan.collectives, a=a, b=b, out=out)


exercise(
    "matmul/nothing-moves",
    lambda: Setup(mesh=_XY, A=_A, B=_B),
    _pair,
    (
        lambda g, f: min(f.a.num_blocks, f.b.num_blocks) > 1,
        lambda g, f: not f.collectives,
        lambda g, f: f.out.num_blocks == g.mesh.size,
    ),
    "A[I_U, J] B[J, K_V]",
)

exercise(
    "matmul/one-all-reduce",
    lambda: Setup(mesh=_XY, A=_A, B=_B),
    _pair,
    (
        lambda g, f: f.a.replicas == f.b.replicas == 1,
        lambda g, f: f.kinds == ["all-reduce"],
    ),
    "A[I, J_UV] B[J_UV, K]",
)


def _times_b(g: Setup, answer: Any) -> Found:
    a = read_layout(answer, g.A, g.mesh)
    return _costs(f"A as {a.spec}", partitioned(_product(a, g.B)), a=a)


exercise(
    "matmul/move-the-small-one",
    lambda: Setup(
        mesh=_XY,
        A=_array("A", (8, 8192)),
        B=_array("B", (8192, 8192), "U, V"),
        most=MIB,
    ),
    _times_b,
    (lambda g, f: f.a.num_blocks > 1, lambda g, f: f.sent <= g.most),
    "P(None, 'U')",
)


def _summed(g: Setup) -> Collective:
    (one,) = planned(_product(g.A, g.B)).collectives
    return one


number(
    "matmul/sent-bytes",
    lambda: Setup(
        mesh=_XY, A=_array("A", (512, 1024), "V, U"), B=_array("B", (1024, 2048), "U")
    ),
    "bytes",
    lambda g: _summed(g).sent_in_all,
    lambda g, right: (
        _summed(g).bytes_per_device,  # what the collective gives, not what is sent
        right / 2,  # once around the ring
        2 * _summed(g).bytes_per_device,  # with a device's own part
        2 * right,  # for a product that is not split along I
        right * g.mesh.size,  # what all devices send
    ),
)


# Lesson 4: collectives.


def _same(x: Any) -> Any:
    return x


def _reshard(g: Setup, before: Spec | None, after: Spec | None) -> Program:
    return _program(_same, g.x.replace(spec=before), out=after)


def _before_and_after(g: Setup, answer: Any) -> Found:
    arrays = g.x.renamed("before"), g.x.renamed("after")
    before, after = read_pair(answer, arrays, g.mesh)
    plan = planned(_reshard(g, before.spec, after.spec))
    return _costs(f"{before.spec} → {after.spec}", plan.collectives)


exercise(
    "collectives/one-all-to-all",
    lambda: Setup(mesh=_XY, x=_A.renamed("x")),
    _before_and_after,
    (lambda g, f: f.kinds == ["all-to-all"],),
    ("P('U', None)", "P(None, 'U')"),
)


def _reduced(g: Setup) -> float:
    size, devices = g.gradient.bytes, g.devices
    return Collective("all-reduce", ("data",), size, group_size=devices).sent_bytes or 0


number(
    "collectives/all-reduce-sends",
    lambda: Setup(gradient=_array("gradient", (4096, 4096)), devices=8),
    "bytes",
    _reduced,
    lambda g, right: (
        g.gradient.bytes,  # the gradient itself
        right / 2,  # a reduce-scatter alone
        2 * g.gradient.bytes,  # with a device's own part
        (g.devices - 1) * g.gradient.bytes,  # everything to all others
        g.gradient.bytes / g.devices,  # one part, sent once
        right * g.devices,  # what all devices send
    ),
)


def _ring_seconds(g: Setup) -> float:
    gather = Collective("all-gather", (g.axis,), g.bytes)
    use = collective_link_use(gather, g.mesh, g.topology)
    assert use is not None  # the axis is one of the mesh
    return max(seconds or 0.0 for seconds in use.times(g.bytes).values())


number(
    "collectives/ring-seconds",
    lambda: Setup(
        topology=Topology.parse("tpu:v5e:16x16"),
        mesh=make_mesh(y=16, x=16),
        axis="x",
        bytes=GIB,
    ),
    "seconds",
    _ring_seconds,
    lambda g, right: (
        2 * right,  # one way around only
        right / 2,  # over the links of both axes
        GIB / g.topology.chip.hbm_bandwidth,  # through memory
        8 * right,  # bits for bytes
        g.bytes / 16 / g.topology.chip.link_bandwidth,  # one step of the ring
    ),
    0.08,
)


def _slice(g: Setup, answer: Any) -> Found:
    if isinstance(answer, Target):
        answer = answer.topology or answer.name
    if not isinstance(answer, Topology):
        answer = Topology.parse(answer)
    return Found(f"{answer}: {answer.words()}", topology=answer)


exercise(
    "collectives/all-rings",
    lambda: Setup(chips=192),
    _slice,
    (
        lambda g, f: f.topology.chip.platform == "tpu" and f.topology.slices == 1,
        lambda g, f: f.topology.chips == g.chips,
        lambda g, f: all(f.topology.wraps),
    ),
    "tpu:v5p:4x4x12",
)


# Lesson 5: kinds of parallelism. The mesh has other axis names than the lessons.

_OUTER = make_mesh(outer=4, inner=2)


def _known(name: str, registry: Any = programs) -> Setup:
    made = registry.get(name).replace(mesh=_OUTER, rules=None)
    return Setup(mesh=_OUTER, program=made, arrays=made.arrays)


class _Ruled:
    """A program under the rules of an answer: layouts by name, and collectives."""

    def __init__(self, made: Program):
        for problem in made.problems:
            raise Wrong(problem)
        self.program, self.layouts = made, {r.path: r.layout for r in made.requests}

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return partitioned(self.program)

    @property
    def kinds(self) -> list[str]:
        return [c.kind for c in self.collectives]

    @property
    def gathered(self) -> set[str]:
        """The arguments that are gathered; of other values XLA may do as it likes."""
        names = set()
        for c in self.collectives:
            if c.kind == "all-gather" and c.operand and c.operand.is_argument:
                names.add(c.operand.name)
        return names

    def __str__(self) -> str:
        # Compiling takes a second, and nobody needs it where the shards are wrong.
        if "collectives" in vars(self):
            return words.inserts(self.collectives)
        return words.shards(self.layouts)


def _under(g: Setup, answer: Any) -> _Ruled:
    return _Ruled(g.program.replace(rules=read_table(answer, g.mesh)))


def _in_shards(most: int, *names: str, least: int = 0) -> Callable[[Setup, Any], bool]:
    """Whether each of these arrays is in so many shards, or `least` to `most`."""

    def met(g: Setup, found: _Ruled) -> bool:
        counts = [found.layouts[name].num_blocks for name in names]
        return min(counts) >= (least or most) and max(counts) <= most

    return met


exercise(
    "parallelism/data",
    lambda: _known("MLP, gradient"),
    _under,
    (
        _in_shards(1, "w_in", "w_out"),
        lambda g, f: f.layouts["x"].block_counts == (8, 1),
        # One for each weight, or one for both together.
        lambda g, f: set(f.kinds) == {"all-reduce"},
    ),
    "batch -> (outer, inner)",
)

exercise(
    "parallelism/tensor",
    lambda: _known("MLP"),
    _under,
    (
        _in_shards(8, "w_in", "w_out", "x", least=2),
        lambda g, f: f.kinds == ["all-reduce"],
    ),
    "batch -> outer\nmlp -> inner",
)

exercise(
    "parallelism/fsdp",
    lambda: _known("fsdp, gradient", puzzles),
    _under,
    (
        _in_shards(8, "w_in", "w_out", "x"),
        lambda g, f: f.gathered and f.gathered <= {"w_in", "w_out"},
    ),
    "batch -> (outer, inner)\nembed -> (outer, inner)",
)


def _experts_stay(g: Setup, found: _Ruled) -> bool:
    # Tokens are small: what is larger than two experts gathers weights.
    most = found.layouts["w_in"].bytes_per_device
    gathers = [c for c in found.collectives if c.kind == "all-gather"]
    return all(c.bytes_per_device <= most for c in gathers)


exercise(
    "parallelism/experts",
    lambda: _known("mixture of experts"),
    _under,
    (
        lambda g, f: f.layouts["w_in"].block_counts == (8, 1, 1),
        lambda g, f: f.layouts["w_out"].block_counts == (8, 1, 1),
        _experts_stay,
    ),
    "expert -> (outer, inner)",
)


# Lesson 6: what the compiler decides.


def _transformer() -> Setup:
    table = Rules.parse("batch -> outer\nheads -> inner\nmlp -> inner")
    made = programs.get("transformer block").replace(mesh=_OUTER, rules=table)
    line = "mixed = jnp.einsum('bhqk,bkhd->bqhd', weights, v)"
    return Setup(program=made, line=line, axis="inner")


def _mixed_origin(g: Setup) -> list[str]:
    # XLA's name has the formula of the einsum, which may make a transpose as well.
    ops = [op for op in planned(g.program).ops if op.opcode == "dot_general"]
    (mixed,) = [op for op in ops if "bhqk,bkhd->" in op.op]
    return [mixed.origins[g.axis].name]


named(
    "compiler/origin",
    _transformer,
    "The arguments",
    lambda g: [array.name for array in g.program.arrays],
    _mixed_origin,
)


def _rows(g: Setup, answer: Any) -> Found:
    shape = getattr(answer, "shape", answer)
    if isinstance(shape, (list, tuple)) and len(shape) == 2 and shape[1] == g.columns:
        answer = shape[0]
    count, (low, high) = read_number(answer, "rows"), g.between
    if count % 1 or not low <= count <= high:
        raise Wrong(f"The rows are {low} to {high}; got {shown(answer)}.")
    x = _array("x", (int(count), g.columns), "None, None")
    made = puzzles.get("a constraint that replicates").replace(arrays=(x,))
    spec = planned(made).op("output").spec
    return Found(words.result_is(spec, int(count)), spec=spec)


exercise(
    "compiler/rows",
    lambda: Setup(mesh=make_mesh(data=4, model=2), columns=16, between=(1001, 1040)),
    _rows,
    (lambda g, f: f.spec.axes == ("data",),),
    1024,
)


def _constrained(a: Any, b: Any) -> Any:
    import jax

    return jax.lax.with_sharding_constraint(a @ b, jax.sharding.PartitionSpec("V", "U"))


def _function(g: Setup, answer: Any) -> Found:
    made = opened(answer)
    if not isinstance(made, Program):
        if not callable(made):
            raise Wrong(f"This takes a function of A and B; got {shown(made)}.")
        made = program(made, g.A, g.B, mesh=g.mesh)
    check_mesh(made.mesh, g.mesh)
    # The names of the arguments are up to whoever writes the function.
    given = [(array.shape, str(array.spec)) for array in made.arrays]
    if given != [(array.shape, str(array.spec)) for array in (g.A, g.B)]:
        raise Wrong("The arguments have to stay as they are: A and B as given.")
    results = [op for op in planned(made).ops if op.kind == "result"]
    shapes = [list(op.shape) for op in results]
    if shapes != [[512, 2048]]:
        raise Wrong(
            f"Your function returns {joined(shapes) or 'nothing'}; A @ B is [512, 2048]."
        )
    return Found(words.result_is(results[0].spec), spec=results[0].spec, program=made)


def _is_product(g: Setup, found: Found) -> bool:
    """Whether a function computes A @ B."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(g.A.shape).astype("float32")
    b = rng.standard_normal(g.B.shape).astype("float32")
    # On one device no sharding can change the values.
    report = run(found.program.replace(mesh=make_mesh(U=1, V=1)), a, b)
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    off = np.linalg.norm(np.asarray(report.outputs) - a @ b) / np.linalg.norm(a @ b)
    return bool(off < 0.01)  # an accelerator may multiply in bfloat16


exercise(
    "compiler/pin-the-result",
    lambda: Setup(
        mesh=_XY,
        A=_array("A", (512, 1024), "U"),
        B=_array("B", (1024, 2048), "None, V"),
        spec=Spec.parse("V, U"),
    ),
    _function,
    (lambda g, f: f.spec.equivalent(g.spec), _is_product),
    lambda g: _constrained,
)


def _by_way_of(g: Setup, answer: Any) -> Found:
    between = read_layout(answer, g.x, g.mesh).spec
    first = partitioned(_reshard(g, g.before, between))
    second = partitioned(_reshard(g, between, g.after))
    direct = sent_bytes(partitioned(_reshard(g, g.before, g.after)))
    return _costs(f"{g.before} → {between} → {g.after}", first + second, direct=direct)


exercise(
    "compiler/no-rematerialisation",
    lambda: Setup(
        mesh=_XY, x=_A.renamed("x"), before=Spec.parse("U"), after=Spec.parse("None, V")
    ),
    _by_way_of,
    (
        lambda g, f: not any(c.rematerialises for c in f.collectives),
        lambda g, f: f.sent < f.direct,
    ),
    "P('U', 'V')",
)


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


def _one_spec(g: Setup, answer: Any) -> Found:
    w_in, w_out, x = g.program.arrays
    made = opened(answer)
    if isinstance(made, Program):
        others = {r.path: str(r.spec) for r in made.requests if r.path != w_out.name}
        if others != {a.name: str(a.spec) for a in (w_in, x)}:
            raise Wrong(f"Only {w_out.name} may change; the others are {others}.")
    found = read_layout(made, w_out, g.mesh)
    changed = g.program.replace(arrays=(w_in, w_out.replace(spec=found.spec), x))
    some = planned(changed).collectives
    return _costs(f"w_out as {found.spec}", some, layout=found)


exercise(
    "debugging/unasked-gather",
    _mistaken,
    _one_spec,
    (lambda g, f: f.layout.num_blocks > 1, lambda g, f: f.kinds == ["all-reduce"]),
    "P('inner', None)",
)
