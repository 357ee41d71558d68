"""Records the calls in a program that may constrain an array, while jax traces it.

Python reports the calls (`watching.py`), so it doesn't matter under which name a
function was imported. flax, jax and the user's module stay unchanged.

An array counts as constrained unless the call returns the same object. Why it was not
constrained is derived from the rules, the mesh and the fallback, in the order of the
checks in `flax.linen.spmd.with_logical_constraint`.

If jax has cached the trace of a nested function, it doesn't call that function again.
We then use the calls recorded during that trace. Calls in functions that jax traced
before the first plan are unknown.
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
from shardviz.programs.backend.jaxprs import (
    distinct_operations,
    plain_jaxpr,
    users_line,
)
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
# Watched functions, by module and name. flax functions are watched if flax is imported.
_WATCHED = (
    *CONSTRAINT_FUNCTIONS,
    ("flax.linen.spmd", LOGICAL),
    ("flax.core.spmd", "shard_value"),
)
# Replaces the result of a call that raised an exception.
_RAISED = object()
# Constraint calls of traced functions, by the function's file and line, from the last
# plan that traced it. jax may cache the jaxprs for the lifetime of the process.
_recorded: dict[str, tuple[Constraint, ...]] = {}


@dataclass(eq=False)
class _Call:
    """A call that has begun, with its arguments and the rules in force."""

    frame: FrameType
    name: str
    arguments: Sequence[Any]
    source: str
    boxed: bool
    rules: Any
    inner: list[tuple[_Call, Any]] = field(default_factory=list)


class ConstraintCalls(CallListener):
    """The constraint calls of one program, in call order.

    Attributes:
        found: one Constraint per call and array.
        unknown: a sentence on why some calls are unknown; `""` if all are known.
        raised: the last call if it raised an exception; otherwise None.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.found: list[Constraint] = []
        self.unknown = ""
        self.raised: Constraint | None = None
        self._open: list[_Call] = []
        self._bottom: FrameType | None = None
        # Line of each traced function -> False if jax only needed its result shapes.
        self._traced: dict[str, bool] = {}
        # Maps each function's line to its calls, including traces for shapes only.
        self._calls: dict[str, list[Constraint]] = {}

    def begin(self) -> None:
        """Discards the calls of an earlier attempt to trace the program."""
        self._reset()
        self._bottom = sys._getframe(1)

    def end(self) -> None:
        """Ends the recording. Calls that have not returned raised an exception."""
        self._leave_until(None)
        self._bottom = None

    def watched(self) -> dict[str, CodeType]:
        """Returns the code of the watched functions that are imported now, by name."""
        codes = {}
        for module, name in _present():
            fn = function_of(module, name)
            if fn is None:
                self.unseen(str(FunctionReplaced(f"{module}.{name}")))
            else:
                codes[name] = fn.__code__
        return codes

    def unseen(self, words: str) -> None:
        """Records why some calls are unknown."""
        self.unknown = self.unknown or words
        self._open.clear()

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """Called when a watched function begins."""
        if name == TRACE_BEGINS:
            line = traced_line(arguments[1])
            # jax's own functions make no constraint calls, so they count as traced.
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
        """Called when a watched function returns."""
        if any(call.frame is frame for call in self._open):
            while self._open[-1].frame is not frame:
                self._close(_RAISED)
            self._close(value)

    def _leave_until(self, frame: FrameType | None) -> None:
        """Closes the open calls that don't enclose `frame`: an exception ended them."""
        while self._open:
            around = None if frame is None else frame.f_back
            while around is not None and around is not self._open[-1].frame:
                around = around.f_back
            if around is not None:
                return
            self._close(_RAISED)

    def _close(self, value: Any) -> None:
        """Closes the innermost open call, which returned `value` or raised."""
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
        """Returns lines of enclosing functions, and whether jax needs only shapes."""
        lines, for_shapes = set(), False
        inside, around = frame, frame.f_back
        while around is not None and around is not self._bottom:
            code = around.f_code
            lines.add(f"{code.co_filename}:{code.co_firstlineno}")
            for_shapes |= wants_shapes_alone(inside, around)
            inside, around = around, around.f_back
        return lines, for_shapes

    def add_kept(self, jaxpr: AnyJaxpr) -> None:
        """Adds calls in cached traces of nested functions, and saves all calls by line.

        Args:
            jaxpr: the program's jaxpr.
        """
        added = set(map(id, self.found))
        visited = set()  # ids of jaxprs, because a function may be called several times
        for operation in distinct_operations(jaxpr):
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
        """Returns the calls recorded in an earlier trace of a function."""
        constrained = set()
        for operation in distinct_operations(jaxpr):
            if operation.name in ("sharding_constraint", "reshard"):
                constrained.add(users_line(operation.equation))
        calls = self._calls.get(line)
        if calls is None:
            calls = _recorded.get(line)
        if self._traced.get(line):
            # The function made no calls in this trace, or jax reused an earlier trace
            # for a gradient.
            unknown = any(not call.acts for call in calls or ())
            calls = [call for call in calls or () if call.acts]
        else:
            # A call without effect leaves nothing in the jaxpr. Only flax has such
            # calls.
            silent = _written(line) and "flax.linen.spmd" in sys.modules
            missing = constrained.difference(call.source for call in calls or ())
            unknown = bool(missing) or (calls is None and silent)
        if unknown:
            file, _, number = line.rpartition(":")
            at = line_in_words(file, int(number)) if number.isdigit() else ""
            self.unseen(str(TracedBefore(at)))
        # The jaxpr may have only some of the function's operations, as in a gradient.
        return [c for c in calls or () if not c.acts or c.source in constrained]


