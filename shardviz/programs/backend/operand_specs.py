"""Notes on operations whose operands must be split in a certain way.

Operand specs are read from a trace: on Explicit axes from jax's types; elsewhere from the
specs of arguments and sharding constraints, followed through calls, elementwise operations
and reshapes. A spec that would need
propagation is unknown, and an operand with an unknown spec gets no note.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from shardviz.axis_rules.libraries import spec_of
from shardviz.axis_rules.matching import without_size_one
from shardviz.base.backend.jax_compat import scan_counts
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.jaxprs import (
    JaxprOperation,
    array_type,
    distinct_operations,
    is_literal,
    plain_jaxpr,
    users_line,
)
from shardviz.programs.backend.trace import Traced, left_to_compiler, placed_spec
from shardviz.programs.notes import KernelNotMapped, Note, ScalesApart, StraddledBlocks

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn

    from shardviz.programs.backend.jaxpr_names import Atom

_Specs = Sequence[Spec | None]
_KERNEL = "pallas_call"
# Products of blocks and their scales: lhs, rhs, scales of lhs, scales of rhs.
_SCALED_MATMUL, _SCALED_DOT = "scaled_matmul_wrapper", "scaled_dot"
_NOTED = (_KERNEL, _SCALED_MATMUL, _SCALED_DOT)
# Results are split as the operands of the same shape.
_ELEMENTWISE = {
    "abs", "add", "bitcast_convert_type", "clamp", "convert_element_type", "copy", "cos",
    "div", "exp", "integer_pow", "logistic", "max", "min", "mul", "neg", "reduce_precision",
    "round", "rsqrt", "select_n", "sin", "sqrt", "square", "sub", "tanh",
}  # fmt: skip


def operand_notes(traced: Traced) -> list[Note]:
    """Returns notes on Pallas kernels and block-scaled products outside a `shard_map`."""
    program = traced.program
    jaxpr = plain_jaxpr(traced.stage.jaxpr)
    has_any = any(o.name in _NOTED for o in distinct_operations(jaxpr))
    if program.mesh.size == 1 or not has_any:
        return []
    free, specs = left_to_compiler(program), list[Spec | None]()
    for position, request in enumerate(program.requests):
        spec = None if position in free else request.spec
        specs.append(None if spec is None else placed_spec(spec))
    notes: list[Note] = []
    for equation, operands, line in _noted_operations(jaxpr, specs):
        if equation.primitive.name == _KERNEL:
            notes.append(_kernel(equation, operands, line))
        else:
            notes += _scales(equation, operands, line, program.mesh)
    return list(dict.fromkeys(notes))


def _noted_operations(
    jaxpr: Jaxpr, specs: _Specs, around: str = ""
) -> Generator[tuple[JaxprEqn, _Specs, str], None, _Specs]:
    """Yields operations of interest, with the specs of their operands and their lines.

    Args:
        jaxpr: the jaxpr to search.
        specs: the specs of its arguments.
        around: line of the call around it, for calls of jax's own functions.

    Returns:
        The specs of the jaxpr's results.
    """
    specs_by_atom: dict[Atom, Spec | None] = dict(
        zip(jaxpr.invars, specs, strict=False)
    )

    def spec_at(atom: Atom) -> Spec | None:
        if is_literal(atom):
            return Spec()
        sharding = getattr(atom.aval, "sharding", None)
        types = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
        if any(kind.name == "Explicit" for kind in types):
            return spec_of(array_type(atom).sharding.spec)
        return specs_by_atom.get(atom)

    for equation in jaxpr.eqns:
        name, operands = equation.primitive.name, list(map(spec_at, equation.invars))
        results: _Specs = ()
        if name in _NOTED:
            yield equation, operands, users_line(equation) or around or name
        elif name == names.CONSTRAINT:
            # Other shardings have no spec, and the compiler may choose dimensions.
            spec = getattr(names.CONSTRAINT_SHARDING.of(equation), "spec", None)
            requested = None if spec is None else spec_of(spec)
            results = [None if requested and requested.unconstrained else requested]
        elif name == names.RESHAPE:
            old, new = equation.invars[0], equation.outvars[0]
            shapes = array_type(old).shape, array_type(new).shape
            results = [_reshaped(operands[0], *shapes)]
        elif name == "optimization_barrier":
            results = operands
        elif name in _ELEMENTWISE:
            results = [_like_operands(equation, operands)]
        elif name != names.SHARD_MAP:
            for inner in map(plain_jaxpr, JaxprOperation(equation).inner):
                passed = _passed(equation, inner, operands)
                line = users_line(equation) or around
                out = yield from _noted_operations(inner, passed, line)
                if name != names.SCAN and len(out) == len(equation.outvars):
                    results = out
        specs_by_atom.update(zip(equation.outvars, results, strict=False))
    return list(map(spec_at, jaxpr.outvars))


def _passed(equation: JaxprEqn, inner: Jaxpr, operands: _Specs) -> _Specs:
    """Returns the specs of a called jaxpr's arguments."""
    if equation.primitive.name == names.SCAN:
        constants, carried = scan_counts(equation)
        slices = operands[constants + carried :]
        # The carry may be split in another way after the first iteration.
        rows = [spec and spec.with_dims(spec.dims[1:]) for spec in slices]
        return [*operands[:constants], *[None] * carried, *rows]
    skipped = len(operands) - len(inner.invars)  # 1 for the index operand of a cond
    is_loop = equation.primitive.name == names.WHILE
    return () if is_loop or skipped not in (0, 1) else operands[skipped:]


