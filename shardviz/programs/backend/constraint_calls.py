"""Records the calls in a program that may constrain an array, while jax traces it.

Python reports the calls (`watching.py`), for any name that a function was imported as.
Neither flax nor jax nor the user's module is changed.

An array is constrained unless the call returns the very object that it was given. The
reason is derived from the rules, the mesh and the fallback, in the order of the checks
in `flax.linen.spmd.with_logical_constraint`.

jax does not call a nested function again that it has traced before. Then the calls are
used that were recorded for that trace. Calls in functions that jax traced before the
first plan are unknown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.libraries import spec_of
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.base.backend.jax_compat import (
    CONSTRAINT_FUNCTIONS,
    OWN_CALLERS,
    TRACE_BEGINS,
    function_of,
    traced_line,
    wants_shapes_alone,
)
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.base.typing import PyTree
from shardviz.programs.backend.bridge import adopt_mesh
from shardviz.programs.backend.jaxprs import operations, plain_jaxpr, users_line
from shardviz.programs.backend.mesh_context import logical_rules, mesh_context
from shardviz.programs.backend.watching import CallListener, watched
from shardviz.programs.constraints import (
    CONSTRAINED,
    ERROR,
    FALLBACK,
    IDENTITY,
    LOGICAL,
    NO_MESH,
    NO_RULES,
    UNBOX,
    VARIABLE,
    Constraint,
    undecided,
)
from shardviz.programs.notes import FunctionReplaced, TracedBefore

if TYPE_CHECKING:
    from shardviz.programs.backend.jaxpr_names import AnyJaxpr

T = TypeVar("T")
# The functions, by module and name. Those of flax are watched if flax is imported.
_WATCHED = (
    *CONSTRAINT_FUNCTIONS,
    ("flax.linen.spmd", LOGICAL),
    ("flax.core.spmd", "shard_value"),
)
_RAISED = object()  # in place of a result, if the function raised an exception
# The calls of traced functions in the last plan that traced them, by file and line. jax
# may keep their jaxprs for the lifetime of the process.
_recorded: dict[str, tuple[Constraint, ...]] = {}


@dataclass(eq=False)
class _Call:
    """A call that has begun: its arguments, and the rules in force."""

    frame: FrameType
    name: str
    arguments: Sequence[Any]
    source: str
    boxed: bool
    rules: Any
    inner: list[tuple[_Call, Any]] = field(default_factory=list)


class ConstraintCalls(CallListener):
    """The constraint calls of one program, in the order in which it makes them.

    Attributes:
        found: one Constraint per call and array.
        unknown: a sentence why some calls of this program are unknown; `""` if all are
            known.
        raised: the last call, if it raised an exception; else None.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.found: list[Constraint] = []
        self.unknown = ""
        self.raised: Constraint | None = None
        self._open: list[_Call] = []
        self._bottom: FrameType | None = None
        # The functions that jax traced, by line; False if only for the shapes of their
        # results.
        self._traced: dict[str, bool] = {}
        # The calls of each function, by its line, also of traces for shapes alone.
        self._calls: dict[str, list[Constraint]] = {}

    def begin(self) -> None:
        """Forgets the calls of an earlier attempt to trace the program."""
        self._reset()
        self._bottom = sys._getframe(1)

    def end(self) -> None:
        """Ends the recording. Calls that have not returned were left by an exception."""
        self._leave_until(None)
        self._bottom = None

    def watched(self) -> dict[str, CodeType]:
        """The functions that are imported now, by name."""
        codes = {}
        for module, name in _present():
            fn = function_of(module, name)
            if fn is None:
                self.unseen(str(FunctionReplaced(f"{module}.{name}")))
            else:
                codes[name] = fn.__code__
        return codes

    def unseen(self, words: str) -> None:
        """Records why calls cannot be seen."""
        self.unknown = self.unknown or words
        self._open.clear()

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """One of the watched functions begins."""
        if name == TRACE_BEGINS:
            line = traced_line(arguments[1])
            # jax's own functions make no calls that a cached trace would hide.
            if not self._traced.get(line):
                self._traced[line] = not _written(line) or not self._around(frame)[1]
            return
        self._leave_until(frame)
        caller, module, caller_name = frame.f_back, "", ""
        if caller is not None:
            module = str(caller.f_globals.get("__name__", ""))
            caller_name = caller.f_code.co_name
        if not self._open and module in OWN_CALLERS:
            return
        self.raised = None
        boxed = caller_name == "unbox" and "flax" in module
        source, rules = _users_line(frame), logical_rules()
        self._open.append(_Call(frame, name, arguments, source, boxed, rules))

    def returned(self, frame: FrameType, value: Any) -> None:
        """One of the watched functions returns."""
        if any(call.frame is frame for call in self._open):
            while self._open[-1].frame is not frame:
                self._close(_RAISED)
            self._close(value)

    def _leave_until(self, frame: FrameType | None) -> None:
        """Ends the calls that are not around this frame; an exception has left them."""
        while self._open:
            around = None if frame is None else frame.f_back
            while around is not None and around is not self._open[-1].frame:
                around = around.f_back
            if around is not None:
                return
            self._close(_RAISED)

    def _close(self, value: Any) -> None:
        """Ends the innermost call, which returned a value or raised."""
        call = self._open.pop()
        if self._open:
            self._open[-1].inner.append((call, value))
            return
        calls = _described(call, value)
        lines, for_shapes = self._around(call.frame)
        for line in lines:
            self._calls.setdefault(line, []).extend(calls)
        if value is _RAISED and calls:
            self.raised = calls[-1]
        if value is _RAISED or not for_shapes:
            self.found += calls

    def _around(self, frame: FrameType) -> tuple[set[str], bool]:
        """The lines of the functions around a call; True if it is for shapes alone."""
        lines, for_shapes = set(), False
        inside, around = frame, frame.f_back
        while around is not None and around is not self._bottom:
            code = around.f_code
            lines.add(f"{code.co_filename}:{code.co_firstlineno}")
            for_shapes |= wants_shapes_alone(inside, around)
            inside, around = around, around.f_back
        return lines, for_shapes

    def add_kept(self, jaxpr: AnyJaxpr) -> None:
        """Adds the calls of nested functions whose traces jax cached, and records all.

        Args:
            jaxpr: the program.
        """
        added = set(map(id, self.found))
        visited = set()  # by id: a nested function may be called in several places
        for operation in operations(jaxpr):
            for inner in map(plain_jaxpr, operation.inner):
                line = traced_line(getattr(inner, "debug_info", None))
                is_recorded = self._traced.get(line) and line in self._calls
                if id(inner) in visited or is_recorded:
                    continue
                visited.add(id(inner))
                for call in self._calls_of(line, inner):
                    if id(call) not in added:
                        added.add(id(call))
                        self.found.append(call)
        for line in self._traced:
            if line in self._calls:
                _recorded[line] = tuple(self._calls[line])
            elif _written(line):
                _recorded.setdefault(line, ())

    def _calls_of(self, line: str, jaxpr: AnyJaxpr) -> list[Constraint]:
        """The calls of a function in an earlier trace."""
        constrained = set()
        for operation in operations(jaxpr):
            if operation.name in ("sharding_constraint", "reshard"):
                constrained.add(users_line(operation.equation))
        calls = self._calls.get(line)
        if calls is None:
            calls = _recorded.get(line)
        if self._traced.get(line):
            # It was traced again without a call, or jax used its trace for a gradient.
            unknown = any(not call.acts for call in calls or ())
            calls = [call for call in calls or () if call.acts]
        else:
            # A call that does nothing is not in the jaxpr. Only flax has such calls.
            silent = _written(line) and "flax.linen.spmd" in sys.modules
            missing = constrained.difference(call.source for call in calls or ())
            unknown = bool(missing) or (calls is None and silent)
        if unknown:
            file, _, number = line.rpartition(":")
            at = line_in_words(file, int(number)) if number.isdigit() else ""
            self.unseen(str(TracedBefore(at)))
        # A gradient, for instance, has a part of the function alone.
        return [c for c in calls or () if not c.acts or c.source in constrained]