def _written(line: str) -> bool:
    """True if a function, given by file and line, is the user's or flax's."""
    file = line.rpartition(":")[0]
    return is_user_file(file) or "/flax/" in file


def _present() -> list[tuple[str, str]]:
    """Returns the watched functions that are imported now, by module and name."""
    return [(m, name) for m, name in _WATCHED if hasattr(sys.modules.get(m), name)]


def _users_line(frame: FrameType) -> str:
    around = frame.f_back
    while around is not None:
        if is_user_file(around.f_code.co_filename):
            return line_in_words(around.f_code.co_filename, around.f_lineno)
        around = around.f_back
    return ""


# --- converting calls to Constraints --------------------------------------------------


def _described(call: _Call, value: object) -> list[Constraint]:
    if call.name == LOGICAL:
        return _logical(call, value)
    if call.name == "shard_value":
        return _variable(call, value)
    return _plain(call, value)


def _logical(call: _Call, value: object) -> list[Constraint]:
    """Describes a `with_logical_constraint` of flax: one Constraint per array."""
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
        # Keep only the array that caused the error.
        unmatched = [c for c in constraints if c.problem or undecided(c)]
        constrained = [c for c in constraints if c.spec is not None]
        return (unmatched or constrained or constraints)[:1]
    return constraints


def _why_not(call: Constraint, has_rules: bool) -> str:
    """Returns the reason why flax didn't constrain an array."""
    if not has_rules:
        return NO_RULES
    if call.names is None:
        return IDENTITY
    if call.fallback == "NO_CONSTRAINT" and undecided(call):
        return FALLBACK
    return NO_MESH if call.mesh is None else IDENTITY


def _variable(call: _Call, value: object) -> list[Constraint]:
    """Describes the creation of an nnx Variable with an `out_sharding`."""
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
    """Describes a `with_sharding_constraint` or `reshard`: one Constraint per array."""
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
    """Returns the Constraint fields for the rules and mesh of a flax call."""
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
    """True if `flax.linen.spmd` accepts a value as the logical names of one array."""
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
    """Pairs each array of a call with its entry in a prefix tree and its result."""
    entries, tree = jax.tree.flatten(prefix, is_leaf=is_leaf)
    try:
        subtrees = tree.flatten_up_to(x)
    except ValueError:  # the call itself raises this error, too
        subtrees, entries = [x], [None]
    leaves = []
    for subtree, entry in zip(subtrees, entries, strict=True):
        leaves += [(leaf, entry) for leaf in jax.tree.leaves(subtree)]
    results = [_RAISED] * len(leaves)
    if value is not _RAISED:
        results = jax.tree.leaves(value)
    return [(*leaf, result) for leaf, result in zip(leaves, results, strict=False)]


def _inner_call(call: _Call, leaf: object, result: object) -> _Call | None:
    """Finds the jax constraint call that a flax call made for one of its arrays."""
    for inner, value in call.inner:
        # Compared by identity, because `==` on arrays compares their elements.
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
    """Returns the spec in a PartitionSpec, NamedSharding or Format; otherwise None."""
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
    """Records the constraint calls of programs traced inside with `traced_with_calls`.

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
    """Calls `trace`, and records its constraint calls if inside `recorded_calls`.

    Args:
        trace: traces a program. It is called again if it imports flax, because flax's
            functions were not watched before.
        jaxpr_of: extracts the jaxpr from the result of `trace`.
        listeners: further listeners.
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