def _like_operands(equation: JaxprEqn, operands: _Specs) -> Spec | None:
    """Returns the spec that all operands of the result's shape have; else None."""
    shape = array_type(equation.outvars[0]).shape
    specs = set()
    for atom, spec in zip(equation.invars, operands, strict=True):
        if array_type(atom).shape == shape and not is_literal(atom):
            specs.add(None if spec is None else spec.of_rank(len(shape)))
    return specs.pop() if len(specs) == 1 else None


def _reshaped(spec: Spec | None, old: Sequence[int], new: Sequence[int]) -> Spec | None:
    """Returns the spec after a reshape that splits or merges dimensions; None if unclear.

    >>> split = Spec.parse("x, y")
    >>> _reshaped(split, (4, 64), (4, 1, 2, 32)), _reshaped(split, (4, 2), (8,))
    (P('x', None, 'y', None), None)
    """
    if spec is None or 0 in old:
        return None
    dims: list[tuple[str, ...]] = []
    padded, i, j = spec.padded(len(old)), 0, 0
    while i < len(old) or j < len(new):
        first_old, first_new = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (a := math.prod(old[first_old:i])) != (b := math.prod(new[first_new:j])):
            i, j = (i + 1, j) if a < b else (i, j + 1)
        # Dimensions of size 1 are not split.
        splits = [padded[d] for d in range(first_old, i) if old[d] > 1]
        axes = splits[0] if splits else ()
        for size in new[first_new:j]:
            dims.append(axes if size > 1 else ())
            axes = axes if size == 1 else ()
        if axes or any(splits[1:]):
            return None
    return spec.with_dims(dims)


def _kernel(equation: JaxprEqn, operands: _Specs, line: str) -> KernelNotMapped:
    """Describes a Pallas kernel; a result is split as an operand of the same shape."""
    results: list[Spec | None] = []
    for variable in equation.outvars:
        result = None
        for atom, spec in zip(equation.invars, operands, strict=True):
            if result is None and array_type(atom).shape == array_type(variable).shape:
                result = spec
        results.append(result)
    return KernelNotMapped(line, tuple(operands), tuple(results))


def _scales(
    equation: JaxprEqn, operands: _Specs, line: str, mesh: MeshSpec
) -> Iterator[Note]:
    """Compares the specs of both operands of a product with their scales' specs."""
    for position, (spec, scale_spec) in enumerate(
        zip(operands[:2], operands[2:4], strict=True)
    ):
        shape = array_type(equation.invars[position]).shape
        counts = array_type(equation.invars[position + 2]).shape
        if spec is None or len(shape) != len(counts):
            continue
        scale_dims = None
        if scale_spec is not None:
            scale_dims = without_size_one(scale_spec, mesh).padded(len(counts))
        # jax splits the operands of a scaled_matmul itself, and the scales like their
        # blocks. XLA splits those of a scaled_dot as it propagates.
        by_jax = equation.primitive.name == _SCALED_MATMUL
        spec = without_size_one(spec, mesh)
        for dim, axes in enumerate(spec.padded(len(shape))):
            shards = math.prod(mesh.shape[axis] for axis in axes)
            if by_jax and counts[dim] % shards and counts[dim] < shape[dim]:
                yield StraddledBlocks(line, position, dim, counts[dim], axes, shards)
            # Copies of all scales, or of all blocks, need no communication.
            elif scale_dims is not None and scale_dims[dim] not in ((), axes):
                if by_jax or axes:
                    yield ScalesApart(line, position, dim, axes, scale_dims[dim])
