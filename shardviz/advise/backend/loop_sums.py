"""Moves sums over devices from inside a `shard_map` loop to after the loop.

If a loop only accumulates the result of a psum, each device can accumulate its own
values, and one psum after the loop is enough. Most such psums come from gradients: if a
loop reads a replicated weight, jax sums the weight's gradient in every iteration. With
`w = jax.lax.pcast(w, axes, to="varying")` before the loop, jax sums it outside the
loop.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from shardviz.advise.edits import CastBeforeLoop, SumAfterLoop
from shardviz.base.backend import jax_compat
from shardviz.base.mesh import MeshSpec
from shardviz.base.source_lines import is_user_file
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.jaxprs import (
    JaxprOperation,
    operations,
    plain_jaxpr,
    rewritten,
    users_line,
    with_inner,
)
from shardviz.programs.backend.typed import TypedEvaluation

_SUMS = ("psum", "psum_invariant")
_CALLS = (*names.CALLS, names.CHECKPOINT)
# Linear operations of one operand: a psum before or after them gives the same result.
_LINEAR = {
    "neg", "copy", "convert_element_type", "broadcast_in_dim", "reshape", "transpose",
    "squeeze", "reduce_sum",
}  # fmt: skip
_ADD = ("add", "add_any")


@dataclass(frozen=True)
class _LoopValue:
    """A value in a loop body: a carry, postponed sums, or the total of both.

    Attributes:
        carry: the position of the carry in the total; None if there is none.
        sums: ids of the sum equations in the total.
    """

    carry: int | None = None
    sums: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LoopSums:
    """Sums in a loop that can be postponed until after the loop.

    Attributes:
        loop: the `scan` equation.
        sums: the sum equations.
        carries: positions of the carries that accumulate the sums.
        axes: the mesh axes that the sums are over.
        is_backward: whether jax created the sums for a gradient.
    """

    loop: Any
    sums: tuple[Any, ...]
    carries: tuple[int, ...]
    axes: tuple[str, ...]
    is_backward: bool = False


def loop_sums(jaxpr: Any) -> Iterator[LoopSums]:
    """Yields the postponable sums of each loop in a `shard_map` with `check_vma`."""
    for operation in operations(jaxpr):
        is_mapped = operation.name == names.SHARD_MAP
        if not is_mapped or not names.CHECK_VMA.of(operation.equation):
            continue
        for inner in operations(names.SHARD_MAP_BODY.of(operation.equation)):
            if inner.name == names.SCAN and names.LENGTH.of(inner.equation) > 1:
                for waiting in _sums_of(inner.equation):
                    around = (operation.equation, inner.equation, *waiting.sums)
                    is_backward = any(map(jax_compat.is_backward, around))
                    yield replace(waiting, is_backward=is_backward)


def _sums_of(loop: Any) -> Iterator[LoopSums]:
    by_axes: dict[tuple[str, ...], dict[int, Any]] = {}
    for operation in operations(names.SCAN_BODY.of(loop)):
        groups = names.SUM_GROUPS.find(operation.equation, None)
        is_sum = operation.name in _SUMS and groups is None
        if is_sum and names.SCAN not in operation.around:
            axes = tuple(names.SUMMED_AXES.of(operation.equation))
            by_axes.setdefault(axes, {})[id(operation.equation)] = operation.equation
    yield from waiting_sums(loop, by_axes)


def waiting_sums(
    loop: Any, by_axes: Mapping[tuple[str, ...], dict[int, Any]]
) -> Iterator[LoopSums]:
    """Yields the sums of a loop that can be postponed until after the loop.

    Args:
        loop: a `scan` equation.
        by_axes: mesh axes -> the equations that sum over them, keyed by id.
    """
    for axes, sums in by_axes.items():
        # Remove the sums that must stay in the loop, and analyse the others again.
        while sums:
            analysis = _Analysis(loop, axes, sums)
            carries = analysis.carries()
            if not analysis.excluded:
                if carries:
                    yield LoopSums(loop, tuple(sums.values()), carries, axes)
                break
            for number in analysis.excluded:
                sums.pop(number, None)


class _Analysis:
    """Traces the sums in a loop body to the carries that accumulate them.

    Attributes:
        excluded: ids of sums that must stay in the loop.
    """

    def __init__(self, loop: Any, axes: Sequence[str], sums: Mapping[int, Any]) -> None:
        self.loop, self.axes, self.sums = loop, {*axes}, sums
        self.excluded: set[int] = set()

    def carries(self) -> tuple[int, ...]:
        """Returns the positions of the carries that only accumulate sums."""
        first, count = jax_compat.scan_counts(self.loop)
        body = plain_jaxpr(names.SCAN_BODY.of(self.loop))
        inputs: list[_LoopValue | None] = [None] * len(body.invars)
        for number in range(count):
            inputs[first + number] = _LoopValue(number)
        carries, reached = [], set[int]()
        for number, result in enumerate(self._run(body, inputs)):
            if result is None or not result.sums:
                continue
            if number < count and result.carry == number:
                carries.append(number)
                reached |= result.sums
            else:
                self.excluded |= result.sums
        # A sum that no carry accumulates stays in the loop.
        self.excluded |= self.sums.keys() - reached
        return tuple(carries)

    def _run(
        self, jaxpr: Any, inputs: Sequence[_LoopValue | None]
    ) -> list[_LoopValue | None]:
        body = plain_jaxpr(jaxpr)
        values: dict[Any, _LoopValue | None] = dict(
            zip(body.invars, inputs, strict=True)
        )
        for equation in body.eqns:
            operands = []
            for variable in equation.invars:
                operands.append(
                    None if hasattr(variable, "val") else values.get(variable)
                )
            results = self._results(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))
        results = []
        for variable in body.outvars:
            results.append(None if hasattr(variable, "val") else values.get(variable))
        return results

    def _results(
        self, equation: Any, operands: list[_LoopValue | None]
    ) -> list[_LoopValue | None]:
        name = equation.primitive.name
        nothing: list[_LoopValue | None] = [None] * len(equation.outvars)
        if id(equation) in self.sums:
            # A psum of several operands has one result per operand.
            return [_LoopValue(sums=frozenset({id(equation)}))] * len(nothing)
        inner = JaxprOperation(equation).inner
        if name in _CALLS and len(inner) == 1:
            return self._run(inner[0], operands)
        read = [operand for operand in operands if operand is not None]
        sums = frozenset[int]().union(*(operand.sums for operand in read))
        carries = [operand.carry for operand in read if operand.carry is not None]
        if not read:
            return nothing
        result: _LoopValue | None = None
        is_scaled = name == "mul" or (name == "div" and operands[0] is not None)
        if name in _ADD and len(read) == 2 and len(carries) < 2:
            result = _LoopValue(carries[0] if carries else None, sums)
        elif not carries and len(read) == 1 and (name in _LINEAR or is_scaled):
            result = _LoopValue(sums=sums)
        varies = not self.axes.isdisjoint(jax_compat.varying_axes(equation.outvars[0]))
        if result is None or varies:
            self.excluded |= sums
            return nothing
        return [result]


class _SummedAfter(TypedEvaluation):
    """Evaluates a jaxpr with some sums moved from inside loops to after them."""

    def __init__(self, waiting: Sequence[LoopSums]) -> None:
        super().__init__(None, {})
        self._loops: dict[int, list[LoopSums]] = {}
        self._left_out: set[int] = set()
        for waiting_sum in waiting:
            self._loops.setdefault(id(waiting_sum.loop), []).append(waiting_sum)
            self._left_out |= {*map(id, waiting_sum.sums)}

    def _call(self, equation: Any, operands: Any, edit: Any = None) -> Any:
        waiting = self._loops.get(id(equation), ())
        if not waiting:
            return super()._call(equation, operands, edit)
        first, _ = jax_compat.scan_counts(equation)
        operands, before = [*operands], {}
        for waiting_sum in waiting:
            for number in waiting_sum.carries:
                before[number] = operands[first + number]
                zeros = jnp.zeros_like(before[number])
                axes = frozenset(waiting_sum.axes) | self._type(before[number])
                operands[first + number] = self._like(zeros, axes)
        results = [*super()._call(equation, operands, edit)]
        for waiting_sum in waiting:
            with jax_compat.at_line_of(waiting_sum.sums[0]):
                for number in waiting_sum.carries:
                    summed = jax.lax.psum(results[number], waiting_sum.axes)
                    results[number] = before[number] + summed
        return results

    def _bind(self, equation: Any, operands: Any, spec: Any) -> Any:
        if id(equation) in self._left_out:
            return operands
        if equation.primitive.name == names.PVARY:
            # An operand whose sum is postponed already varies over these axes.
            return [
                self._like(operand, frozenset(names.SUMMED_AXES.of(equation)))
                for operand in operands
            ]
        return super()._bind(equation, operands, spec)


def name_in_loop(equation: Any) -> str:
    """Returns the one variable from outside a loop that an expression reads.

    Returns `""` if there isn't exactly one. An equation that sums a gradient has the
    source position of the forward expression, which reads the variable.
    """
    for frame in jax_compat.line_frames(equation):
        if is_user_file(frame.file_name):
            text = jax_compat.expression_text(equation, frame.file_name)
            local = _local_names(frame.file_name, frame.line_num)
            break
    else:
        return ""
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return ""
    operands: list[ast.expr] = []
    if isinstance(expression, ast.BinOp):
        operands = [expression.left, expression.right]
    elif isinstance(expression, ast.Call):
        operands = expression.args
    alone = []
    for operand in operands:
        names = {node.id for node in ast.walk(operand) if isinstance(node, ast.Name)}
        if len(names) == 1 and not names & local:
            alone += names
    return alone[0] if len(alone) == 1 else ""


def _local_names(file: str, line: int) -> set[str]:
    """Returns the parameters and locals of the function around a source line."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook cell with magics
        return set()
    names, start = set[str](), 0
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        if start <= node.lineno <= line <= (node.end_lineno or 0):
            start, names = node.lineno, set()
            for inner in ast.walk(node):
                if isinstance(inner, ast.arg):
                    names.add(inner.arg)
                elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    names.add(inner.id)
    return names


