"""A jaxpr evaluated once more, under types that jax refuses in places.

jax stops at the first operation that it refuses. Here each operation of a jaxpr that
was traced without such types is bound again, with them: on Explicit axes, or in a
`shard_map` that checks what varies. Where jax refuses one, edits are tried, the smallest
first, and the evaluation goes on with one that jax accepts: it traces the edited program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AbstractMesh

from shardviz.core.backend.bridge import named_sharding
from shardviz.core.backend.jax_compat import (
    at_line_of,
    is_backward,
    scan_counts,
    varying_axes,
)
from shardviz.core.backend.tracing.jaxprs import (
    JaxprOperation,
    plain_jaxpr,
    users_line,
)
from shardviz.core.layout.libraries import spec_of
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.refusals import TypeEdit, TypeRefusal

_MOST_EDITS = 4  # of one refusal that are kept
_MOST_SPECS = 16  # of one result that are tried
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
# Operations that are told how to split their result, and the parameter for it.
_TOLD = {"dot_general": "out_sharding", "reshape": "sharding"}
# How a value is split, or in a `shard_map` the axes over which it varies.
_Type = Spec | frozenset[str]
_Call = Callable[..., list[Any]]  # the results of an operation for its operands


class Unanswered(Exception):
    """An operation that jax refuses with every edit; it is noted already."""


class TypedEvaluation:
    """Evaluates jaxprs under types, and notes what jax refuses.

    Args:
        mesh: the mesh of Explicit axes; None in a `shard_map`.
        chosen: which edit to go on with, by the number of a refusal; else the first.

    Attributes:
        refusals: what was refused, in the order of the program.
    """

    def __init__(
        self, mesh: AbstractMesh | None, chosen: Mapping[int, int] | None = None
    ) -> None:
        self.mesh, self.chosen = mesh, chosen or {}
        self.refusals: list[TypeRefusal] = []
        self._numbers: dict[Any, int] = {}  # of refusals: bodies are traced repeatedly
        self._line = ""  # the user's line of the operation, or of the call around it
        self._forward: dict[str, list[Any]] = {}  # operands of products, by line

    def run(self, jaxpr: Any, *arguments: Any) -> list[Any]:
        """The results of a jaxpr.

        Raises:
            Unanswered: at an operation that jax refuses with every edit.
        """
        body, values = plain_jaxpr(jaxpr), {}
        values.update(zip(body.constvars, getattr(jaxpr, "consts", ()), strict=False))
        values.update(zip(body.invars, arguments, strict=True))

        def read(variable: Any) -> Any:
            if hasattr(variable, "val"):  # a literal, whose type names a mesh, too
                return np.asarray(variable.val, variable.aval.dtype)
            return values[variable]

        for number, equation in enumerate(body.eqns):
            operands = [*map(read, equation.invars)]
            with at_line_of(equation):
                results = self._results(equation, operands, body.eqns[number + 1 :])
            values.update(zip(equation.outvars, results, strict=True))
        return [*map(read, body.outvars)]

    def _results(
        self, equation: Any, operands: list[Any], later: Sequence[Any]
    ) -> list[Any]:
        name, self._line = equation.primitive.name, users_line(equation) or self._line
        if name in _CALLS:
            return self.run(JaxprOperation(equation).inner[0], *operands)
        own = {"scan": _Loop, "while": _Loop, "cond": _Cond, "shard_map": _ShardMap}
        if name in own:
            operation = own[name](self, equation)
            return self.tried(equation, operands, operation.call, operation.edits)
        call = functools.partial(self._bind, equation)
        if name == "dot_general":
            forward = self._forward.setdefault(self._line, [])
            if is_backward(equation):
                spec = _gradient_spec(equation, later, forward)
                call = functools.partial(self._bind, equation, spec=spec)
            else:
                forward += zip(equation.invars, operands, strict=True)
        return self.tried(equation, operands, call, self._edits)

    def _bind(self, equation: Any, operands: Sequence[Any], spec: Any = None) -> Any:
        primitive, params = equation.primitive, dict(equation.params)
        name = primitive.name
        if self.mesh is None:
            if name in ("psum", "psum_invariant"):  # which of them is in the types
                return [jax.lax.psum(operands[0], params["axes"])]
            # As jax's own functions do before they bind an operation.
            named = params.get("axis_name", ())
            axes = frozenset((named,) if isinstance(named, str) else named)
            axes = axes.union(*map(varying_axes, operands))
            if name != "pvary":
                operands = [self.like(operand, axes) for operand in operands]
        for key in ("sharding", "out_sharding", "dst_sharding"):
            given = getattr(params.get(key), "spec", None)
            if self.mesh is not None and given is not None:
                params[key] = named_sharding(self.mesh, spec_of(given))
                if is_backward(equation) and key != "dst_sharding":
                    params[key] = None  # jax derived it, from other types
        if spec is not None:
            assert self.mesh is not None  # only there products have specs
            params[_TOLD[name]] = named_sharding(self.mesh, spec)
        if self.mesh is not None and name == "sharding_constraint":  # it compares only
            return [jax.lax.with_sharding_constraint(operands[0], params["sharding"])]
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
        return [*results] if primitive.multiple_results else [results]

    def tried(
        self, equation: Any, operands: list[Any], call: _Call, edits: Any
    ) -> list[Any]:
        """The results of an operation, edited where jax refuses it."""
        line = self._line  # before operations in its body
        try:
            return call(operands)
        except Unanswered:
            raise
        # jax refuses with TypeError, ValueError and classes of its own. It is noted with
        # its message, and raised from where no edit is accepted.
        except Exception as error:  # noqa: BLE001
            refused = error
        number = self._noted(equation, line, operands, refused)
        accepted: dict[TypeEdit, _Call] = {}
        for edit, edited in edits(equation, operands, call):
            try:
                # Apart, so that what is tried leaves nothing in the program.
                jax.eval_shape(edited, operands)
            # This edit is refused, too, and so is none to propose.
            except Exception:  # noqa: BLE001
                continue
            accepted.setdefault(edit, edited)
            if len(accepted) == _MOST_EDITS:
                break
        noted = self.refusals[number]
        self.refusals[number] = replace(noted, edits=noted.edits or tuple(accepted))
        if not accepted:
            raise Unanswered from refused
        chosen = min(self.chosen.get(number, 0), len(accepted) - 1)
        return [*accepted.values()][chosen](operands)

    def _noted(self, equation: Any, line: str, operands: Any, error: Exception) -> int:
        said, types = str(error).strip(), []
        number = self._numbers.setdefault((id(equation), said), len(self.refusals))
        if number == len(self.refusals):
            types = tuple(str(jax.typeof(operand)) for operand in operands)
            name, backward = equation.primitive.name, is_backward(equation)
            self.refusals.append(
                TypeRefusal(name, line, types, said, backward=backward)
            )
        return number

    def _edits(
        self, equation: Any, operands: list[Any], call: _Call
    ) -> Iterator[tuple[TypeEdit, _Call]]:
        name, specs = equation.primitive.name, [*map(self.type, operands)]
        if self.mesh is None:
            return
        if name == "sharding_constraint":
            wanted = spec_of(equation.params["sharding"].spec)
            yield self.changed({0: wanted}, lambda operands: [*operands])
            return
        results = _result_specs(equation, operands, specs)
        if name in _TOLD:
            for spec in results:
                edit = TypeEdit("out_sharding", ("result", 0), spec)
                yield edit, functools.partial(call, spec=spec)
        for number, own in enumerate(specs):
            others = [s for s in specs if s.rank == own.rank]
            others += [_without(own, axis) for axis in own.axes]
            for spec in (*others, Spec().of_rank(own.rank)):
                if spec != own:
                    yield self.changed({number: spec}, call)
        for axis in {axis for spec in specs for axis in spec.axes}:
            yield self.changed(
                {i: _without(s, axis) for i, s in enumerate(specs)}, call
            )
        if name not in _TOLD and len(equation.outvars) == 1:
            for spec in results:
                sharding = named_sharding(self.mesh, spec)
                run = jax.sharding.auto_axes(
                    lambda *o: call(o)[0], out_sharding=sharding
                )
                edit = TypeEdit("auto_axes", ("result", 0), spec)
                yield edit, lambda operands, run=run: [run(*operands)]

    def changed(
        self, types: Mapping[int, _Type], call: _Call, carry: int | None = None
    ) -> tuple[TypeEdit, _Call]:
        """An edit that gives operands other types, and what makes it.

        Args:
            types: number of an operand to its new type.
            call: gives the results for the changed operands.
            carry: the operand at which the carry of a loop begins; None for no loop.
        """

        def edited(operands: Sequence[Any]) -> list[Any]:
            new = [self.like(o, types.get(i)) for i, o in enumerate(operands)]
            return call(new)

        number = next(iter(types))
        if carry is None:
            return self.edit("operand", number, types[number]), edited
        return self.edit("carry", number - carry, types[number]), edited

    def edit(self, kind: str, number: int, type_: _Type) -> TypeEdit:
        """The edit that gives something a type."""
        if isinstance(type_, Spec):
            return TypeEdit("reshard", (kind, number), type_)
        return TypeEdit("pcast", (kind, number), None, tuple(sorted(type_)))

    def like(self, value: Any, type_: _Type | None) -> Any:
        """A value with another type; as it is for None."""
        if isinstance(type_, Spec):
            assert self.mesh is not None  # only there a type is a spec
            if self.type(value) != type_.of_rank(value.ndim):
                value = jax.sharding.reshard(value, named_sharding(self.mesh, type_))
        elif missing := frozenset(type_ or ()) - varying_axes(value):
            value = jax.lax.pcast(value, tuple(sorted(missing)), to="varying")
        return value

    def type(self, value: Any) -> Any:
        """The type of a value."""
        if self.mesh is None:
            return varying_axes(value)
        aval = jax.typeof(value)
        return spec_of(aval.sharding.spec).of_rank(aval.ndim)


class _Loop:
    """A `scan` or `while`, whose carry must keep its type."""

    def __init__(self, types: TypedEvaluation, equation: Any) -> None:
        self.types, self.params, self.equation = types, equation.params, equation
        self.after: list[Any] = []  # the types of the carry after a step
        self.is_scan = equation.primitive.name == "scan"
        self.asked = 0 if self.is_scan else self.params["cond_nconsts"]
        if self.is_scan:
            self.first, count = scan_counts(equation)
        else:
            self.first = self.asked + self.params["body_nconsts"]
            count = len(equation.invars) - self.first
        self.end = self.first + count

    def call(self, operands: Sequence[Any], kept: Sequence[Any] = ()) -> list[Any]:
        """The results; `kept` has types that each step gives to its carry."""
        params, count = self.params, self.end - self.first
        body = params["jaxpr" if self.is_scan else "body_jaxpr"]

        def step(carry: Any, x: Any) -> Any:
            consts = operands[self.asked : self.first]
            outs = self.types.run(body, *consts, *carry, *x)
            self.after = [self.types.type(out) for out in outs[:count]]
            for i, type_ in enumerate(kept):
                outs[i] = self.types.like(outs[i], type_)
            return outs[:count], outs[count:]

        def goes_on(carry: Any) -> Any:
            consts = operands[: self.asked]
            return self.types.run(params["cond_jaxpr"], *consts, *carry)[0]

        init = [*operands[self.first : self.end]]
        if not self.is_scan:
            return jax.lax.while_loop(goes_on, lambda carry: step(carry, ())[0], init)
        options = {key: params[key] for key in ("length", "reverse", "unroll")}
        last, ys = jax.lax.scan(step, init, operands[self.end :], **options)
        return [*last, *ys]

    def edits(self, equation: Any, operands: Any, call: _Call) -> Any:
        """Other types for what a scan goes through, or for the carry."""

        # After one edit another may be needed: what changes one value of the carry may
        # change others a step later.
        def again(operands: list[Any]) -> list[Any]:
            return self.types.tried(equation, operands, self.call, self.edits)

        types = [*map(self.types.type, operands)]
        for number, own in enumerate(types[self.end :], self.end):
            if self.types.mesh is not None and own.dims[0]:
                rest = Spec(((), *own.dims[1:]))
                yield self.types.changed({number: rest}, again)
        before = types[self.first : self.end]
        moved = {i: t for i, t in enumerate(self.after) if t != before[i]}
        if moved:
            new = {self.first + i: type_ for i, type_ in moved.items()}
            yield self.types.changed(new, again, self.first)
            if self.types.mesh is not None:
                number = next(iter(moved))
                edit = self.types.edit("body", number, before[number])
                yield edit, functools.partial(self.call, kept=before)


class _Cond:
    """A `cond`, whose branches must have results of the same types."""

    def __init__(self, types: TypedEvaluation, equation: Any) -> None:
        self.types, self.bodies = types, equation.params["branches"]
        self.results: dict[int, list[Any]] = {}  # the types of each branch's

    def call(self, operands: Sequence[Any], wanted: Sequence[Any] = ()) -> list[Any]:
        """The results; `wanted` has types that each branch gives to its results."""

        def branch(number: int, *inputs: Any) -> list[Any]:
            outs = self.types.run(self.bodies[number], *inputs)
            self.results.setdefault(number, [*map(self.types.type, outs)])
            for i, type_ in enumerate(wanted):
                outs[i] = self.types.like(outs[i], type_)
            return outs

        branches = [functools.partial(branch, n) for n in range(len(self.bodies))]
        return jax.lax.switch(operands[0], branches, *operands[1:])

    def edits(self, *_: Any) -> Any:
        """The types of each branch, for all of them."""
        targets = [*self.results.values()]
        if self.types.mesh is None:  # what varies in one of them varies in all
            rows = zip(*targets, strict=True)
            targets = [[frozenset[str]().union(*row) for row in rows]]
        for target in targets:
            for number, own in self.results.items():
                differ = [
                    type_
                    for type_, mine in zip(target, own, strict=True)
                    if type_ != mine
                ]
                if differ:
                    edit = self.types.edit("branch", number, differ[0])
                    yield edit, functools.partial(self.call, wanted=target)


class _ShardMap:
    """A `shard_map`, with types in its body, or around it."""

    def __init__(self, types: TypedEvaluation, equation: Any) -> None:
        self.types, self.params = types, equation.params
        self.inside = types.mesh is None

    def call(self, operands: Sequence[Any], checked: bool = True) -> list[Any]:
        """The results; not `checked` without types in its body."""
        params = self.params
        body = jaxpr_as_fun(ClosedJaxpr(params["jaxpr"], ()))
        if self.inside and checked:
            body = functools.partial(self.types.run, params["jaxpr"])
        run = jax.shard_map(
            lambda *shards: [*body(*shards)],
            mesh=params["mesh"] if self.inside else self.types.mesh,
            in_specs=tuple(params["in_specs"]),
            out_specs=[*params["out_specs"]],
            axis_names={*params["newly_manual_axes"]},
            check_vma=checked if self.inside else params["check_vma"],
        )
        return [*run(*operands)]

    def edits(self, *_: Any) -> Any:
        """Arguments split as `in_specs` say; no check inside."""
        if self.inside:
            edit = TypeEdit("check_vma", ("result", 0))
            yield edit, functools.partial(self.call, checked=False)
        else:
            specs = dict(enumerate(map(spec_of, self.params["in_specs"])))
            yield self.types.changed(specs, self.call)


def _without(spec: Spec, axis: str) -> Spec:
    return Spec(tuple(tuple(a for a in dim if a != axis) for dim in spec.dims))


def _result_specs(equation: Any, operands: Any, specs: Sequence[Spec]) -> list[Spec]:
    """Specs for the result of an operation, the most natural first."""
    rank, found = equation.outvars[0].aval.ndim, []
    if equation.primitive.name == "dot_general":
        inner, batched = equation.params["dimension_numbers"]
        kept, taken = [specs[0].dims[d] for d in batched[0]], set[str]()
        for spec, summed, batch in zip(specs, inner, batched, strict=True):
            for d, axes in enumerate(spec.dims):
                if d not in (*summed, *batch):
                    # An axis splits a result once.
                    kept.append(tuple(axis for axis in axes if axis not in taken))
                    taken.update(axes)
        found.append(Spec(tuple(kept)))
    for operand, spec in zip(operands, specs, strict=True):
        if operand.shape == equation.outvars[0].aval.shape:
            found.append(spec)
    axes = sorted({axis for spec in specs for axis in spec.axes})
    for places in itertools.product([*range(rank), None], repeat=len(axes)):
        dims: list[tuple[str, ...]] = [()] * rank
        for axis, place in zip(axes, places, strict=True):
            if place is not None:
                dims[place] += (axis,)
        found.append(Spec(tuple(dims)))
        if len(found) == _MOST_SPECS:
            break
    return [*dict.fromkeys([*found, Spec().of_rank(rank)])]


def _gradient_spec(equation: Any, later: Sequence[Any], forward: Any) -> Spec | None:
    """How jax splits the product of a gradient; None where that is not known.

    As `_dot_general_transpose_lhs` of jax: like the operand of the forward product that
    it is the gradient of, before it is transposed to its dimensions.

    Args:
        equation: the product.
        later: the operations after it.
        forward: variables and values, the operands of the forward product.
    """
    shape, alike = equation.outvars[0].aval.shape, []
    order = range(len(shape))
    if later and later[0].primitive.name == "transpose":
        if later[0].invars == equation.outvars:
            order = later[0].params["permutation"]
    for variable, operand in forward:
        if [*operand.shape] == [shape[d] for d in order]:
            alike.append((variable not in equation.invars, operand))
    if not alike:
        return None
    own = spec_of(jax.typeof(max(alike, key=lambda pair: pair[0])[1]).sharding.spec)
    padded = own.padded(len(shape))
    return Spec(tuple(padded[[*order].index(d)] for d in range(len(shape))))
