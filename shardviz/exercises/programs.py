"""Answers on programs, which are planned or compiled (lessons 2, 3, 5 and 6, and one
of lesson 8).

The exercises are in `programs.md`. Where plans may differ from XLA's partitioner, it
decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from shardviz.api.programs import compile as compile_program
from shardviz.api.programs import plan as plan_program
from shardviz.api.programs import program, run
from shardviz.core.errors import ShardvizError
from shardviz.core.format import joined, shown
from shardviz.core.hardware.interconnect import collective_link_use
from shardviz.core.hardware.targets import Target
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.collective import Collective
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.parse import limited
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.wording import exercises as words
from shardviz.exercises.answers import (
    MOST,
    check_mesh,
    opened,
    read_layout,
    read_number,
    read_table,
)
from shardviz.exercises.layouts import names_kind, number_kind
from shardviz.exercises.registry import MAKERS, Found, Setup, Wrong, kind
from shardviz.gallery import programs, puzzles


def read_pair(
    answer: Any, arrays: tuple[ArraySpec, ArraySpec], mesh: MeshSpec
) -> list[Layout]:
    """The layouts of two arrays: two specs, a dict of them, a program, or text such as
    `A[I_U, J] · B[J, K_V]`, after which there may be an arrow and the result.

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
    """The specs of `A[I_U, J] B[J, K_UV]`, or of one array as in `x[I_U, J] → x[I, J_U]`.

    A result after an arrow is not one of them; see `read_result`.
    """
    before, _, after = text[:1000].replace("->", "→").partition("→")
    written = _ARRAY.findall(before)
    if len(written) == 1:
        # One array, whose spec changes: it may have its own name on both sides.
        written += _ARRAY.findall(after)
        if len(written) == 2 and written[0][0] == written[1][0]:
            written = [(names[0], written[0][1]), (names[1], written[1][1])]
    if sorted(name for name, _ in written) != sorted(names):
        raise Wrong(
            f"Write both arrays with their dimensions, as {names[0]}[I, J_U]"
            f" {names[1]}[…]; got {shown(text)}."
        )
    specs = {name: _indexed(name, dims, mesh) for name, dims in written}
    return [specs[name] for name in names]


def _indexed(name: str, dims: str, mesh: MeshSpec) -> Spec:
    """The spec of an array of dimensions such as `I_U, J`: axes have one letter here."""
    entries = []
    for part in dims.split(","):
        dim = _DIMENSION.fullmatch(part)
        # `K_UV` is split over U and V.
        axes = tuple(dim[1] or ()) if dim else ("",)
        if not mesh.shape.keys() >= set(axes):
            raise Wrong(
                f"Cannot read {shown(part)}, a dimension of {name}; the mesh axes"
                f" are {joined(mesh.axis_names)}."
            )
        entries.append(axes)
    return Spec.of(*entries)


def read_result(answer: Any, mesh: MeshSpec) -> Spec | None:
    """The spec of C in `A[I_U, J] · B[J, K] → C[I_U, K]`; None where nothing is said of it.

    Raises:
        Wrong: where it cannot be read.
    """
    if not isinstance(answer, str):
        return None
    _, arrow, after = answer[:1000].replace("->", "→").partition("→")
    if not arrow:
        return None
    found = _ARRAY.findall(after)
    if len(found) != 1:
        raise Wrong(
            f"After the arrow there is one result, as C[I, K]; got {shown(after)}."
        )
    name, dims = found[0]
    return _indexed(name, dims, mesh)


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
    """Found: the collectives that an answer takes, and what each device sends in them."""
    some = tuple(some)
    sent = sent_bytes(some)
    facts |= {"collectives": _kinds(some), "sent": sent}
    return Found(words.costs(head, some, sent), facts)


def _kinds(some: Iterable[Collective]) -> str:
    return ", ".join(c.kind for c in some) or "none"


# Lesson 3: the cases of a sharded matmul.


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


def _product(g: Setup, one: Layout | ArraySpec, two: Layout | ArraySpec) -> Program:
    """The program of A times B, split as they are."""
    a = ArraySpec("A", one.shape, spec=one.spec)
    return _program(_matmul, g.mesh, a, ArraySpec("B", two.shape, spec=two.spec))


# One function and equal arrays are one program, whose plan is kept.
@lru_cache(maxsize=256)
def _program(
    function: Any, mesh: MeshSpec, *arrays: ArraySpec, out: Spec | None = None
) -> Program:
    return Program(function, arrays, mesh, out_specs=out)


@kind("factors")
def _factors(g: Setup, answer: Any, of: str) -> Found:
    a, b = read_pair(answer, (g.A, g.B), g.mesh)
    plan = planned(_product(g, a, b))
    # Of the operation: its result could still be resharded afterwards.
    spec = plan.op("dot_general").spec
    out = lay_out((a.shape[0], b.shape[1]), spec, g.mesh)
    said = read_result(answer, g.mesh)
    if said is not None and not said.equivalent(spec):
        raise Wrong(words.another_result(spec, said))
    return _costs(
        f"A as {a.spec}, B as {b.spec}",
        plan.collectives,
        shards=min(a.num_blocks, b.num_blocks),
        replicas=max(a.replicas, b.replicas),
        results=out.num_blocks,
    )


