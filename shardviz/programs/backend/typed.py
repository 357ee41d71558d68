"""Evaluates a jaxpr with types that jax refuses, and tries edits.

The types are specs on Explicit axes, or varying axes in a `shard_map` with `check_vma`.
jax stops at the first operation that it refuses. We therefore trace the program without
these types, and bind the operations of its jaxpr one by one with them. If jax refuses
an operation, edits are tried, and the evaluation continues with an accepted edit. The
result is a trace of the edited program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.sharding import AbstractMesh

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.backend import jax_compat
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.bridge import named_sharding
from shardviz.programs.backend.jaxprs import (
    JaxprOperation,
    array_type,
    is_literal,
    plain_jaxpr,
    users_line,
)
from shardviz.programs.refusals import (
    AtGet,
    AtSet,
    AutoAxes,
    CastBranches,
    CastCarry,
    CastOperands,
    OutSharding,
    ReshardCarry,
    ReshardOperands,
    SkipCheck,
    SplitResult,
    TypeEdit,
    TypeRefusal,
)

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn

    from shardviz.programs.backend.jaxpr_names import AnyJaxpr, Atom

# Limits per refusal: edits to keep, and operand specs to try.
_MAX_EDITS, _MAX_TRIED = 4, 32
_CALLS = (*names.CALLS, names.CUSTOM_JVP, names.CUSTOM_VJP)
# Operations with a parameter for the result sharding.
_RESULT_SHARDINGS = {
    names.DOT_GENERAL: names.DOT_SHARDING,
    names.RESHAPE: names.RESHAPE_SHARDING,
}
# Parameters that hold shardings. The first also covers reshape, whose parameter has the
# same name.
_SHARDINGS = (names.CONSTRAINT_SHARDING, names.DOT_SHARDING, names.RESHARD_SHARDING)
# The spec of a value; in a `shard_map`, the set of axes over which it varies.
_Type = Spec | frozenset[str]
# A function from operands to results.
_Call = Callable[[Sequence[Any]], Sequence[Any]]
_Edits = Iterator[tuple[TypeEdit, _Call]]


class Unanswered(Exception):
    """jax refuses an operation with every edit. The refusal is already recorded."""


class TypedEvaluation:
    """Evaluates jaxprs with specs or varying axes, and records refused operations.

    Args:
        mesh: mesh with Explicit axes; None in a `shard_map`.
        chosen: refusal number -> index of the edit to continue with; 0 if missing.

    Attributes:
        refusals: the refused operations in order, by source line and jax's message.
    """

    def __init__(self, mesh: AbstractMesh | None, chosen: Mapping[int, int]) -> None:
        self.mesh, self.chosen = mesh, chosen
        self.refusals: dict[tuple[str, str], TypeRefusal] = {}
        # The source line of the current operation, or of the call around it.
        self._line = ""
        # Operands in the forward pass, by source line.
        self._operands: dict[str, list[Any]] = {}
        # Broadcast scalars, by id.
        self._numbers: dict[int, Any] = {}
        # Ids of equations and jaxprs in a gradient.
        self._backward: set[int] = set()
        # Types of each jaxpr's results, by id of the jaxpr.
        self._ends: dict[int, list[Any]] = {}

    def run(self, jaxpr: AnyJaxpr, *arguments: Any) -> list[Any]:
        """Evaluates a jaxpr and returns its results.

        Raises:
            Unanswered: at an operation that jax refuses with every edit.
        """
        body, values = plain_jaxpr(jaxpr), {}
        values.update(zip(body.constvars, getattr(jaxpr, "consts", ()), strict=False))
        values.update(zip(body.invars, arguments, strict=True))

        def read(variable: Atom) -> Any:
            if is_literal(variable):  # drops its type, which has a mesh
                return np.asarray(variable.val, array_type(variable).dtype)
            return values[variable]

        for number, equation in enumerate(body.eqns):
            operands, inner = (
                [*map(read, equation.invars)],
                JaxprOperation(equation).inner,
            )
            self._line = users_line(equation) or self._line
            if jax_compat.is_backward(equation, around=id(body) in self._backward):
                self._backward |= {id(equation), *map(id, map(plain_jaxpr, inner))}
            with jax_compat.at_line_of(equation):
                if equation.primitive.name in _CALLS:
                    results = self.run(inner[0], *operands)
                else:
                    call: _Call = partial(self._call, equation)
                    after = body.eqns[number + 1 : number + 2]
                    spec = self._spec_in_gradient(equation, operands, after)
                    if (
                        spec is not None
                        and equation.primitive.name in _RESULT_SHARDINGS
                    ):
                        _, call = self._split(equation, call, spec)
                    results = self._tried(equation, call, operands)
                    if spec is not None:
                        results = [self._like(results[0], spec), *results[1:]]
            values.update(zip(equation.outvars, results, strict=True))
        results = [*map(read, body.outvars)]
        # Used by edits of the loop or branch that calls this jaxpr.
        self._ends[id(body)] = [*map(self._type, results)]
        return results

    def _tried(
        self, equation: JaxprEqn, call: _Call, operands: Sequence[Any]
    ) -> Sequence[Any]:
        """Evaluates an operation, with an edit if jax refuses it."""
        line, name = self._line, equation.primitive.name
        try:
            return call(operands)
        except Unanswered:
            raise
        # jax raises TypeError, ValueError and private classes. The message is recorded,
        # and Unanswered is raised if jax accepts no edit.
        except Exception as error:  # noqa: BLE001
            refused, message = error, str(error).strip()
        types, backward = map(jax.typeof, operands), id(equation) in self._backward
        noted = TypeRefusal(name, line, tuple(map(str, types)), message, (), backward)
        # jax may refuse the same line repeatedly, for example in a loop over layers.
        key = (line, message)
        # The first refusal with this key keeps its edits, so that edit numbers stay
        # valid.
        noted = self.refusals.setdefault(key, noted)
        number = [*self.refusals].index(key)
        accepted: dict[TypeEdit, _Call] = {}
        for edit, edited in self._edits(equation, call, operands):
            if self._results(edited, operands) is not None:
                # jax's message names an equivalent method of .at. Under `jax.vmap` its
                # spec would be wrong, because the user's array has fewer dimensions.
                is_mapped = "vmap(" in str(equation.source_info.name_stack)
                if isinstance(edit, AutoAxes) and ".at[" in message and not is_mapped:
                    method = AtGet if name == names.GATHER else AtSet
                    edit = method(edit.spec)
                accepted.setdefault(edit, edited)
            if len(accepted) == _MAX_EDITS:
                break
        if not accepted:
            raise Unanswered from refused
        edits = noted.edits or tuple(accepted)
        self.refusals[key] = replace(noted, edits=edits)
        chosen = edits[min(self.chosen.get(number, 0), len(edits) - 1)]
        return accepted.get(chosen, next(iter(accepted.values())))(operands)

    def _results(self, call: _Call, operands: Sequence[Any]) -> Any | None:
        """Returns the result shapes and types; None if jax refuses the operation."""
        before = {**self.refusals}
        try:
            # A separate trace, so that an attempt adds nothing to the program.
            return jax.eval_shape(call, operands)
        # jax may raise any exception, as in `_tried`. A refused edit is not proposed.
        except Exception:  # noqa: BLE001
            return None
        finally:
            self.refusals = before

    # Operations.

    def _call(
        self, equation: JaxprEqn, operands: Sequence[Any], edit: TypeEdit | None = None
    ) -> Any:
        """Evaluates an operation; an edit applies to its result or inner jaxprs."""
        name = equation.primitive.name
        if name == names.SHARD_MAP:
            return self._shard_map(equation, operands, checked=edit is None)
        if name == names.CHECKPOINT:
            run = partial(self.run, names.CHECKPOINT_BODY.of(equation))
            return jax.checkpoint(
                run,
                prevent_cse=names.PREVENT_CSE.of(equation),
                policy=names.POLICY.of(equation),
            )(*operands)
        if name not in (names.SCAN, names.WHILE, names.COND):
            spec = edit.spec if isinstance(edit, SplitResult) else None
            return self._bind(equation, operands, spec)
        if name == names.COND:
            axes = frozenset(edit.axes if isinstance(edit, CastBranches) else ())

            def branch(jaxpr: AnyJaxpr, *inputs: Any) -> list[Any]:
                return [self._like(result, axes) for result in self.run(jaxpr, *inputs)]

            branches = [partial(branch, jaxpr) for jaxpr in names.BRANCHES.of(equation)]
            return jax.lax.switch(operands[0], branches, *operands[1:])
        first, end = _carry(equation)
        init = [*operands[first:end]]
        if name == names.WHILE:
            constants = names.CONDITION_CONSTANTS.of(equation)
            condition = partial(
                self.run, names.WHILE_CONDITION.of(equation), *operands[:constants]
            )
            body = partial(
                self.run, names.WHILE_BODY.of(equation), *operands[constants:first]
            )
            return jax.lax.while_loop(
                lambda carry: condition(*carry)[0], lambda carry: body(*carry), init
            )
        scanned = names.SCAN_BODY.of(equation)

        def step(carry: Any, x: Any) -> Any:
            results = self.run(scanned, *operands[:first], *carry, *x)
            return results[: end - first], results[end - first :]

        last, ys = jax.lax.scan(
            step,
            init,
            operands[end:],
            length=names.LENGTH.of(equation),
            reverse=names.REVERSE.of(equation),
            unroll=names.UNROLL.of(equation),
        )
        return [*last, *ys]

    def _shard_map(
        self, equation: JaxprEqn, operands: Sequence[Any], checked: bool
    ) -> Sequence[Any]:
        jaxpr = names.SHARD_MAP_BODY.of(equation)
        mesh, body = self.mesh, partial(eval_jaxpr, jaxpr, ())
        if mesh is not None:  # the body has no Explicit axes
            checked = names.CHECK_VMA.of(equation)
        elif checked:
            body = partial(self.run, jaxpr)
        return jax.shard_map(
            lambda *shards: [*body(*shards)],
            mesh=mesh or names.SHARD_MAP_MESH.of(equation),
            in_specs=tuple(names.IN_SPECS.of(equation)),
            out_specs=[*names.OUT_SPECS.of(equation)],
            axis_names={*names.MANUAL_AXES.of(equation)},
            check_vma=checked,
        )(*operands)

    def _bind(
        self, equation: JaxprEqn, operands: Sequence[Any], spec: Spec | None
    ) -> Sequence[Any]:
        """Binds an operation as jax's own functions do."""
        primitive, params = equation.primitive, {**equation.params}
        if self.mesh is not None:
            for parameter in _SHARDINGS:
                sharding = parameter.find(equation, None)
                if sharding is not None:
                    on_mesh = named_sharding(self.mesh, spec_of(sharding.spec))
                    is_reshard = parameter == names.RESHARD_SHARDING
                    # In a gradient, jax derived this sharding from the original types.
                    is_derived = id(equation) in self._backward and not is_reshard
                    params[parameter.name] = None if is_derived else on_mesh
            if primitive.name == names.SELECT:
                # `jnp.where` gives a broadcast scalar the type of the other operands.
                arrays = [o for o in operands if id(o) not in self._numbers]
                operands = [*operands]
                for number, operand in enumerate(operands):
                    if id(operand) in self._numbers and arrays[1:]:
                        operands[number] = self._like(operand, self._type(arrays[1]))
            if spec is not None:
                params[_RESULT_SHARDINGS[primitive.name].name] = named_sharding(
                    self.mesh, spec
                )
            if primitive.name == names.CONSTRAINT:
                # Binding the primitive would skip jax's checks. The function needs a
                # mesh in context.
                with jax.sharding.use_abstract_mesh(self.mesh):
                    constrain = jax.lax.with_sharding_constraint
                    sharding = params[names.CONSTRAINT_SHARDING.name]
                    return [constrain(operands[0], sharding)]
        elif primitive.name in names.SUMS:  # psum chooses a primitive by type
            groups = names.SUM_GROUPS.find(equation, None)
            axes = names.SUMMED_AXES.of(equation)
            return jax.lax.psum([*operands], axes, axis_index_groups=groups)
        elif primitive.name != names.PVARY:
            named = names.PERMUTED_AXES.find(equation, ())
            axes = frozenset((named,) if isinstance(named, str) else named)
            axes = axes.union(*map(self._type, operands))
            operands = [self._like(operand, axes) for operand in operands]
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
        if primitive.name == names.BROADCAST and not operands[0].shape:
            self._numbers[id(results)] = results
        return results if primitive.multiple_results else [results]

    def _spec_in_gradient(
        self, equation: JaxprEqn, operands: Sequence[Any], after: Sequence[JaxprEqn]
    ) -> Spec | None:
        """Returns the spec that jax gives a result in a gradient; None if unknown.

        A gradient has the spec of its primal value. This value is an operand in the
        forward pass, so we search the operands with the same line and shape. A product
        is also transposed to that shape, as in jax's `_dot_general_transpose_lhs`.
        """
        forward = self._operands.setdefault(self._line, [])
        if self.mesh is None or id(equation) not in self._backward:
            forward += operands
            return None
        shape = array_type(equation.outvars[0]).shape
        order: Sequence[int] = range(len(shape))
        if after and after[0].invars == equation.outvars:
            order = names.PERMUTATION.find(after[0], order)
        # The equation's own operands are rarely the primal value, so they come last.
        read = [*map(id, operands)]
        for value in sorted(forward, key=lambda value: id(value) in read):
            if value.shape == tuple(np.take(shape, order)):
                spec = Spec().of_rank(len(shape))
                for dim, axes in zip(order, self._type(value).dims, strict=True):
                    spec = _with(spec, dim, axes)
                return spec
        return None

    # Types and edits.

    def _type(self, value: Any) -> Any:
        if self.mesh is None:
            return jax_compat.varying_axes(value)
        sharding = getattr(value, "sharding", None) or jax.typeof(value).sharding
        return spec_of(sharding.spec).of_rank(value.ndim)

    def _like(self, value: Any, type_: Any) -> Any:
        """Gives a value another spec, or makes it vary over more axes."""
        if self.mesh is not None and isinstance(type_, Spec):
            if type_ == self._type(value):
                return value
            return jax.sharding.reshard(value, named_sharding(self.mesh, type_))
        missing = tuple(sorted(type_ - self._type(value)))
        return jax.lax.pcast(value, missing, to="varying") if missing else value

    def _changed(self, numbers: Sequence[int], type_: _Type, call: _Call) -> Any:
        """Returns the edit that gives operands another type, and the edited call."""

        def changed(operands: Sequence[Any]) -> Sequence[Any]:
            new = [*operands]
            for number in numbers:
                new[number] = self._like(new[number], type_)
            return call(new)

        if isinstance(type_, Spec):
            return ReshardOperands(tuple(numbers), type_), changed
        return CastOperands(tuple(numbers), tuple(sorted(type_))), changed

    def _split(
        self, equation: JaxprEqn, call: _Call, spec: Spec
    ) -> tuple[TypeEdit, _Call]:
        """Returns the edit that gives a result a fixed spec, and the edited call."""
        if equation.primitive.name in _RESULT_SHARDINGS:
            edit = OutSharding(spec)
            return edit, partial(self._call, equation, edit=edit)
        assert self.mesh is not None  # specs need Explicit axes
        sharding = named_sharding(self.mesh, spec)
        run: Any = jax.sharding.auto_axes(lambda *o: call(o), out_sharding=sharding)
        edit = AutoAxes(spec)
        return edit, lambda operands: run(*operands)

    def _edits(
        self, equation: JaxprEqn, call: _Call, operands: Sequence[Any]
    ) -> _Edits:
        """Yields edits of a refused operation, each with the edited call."""
        name, edit = equation.primitive.name, None
        if name in (names.SCAN, names.WHILE):
            yield from self._carry_edits(equation, call, operands)
        if self.mesh is not None:
            yield from self._splits(equation, call, operands)
        elif name == names.COND:
            axes = frozenset[str]()
            # All branches must vary over every axis that one branch's results vary
            # over.
            for branch in names.BRANCHES.of(equation):
                axes = axes.union(*self._ends.get(id(plain_jaxpr(branch)), ()))
            edit = CastBranches(tuple(sorted(axes)))
        elif name == names.SHARD_MAP:
            edit = SkipCheck()
        if edit is not None:
            yield edit, partial(self._call, equation, edit=edit)

    def _carry_edits(
        self, equation: JaxprEqn, call: _Call, operands: Sequence[Any]
    ) -> _Edits:
        """Yields edits that give carry values their type after one iteration."""
        first, end = _carry(equation)
        is_scan = equation.primitive.name == names.SCAN
        body = (names.SCAN_BODY if is_scan else names.WHILE_BODY).of(equation)
        after = self._ends.get(id(plain_jaxpr(body)), ())
        moved: dict[_Type, list[int]] = {}
        for number, type_ in enumerate(after[: end - first], first):
            before = self._type(operands[number])
            if self.mesh is None:
                type_ -= before  # pcast takes only the missing axes
            if type_ and type_ != before:
                moved.setdefault(type_, []).append(number)
        if self.mesh is None:
            # Casting one value may change other values in the next iteration.
            call = partial(self._tried, equation, call)
        for type_, numbers in moved.items():
            _, changed = self._changed(numbers, type_, call)
            in_carry = tuple(number - first for number in numbers)
            if isinstance(type_, Spec):
                yield ReshardCarry(in_carry, type_), changed
            else:
                yield CastCarry(in_carry, tuple(sorted(type_))), changed

    def _splits(
        self, equation: JaxprEqn, call: _Call, operands: Sequence[Any]
    ) -> _Edits:
        """Yields edits for Explicit axes.

        An operand gets the spec of another operand, or is split less. Or the result
        gets the spec that this implies, possibly with one more operand axis.
        """
        name = equation.primitive.name
        specs, other_specs = [*map(self._type, operands)], []
        if name == names.CONSTRAINT:
            other_specs = [spec_of(names.CONSTRAINT_SHARDING.of(equation).spec)]
        elif name == names.SHARD_MAP:
            other_specs = [*map(spec_of, names.IN_SPECS.of(equation))]
        # Each attempt evaluates the inner jaxprs, and a loop may have many operands.
        elif not JaxprOperation(equation).inner:
            other_specs = specs
        tries, axes, reshards, results = [], [], [], []
        # The first operand is usually the activations. It is edited last, to keep it
        # split.
        for number, operand_spec in reversed([*enumerate(specs)]):
            axes += operand_spec.axes
            less = [_with(operand_spec, d, ()) for d in range(operand_spec.rank)]
            for spec in dict.fromkeys([*other_specs, *less, Spec()]):
                tries.append((number, operand_spec, spec.of_rank(operand_spec.rank)))
        for number, operand_spec, spec in tries[:_MAX_TRIED]:
            edit, changed = self._changed([number], spec, call)
            if spec != operand_spec and (
                edited_results := self._results(changed, operands)
            ):
                reshards.append((edit, changed))
                if len(spec.axes) < len(operand_spec.axes):
                    results.append(self._type(edited_results[0]))
        if name not in _RESULT_SHARDINGS:
            yield from reshards[: _MAX_EDITS // 2]
        rank = array_type(equation.outvars[0]).ndim
        for spec in (*results, Spec().of_rank(rank)) * (len(equation.outvars) == 1):
            yield self._split(equation, call, spec)
            for axis, d in product(axes, range(rank)):
                if axis not in spec.axes and not spec.dims[d]:
                    yield self._split(equation, call, _with(spec, d, (axis,)))
        yield from reshards


def _with(spec: Spec, dim: int, axes: tuple[str, ...]) -> Spec:
    """Returns a copy of a spec with other axes for one dimension."""
    return Spec((*spec.dims[:dim], axes, *spec.dims[dim + 1 :]))


def _carry(equation: JaxprEqn) -> tuple[int, int]:
    """Returns the range of a loop's carry among its operands, as (first, end)."""
    if equation.primitive.name == names.SCAN:
        first, count = jax_compat.scan_counts(equation)
        return first, first + count
    condition = names.CONDITION_CONSTANTS.of(equation)
    return condition + names.BODY_CONSTANTS.of(equation), len(equation.invars)