def _written(line: str) -> bool:
    """True if a function is the user's or flax's, by its file and line."""
    file = line.rpartition(":")[0]
    return is_user_file(file) or "/flax/" in file


def _present() -> list[tuple[str, str]]:
    """The watched functions that are imported now, by module and name."""
    return [(m, name) for m, name in _WATCHED if hasattr(sys.modules.get(m), name)]


def _users_line(frame: FrameType) -> str:
    around = frame.f_back
    while around is not None:
        if is_user_file(around.f_code.co_filename):
            return line_in_words(around.f_code.co_filename, around.f_lineno)
        around = around.f_back
    return ""


# Calls as Constraints.


def _described(call: _Call, value: object) -> list[Constraint]:
    if call.name == LOGICAL:
        return _logical(call, value)
    if call.name == "shard_value":
        return _variable(call, value)
    return _plain(call, value)


def _logical(call: _Call, value: object) -> list[Constraint]:
    """The arrays of flax's `with_logical_constraint`, in the order of its checks."""
    x, names, rules, mesh, fallback = call.arguments
    rules = call.rules if rules is None else rules
    basis = Constraint(
        UNBOX if call.boxed else LOGICAL,
        call.source,
        fallback=getattr(fallback, "name", str(fallback)),
        **_in_force(rules, mesh),
    )
    constraints = []
    for leaf, leaf_names, result in _paired(x, names, value, _is_names):
        constraint = replace(basis, shape=_shape(leaf), names=_entries(leaf_names))
        constraint = _resolved(constraint, Dialect.LINEN)
        inner = _inner_call(call, leaf, result)
        effect = _effect(leaf, result)
        spec = None
        if inner is not None:
            spec = _sharding_spec(inner.arguments[1])
        elif effect == IDENTITY:
            effect = _why_not(constraint, bool(rules))
        constraints.append(replace(constraint, effect=effect, spec=spec))
    if value is _RAISED:
        # Only the array that the error is about.
        unmatched = [c for c in constraints if c.problem or undecided(c)]
        constrained = [c for c in constraints if c.spec is not None]
        return (unmatched or constrained or constraints)[:1]
    return constraints