@kind("factor")
def _factor(g: Setup, answer: Any, of: str) -> Found:
    a = read_layout(answer, g.A, g.mesh)
    some = partitioned(_product(g, a, g.B))
    return _costs(f"A as {a.spec}", some, shards=a.num_blocks)


number_kind(
    "bytes sent",
    "bytes",
    lambda g: sent_bytes(planned(_product(g, g.A, g.B)).collectives),
)


# Lesson 2: collectives.


def _same(x: Any) -> Any:
    return x


def _reshard(g: Setup, before: Spec | None, after: Spec | None) -> Program:
    return _program(_same, g.mesh, g.x.replace(spec=before), out=after)


@kind("reshard", lambda g: ("P('U', None)", "P(None, 'U')"))
def _before_and_after(g: Setup, answer: Any, of: str) -> Found:
    arrays = g.x.renamed("before"), g.x.renamed("after")
    before, after = read_pair(answer, arrays, g.mesh)
    plan = planned(_reshard(g, before.spec, after.spec))
    return _costs(f"{before.spec} → {after.spec}", plan.collectives)


def _all_reduced(g: Setup) -> float:
    size, devices = g.gradient.bytes, g.devices
    return Collective("all-reduce", ("data",), size, group_size=devices).sent_bytes or 0


def _ring_seconds(g: Setup) -> float:
    gather = Collective("all-gather", (g.axis,), g.bytes)
    use = collective_link_use(gather, g.mesh, g.topology)
    assert use is not None  # the axis is one of the mesh
    return max(seconds or 0.0 for seconds in use.times(g.bytes).values())


number_kind("all-reduce bytes", "bytes", _all_reduced)
number_kind("ring seconds", "seconds", _ring_seconds, 0.08)


@kind("topology")
def _slice(g: Setup, answer: Any, of: str) -> Found:
    if isinstance(answer, Target):
        answer = answer.topology or answer.name
    if not isinstance(answer, Topology):
        answer = Topology.parse(answer)
    facts = {
        "platform": answer.chip.platform,
        "slices": answer.slices,
        "found chips": answer.chips,
        "rings": all(answer.wraps),
    }
    return Found(f"{answer}: {answer.words()}", facts)


# Lesson 5: kinds of parallelism. The mesh has other axis names than the lessons.


def _known(g: Setup, name: str) -> Program:
    return programs.known_program(name).replace(mesh=g.mesh, rules=None)


MAKERS["program"] = _known
MAKERS["arrays"] = lambda g, words: g.program.arrays


@kind("program rules")
def _under(g: Setup, answer: Any, of: str) -> Found:
    made = g.program.replace(rules=read_table(answer, g.mesh))
    for problem in made.problems:
        raise Wrong(problem)
    layouts = {}
    for row in made.requests:
        assert row.layout is not None  # there are no problems
        layouts[row.path] = row.layout
    weights = layouts["w_in"], layouts["w_out"]
    counts = [layout.num_blocks for layout in (*weights, layouts["x"])]

    compiled: list[tuple[Collective, ...]] = []

    def seen_in(count: Callable[[Iterable[Collective]], Any]) -> Any:
        compiled[:] = [partitioned(made)]
        return count(compiled[0])

    def said() -> str:
        # Compiling takes a second, and nobody needs it where the shards are wrong.
        if compiled:
            return words.inserts(compiled[0])
        return words.shards(layouts)

    facts: dict[str, Any] = {
        "shards": min(counts),
        "bytes of w_in": weights[0].bytes_per_device,
        "weights": ["w_in", "w_out"],
    }
    for name, layout in layouts.items():
        facts[name] = list(layout.block_counts)
    for name, count in _COUNTED.items():
        facts[name] = partial(seen_in, count)
    return Found(said, facts)


def _gathered(some: Iterable[Collective]) -> list[str]:
    """The arguments that are gathered; of other values XLA may do as it likes."""
    names = []
    for c in some:
        if c.kind == "all-gather" and c.operand and c.operand.is_argument:
            names.append(c.operand.name)
    return names


def _largest_gather(some: Iterable[Collective]) -> int:
    sizes = [c.bytes_per_device for c in some if c.kind == "all-gather"]
    return max(sizes, default=0)


# What is compared of the collectives of a compiled program.
_COUNTED: dict[str, Callable[[Iterable[Collective]], Any]] = {
    "collectives": _kinds,
    "distinct collectives": lambda some: ", ".join(sorted({c.kind for c in some})),
    "gathered": _gathered,
    "largest gather": _largest_gather,
}


# Lesson 6: what the compiler decides.


def _block(g: Setup, name: str) -> Program:
    table = Rules.of(("batch", "outer"), ("heads", "inner"), ("mlp", "inner"))
    mesh = make_mesh(outer=4, inner=2)
    return programs.known_program(name).replace(mesh=mesh, rules=table)