def with_sums_after_loop(
    jaxpr: Any, edit: SumAfterLoop | CastBeforeLoop, mesh: MeshSpec
) -> Any:
    """Returns a jaxpr that computes the sums of the edit's line after their loop."""

    def change(equation: Any) -> list[Any]:
        if equation.primitive.name != names.SHARD_MAP:
            return [with_inner(equation, lambda inner: rewritten(inner, change))]
        waiting = []
        for waiting_sum in loop_sums(_Equations([equation])):
            lines = {*map(users_line, waiting_sum.sums)}
            if edit.source in lines and waiting_sum.axes == edit.axes:
                waiting.append(waiting_sum)
        if not waiting:
            return [equation]
        body, evaluation = names.SHARD_MAP_BODY.of(equation), _SummedAfter(waiting)
        call = jax.shard_map(
            lambda *shards: evaluation.run(body, *shards),
            mesh=names.SHARD_MAP_MESH.of(equation),
            in_specs=tuple(names.IN_SPECS.of(equation)),
            out_specs=[*names.OUT_SPECS.of(equation)],
            axis_names={*names.MANUAL_AXES.of(equation)},
        )
        (call_equation,) = plain_jaxpr(
            jax.make_jaxpr(call)(*(v.aval for v in equation.invars))
        ).eqns
        call_equation = call_equation.replace(
            invars=equation.invars, outvars=equation.outvars
        )
        return [call_equation.replace(source_info=equation.source_info)]

    return rewritten(jaxpr, change)


@dataclass(frozen=True)
class _Equations:
    """The equations of a jaxpr, for code that reads only `eqns`."""

    eqns: list[Any]