def _why_not(call: Constraint, has_rules: bool) -> str:
    """Why flax did not constrain an array."""
    if not has_rules:
        return NO_RULES
    if call.names is None:
        return IDENTITY
    if call.fallback == "NO_CONSTRAINT" and undecided(call):
        return FALLBACK
    return NO_MESH if call.mesh is None else IDENTITY


def _variable(call: _Call, value: object) -> list[Constraint]:
    """The array of an nnx Variable with an `out_sharding`."""
    x, sharding, variable_rules, mesh = call.arguments
    names = getattr(getattr(sharding, "sharding", sharding), "spec", sharding)
    # nnx appends the variable's own rules to those of the context.
    rules = (*(call.rules or ()), *(variable_rules or ()))
    in_force = _in_force(rules, mesh or getattr(sharding, "mesh", None))
    constraint = Constraint(
        VARIABLE, call.source, _shape(x), _entries(names), **in_force
    )
    constraint = _resolved(constraint, Dialect.NNX)
    inner = _inner_call(call, x, value)
    spec = None if inner is None else _sharding_spec(inner.arguments[1])
    return [replace(constraint, effect=_effect(x, value), spec=spec)]


def _plain(call: _Call, value: object) -> list[Constraint]:
    """The arrays of `jax.lax.with_sharding_constraint` or `jax.sharding.reshard`."""
    x, shardings = call.arguments[:2]
    context = mesh_context()
    is_leaf = lambda v: v is None or isinstance(v, PartitionSpec)  # noqa: E731
    constraints = []
    for leaf, sharding, result in _paired(x, shardings, value, is_leaf):
        mesh = context.sees(call.name)
        if isinstance(sharding, NamedSharding):
            mesh = _adopted(sharding.mesh)
        constraint = Constraint(
            call.name,
            call.source,
            _shape(leaf),
            mesh=mesh,
            effect=_effect(leaf, result),
            spec=_sharding_spec(sharding),
        )
        if call.boxed:
            names = _entries(getattr(sharding, "spec", sharding))
            constraint = replace(constraint, call=UNBOX, names=names)
        constraints.append(constraint)
    return constraints[-1:] if value is _RAISED else constraints


def _in_force(rules: Any, mesh: Any) -> dict[str, Any]:
    """The fields of a Constraint for the rules and the mesh of a call of flax."""
    table, problem = None, ""
    try:
        table = Rules.of(rules) if rules else None
    except ShardvizError as error:
        problem = str(error)
    adopted = _adopted(mesh)
    if mesh is None:
        adopted = mesh_context().sees("flax with_logical_constraint")
    return {"rules": table, "problem": problem, "mesh": adopted}


def _adopted(mesh: object) -> MeshSpec | None:
    if not isinstance(mesh, (Mesh, AbstractMesh)) or mesh.empty:
        return None
    return adopt_mesh(mesh)