def _mixed_origin(g: Setup) -> list[str]:
    # XLA's name has the formula of the einsum, which may make a transpose as well.
    names = []
    for op in planned(g.program).ops:
        if op.opcode == "dot_general" and "bhqk,bkhd->" in op.op:
            names.append(op.origins[g.axis].name)
    return names


def _arguments(g: Setup) -> list[str]:
    return [array.name for array in g.program.arrays]


MAKERS["block"] = _block
names_kind("origin", "The arguments", _arguments, _mixed_origin)


@kind("rows")
def _rows(g: Setup, answer: Any, of: str) -> Found:
    shape = getattr(answer, "shape", answer)
    if isinstance(shape, (list, tuple)) and len(shape) == 2 and shape[1] == g.columns:
        answer = shape[0]
    count, (low, high) = read_number(answer, "rows"), g.between
    if count % 1 or not low <= count <= high:
        raise Wrong(f"The rows are {low} to {high}; got {shown(answer)}.")
    x = ArraySpec("x", (int(count), g.columns), spec=Spec.parse("None, None"))
    made = puzzles.get("a constraint that replicates").replace(arrays=(x,))
    spec = planned(made).op("output").spec
    axes = ", ".join(spec.axes)
    return Found(words.result_is(spec, int(count)), {"axes": axes})


def _constrained(a: Any, b: Any) -> Any:
    import jax

    return jax.lax.with_sharding_constraint(a @ b, jax.sharding.PartitionSpec("V", "U"))


@kind("function", lambda g: _constrained)
def _function(g: Setup, answer: Any, of: str) -> Found:
    made = opened(answer)
    if not isinstance(made, Program):
        if not callable(made):
            raise Wrong(f"This takes a function of A and B; got {shown(made)}.")
        made = program(made, g.A, g.B, mesh=g.mesh)
    check_mesh(made.mesh, g.mesh)
    # The names of the arguments are up to whoever writes the function.
    if _as_given(made.arrays) != _as_given((g.A, g.B)):
        raise Wrong("The arguments have to stay as they are: A and B as given.")
    results = [op for op in planned(made).ops if op.kind == "result"]
    shapes = [list(op.shape) for op in results]
    if shapes != [[512, 2048]]:
        raise Wrong(
            f"Your function returns {joined(shapes) or 'nothing'}; A @ B is [512, 2048]."
        )
    spec = results[0].spec
    facts = {
        "as asked": spec.equivalent(g.spec),
        "a product": lambda: _is_product(g, made),
    }
    return Found(words.result_is(spec), facts)


def _as_given(arrays: Iterable[ArraySpec]) -> list[tuple[tuple[int, ...], str]]:
    return [(array.shape, str(array.spec)) for array in arrays]


def _is_product(g: Setup, made: Program) -> bool:
    """Whether a function computes A @ B."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(g.A.shape).astype("float32")
    b = rng.standard_normal(g.B.shape).astype("float32")
    # On one device no sharding can change the values.
    report = run(made.replace(mesh=make_mesh(U=1, V=1)), a, b)
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    off = np.linalg.norm(np.asarray(report.outputs) - a @ b) / np.linalg.norm(a @ b)
    return bool(off < 0.01)  # an accelerator may multiply in bfloat16


@kind("spec between")
def _between(g: Setup, answer: Any, of: str) -> Found:
    between = read_layout(answer, g.x, g.mesh).spec
    some = partitioned(_reshard(g, g.before, between))
    some += partitioned(_reshard(g, between, g.after))
    return _costs(
        f"{g.before} → {between} → {g.after}",
        some,
        rematerialised=any(c.rematerialises for c in some),
        direct=sent_bytes(partitioned(_reshard(g, g.before, g.after))),
    )


# Lesson 8: one of its exercises is about a program.


def _mistaken(g: Setup, name: str) -> Program:
    specs = {"w_in": "None, inner", "w_out": "None, inner", "x": "outer"}
    made = programs.get(name)
    arrays = []
    for array in made.arrays:
        # Specs of their own, so that no rule has to be found.
        spec = Spec.parse(specs[array.name])
        arrays.append(array.replace(logical=None, spec=spec))
    return made.replace(mesh=g.mesh, rules=None, arrays=tuple(arrays))


MAKERS["mistaken"] = _mistaken


@kind("spec in program")
def _one_spec(g: Setup, answer: Any, of: str) -> Found:
    w_in, w_out, x = g.program.arrays
    made = opened(answer)
    if isinstance(made, Program):
        others = {r.path: str(r.spec) for r in made.requests if r.path != w_out.name}
        if others != {a.name: str(a.spec) for a in (w_in, x)}:
            raise Wrong(f"Only {w_out.name} may change; the others are {others}.")
    found = read_layout(made, w_out, g.mesh)
    changed = g.program.replace(arrays=(w_in, w_out.replace(spec=found.spec), x))
    some = planned(changed).collectives
    return _costs(f"w_out as {found.spec}", some, shards=found.num_blocks)