def _shape(x: object) -> tuple[int, ...] | None:
    if isinstance(x, (bool, int, float, complex)):
        return ()
    shape = getattr(x, "shape", None)
    return None if shape is None else tuple(shape)


def _resolved(call: Constraint, dialect: NameDialect) -> Constraint:
    if call.rules is None or call.names is None:
        return call
    shape = call.shape
    if shape is not None and len(shape) != len(call.names):
        shape = None  # the names cannot be assigned to dimensions
    try:
        resolution = resolve(
            call.names, call.rules, mesh=call.mesh, shape=shape, dialect=dialect
        )
    except ShardvizError as error:
        return replace(call, problem=str(error))
    return replace(call, resolution=resolution)


def _is_names(value: object) -> bool:
    """True if `flax.linen.spmd` takes a value as the names of one array."""
    if not isinstance(value, (tuple, PartitionSpec)):
        return value is None
    free = PartitionSpec.UNCONSTRAINED
    return all(v is None or isinstance(v, str) or v is free for v in value)


def _entries(names: object) -> tuple[object, ...] | None:
    if isinstance(names, (PartitionSpec, tuple, list)):
        return tuple(names)
    return None


def _paired(
    x: PyTree, prefix: PyTree, value: object, is_leaf: Callable[[Any], bool]
) -> list[tuple[Any, Any, Any]]:
    """Every array of a call with its entry in a prefix tree, and its result."""
    entries, tree = jax.tree.flatten(prefix, is_leaf=is_leaf)
    try:
        parts = tree.flatten_up_to(x)
    except ValueError:  # the call raises it, too
        parts, entries = [x], [None]
    leaves = []
    for part, entry in zip(parts, entries, strict=True):
        leaves += [(leaf, entry) for leaf in jax.tree.leaves(part)]
    results = [_RAISED] * len(leaves)
    if value is not _RAISED:
        results = jax.tree.leaves(value)
    return [(*leaf, result) for leaf, result in zip(leaves, results, strict=False)]


def _inner_call(call: _Call, leaf: object, result: object) -> _Call | None:
    """The call of jax's constraint that a call of flax made for one of its arrays."""
    for inner, value in call.inner:
        # By identity: `==` of arrays compares their elements.
        arguments = set(map(id, jax.tree.leaves(inner.arguments[0])))
        returned = set(map(id, jax.tree.leaves(value)))
        if id(leaf) in arguments and id(result) in returned:
            return inner
    return None


def _effect(x: object, result: object) -> str:
    if result is _RAISED:
        return ERROR
    return IDENTITY if result is x else CONSTRAINED


def _sharding_spec(sharding: object) -> Spec | None:
    """The spec of a PartitionSpec, a NamedSharding or a Format; None for others."""
    sharding = getattr(sharding, "sharding", sharding)
    if sharding is None:
        return Spec()
    spec = getattr(sharding, "spec", sharding)
    if not isinstance(spec, PartitionSpec):
        return None
    try:
        return spec_of(spec)
    except ShardvizError:
        return None


_active: ContextVar[ConstraintCalls | None] = ContextVar(
    "constraint_calls", default=None
)


@contextlib.contextmanager
def recorded_calls() -> Iterator[ConstraintCalls]:
    """Records the constraint calls of programs that `traced_with_calls` traces inside.

    >>> with recorded_calls() as calls:
    ...     jaxpr = traced_with_calls(lambda: jax.make_jaxpr(abs)(1.0), lambda j: j)
    >>> calls.found
    []
    """
    calls = ConstraintCalls()
    token = _active.set(calls)
    try:
        yield calls
    finally:
        _active.reset(token)


def traced_with_calls(
    trace: Callable[[], T],
    jaxpr_of: Callable[[T], AnyJaxpr],
    listeners: Sequence[CallListener] = (),
) -> T:
    """Calls `trace`, and records constraint calls within `recorded_calls`.

    Args:
        trace: traces a program. It is called again if it imports flax, whose functions
            were not watched before.
        jaxpr_of: returns the jaxpr of the result of `trace`.
        listeners: other listeners for calls.
    """
    calls = _active.get()
    if calls is None:
        return watched(trace, listeners)
    while True:
        present = _present()
        calls.begin()
        try:
            traced = watched(trace, (calls, *listeners))
        finally:
            calls.end()
        if _present() == present:
            break
    calls.add_kept(jaxpr_of(traced))
    return traced
