"""One signature of a function under `sharded_jit`: how each array is split, over how many devices.

Nothing here looks for devices. The function is traced once without any, to see what it returns
and what its constraints ask for: `with_sharding_constraint(x, parts)` becomes jax's own constraint
over a mesh of integer parts, so it works in loops, gradients and nested jits, and can be found in a
jaxpr.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any

from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program
from shardviz.legacy.partitions import (
    Partition,
    Parts,
    flat_parts,
    is_prime_power,
    mesh_over,
    mesh_sizes,
    spec_over,
)

if TYPE_CHECKING:
    import jax
import contextlib
import contextvars
import math
from collections.abc import Iterator

from shardviz.core.errors import import_optional
from shardviz.legacy.partitions import (
    is_partition,
    is_parts_mesh,
)

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, NamedSharding

# Only says whether a sharded_jit is being traced, so that a call outside of one can be refused.
# What a constraint means must not depend on it: jax keeps what it traced of inner functions.
_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("inside_sharded_jit", default=False)


@dataclass(frozen=True)
class ConstraintRequest:
    """What a constraint or a nested sharded_jit inside a program asks for.

    Attributes:
        what: how it was written.
        parts: the Parts; None for a value that is replicated.
        count: over how many devices.
    """

    what: str
    parts: Partition
    count: int


def with_sharding_constraint(x: Any, parts: Parts | None) -> Any:
    """`x`, split as `parts` says, in the middle of a function under `sharded_jit`.

    Args:
        x: an array; for a tree of them, `jax.tree.map` over it.
        parts: one number for each dimension, or None for a replicated array.

    Raises:
        ShardvizError: outside of `sharded_jit`, for parts that do not fit `x`, and where jax is
            not installed.

    >>> import jax
    >>> jax.jit(lambda x: with_sharding_constraint(x, Parts(1)) + 1)(jax.numpy.zeros(2)).tolist()
    [1.0, 1.0]
    """
    jax = import_optional("jax", "legacy.with_sharding_constraint", "jax")
    from jax.core import Tracer

    if not is_partition(parts):
        raise ProgramError(
            f"with_sharding_constraint takes legacy.Parts, one number for each dimension, or None;"
            f" got {shown(parts)}. Write legacy.Parts(2, 1)."
        )
    if not (is_inside() or isinstance(x, Tracer)):
        raise ProgramError(
            "with_sharding_constraint(x, parts) only means something inside a function under"
            f" sharded_jit, over whose devices it splits; it was called on {shown(x)}. Call it"
            " there, or lay out an array with jax.device_put(x, NamedSharding(mesh, spec))."
        )
    if not hasattr(x, "shape"):
        if not isinstance(x, (bool, int, float, complex)):
            raise ProgramError(
                f"with_sharding_constraint takes one array; got {shown(x)}. Write"
                " jax.tree.map(lambda a: with_sharding_constraint(a, parts), tree) for a tree."
            )
        x = jax.numpy.asarray(x)
    if parts is not None:
        parts.check(x.shape, "The array in with_sharding_constraint")
    for sharding in _shardings(parts):
        x = jax.lax.with_sharding_constraint(x, sharding)
    return x


def _shardings(parts: Partition) -> list[NamedSharding]:
    """The shardings to apply one after the other; none where the device count is not known."""
    import jax

    from shardviz.core.backend.bridge import abstract_mesh

    around = jax.sharding.get_abstract_mesh()
    ours = is_parts_mesh(around)
    if parts is None:
        return [replicated_on(around)] if ours else []
    spec = spec_over(parts, around.axis_sizes) if ours else None
    if spec is not None:
        wanted = jax.sharding.NamedSharding(around, spec.to_jax())
    else:
        sizes, _ = mesh_sizes(parts.product, [parts])
        own = spec_over(parts, sizes)
        assert own is not None
        wanted = jax.sharding.NamedSharding(abstract_mesh(mesh_over(sizes)), own.to_jax())
    if ours and around.size == parts.product and not is_prime_power(parts.product):
        return [replicated_on(around), wanted, replicated_on(around)]
    return [wanted]


def replicated_on(mesh: AbstractMesh) -> NamedSharding:
    """Replicated: the detour between partitions of which neither refines the other.

    XLA's partitioner (jaxlib 0.12) ends the process when it reshards 2 x 3 parts to 6 x 1.

    >>> from shardviz.core.backend.bridge import abstract_mesh
    >>> replicated_on(abstract_mesh(mesh_over((2, 3)))).spec
    P()
    """
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec())


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Marks that a function under `sharded_jit` is being traced."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def is_inside() -> bool:
    """Whether a function under `sharded_jit` is being traced.

    >>> with inside():
    ...     is_inside()
    True
    """
    return _INSIDE.get()


def constraints_inside(jaxpr: Any) -> Iterator[ConstraintRequest]:
    """What the constraints and nested sharded_jits of a jaxpr ask for, loops and calls included.

    Args:
        jaxpr: a jax Jaxpr or ClosedJaxpr.

    >>> import jax
    >>> f = lambda x: with_sharding_constraint(x, Parts(2, 1))
    >>> [a.parts for a in constraints_inside(jax.make_jaxpr(f)(jax.numpy.zeros((4, 4))))]
    [Parts(2, 1)]
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        params = equation.params
        if equation.primitive.name == "sharding_constraint":
            yield from _requests_in(
                params["sharding"], equation.invars, "with_sharding_constraint(…, {})"
            )
            continue
        for field, variables in (
            ("in_shardings", equation.invars),
            ("out_shardings", equation.outvars),
        ):
            for sharding, variable in zip(params.get(field) or (), variables, strict=False):
                yield from _requests_in(sharding, [variable], "A nested sharded_jit with {}")
        for inner in _inner(params.values()):
            yield from constraints_inside(inner)


def _requests_in(sharding: Any, variables: Any, words: str) -> Iterator[ConstraintRequest]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or not is_parts_mesh(mesh):
        return
    shape = variables[0].aval.shape
    sizes = dict(mesh.shape)
    # What vmap adds is unconstrained, and splits nothing.
    axes = [(s,) if isinstance(s, str) else s for s in sharding.spec]
    counts = [math.prod(sizes[a] for a in s) if isinstance(s, tuple) else 1 for s in axes]
    parts = Parts(*counts, *[1] * (len(shape) - len(counts)))
    found = parts if parts.product == mesh.size else None
    yield ConstraintRequest(words.format(found), found, mesh.size)


def _inner(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _inner(value)
        elif hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            yield value


@dataclass(frozen=True, eq=False)
class PartitionedSignature:
    """The arguments of one call, without their values.

    Attributes:
        statics: the static arguments, by position.
        total: how many positional arguments there are, static ones included.
        tree: the PyTreeDef of the other arguments.
        structs: shape and dtype of every leaf.
        parameters: the function's names for the arguments that are not static.
        names: a name for every leaf.
    """

    statics: tuple[tuple[int, Any], ...]
    total: int
    tree: Any
    structs: tuple[jax.ShapeDtypeStruct, ...]
    parameters: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def key(self) -> Hashable:
        """Equal for two calls that are traced alike."""
        avals = tuple((s.shape, s.dtype, getattr(s, "weak_type", False)) for s in self.structs)
        return self.statics, self.total, self.tree, avals

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the arguments that are not static."""
        static = dict(self.statics)
        return tuple(i for i in range(self.total) if i not in static)

    def merge(self, dynamic: Sequence[Any]) -> tuple[Any, ...]:
        """All positional arguments, from the ones that are not static."""
        every = dict(self.statics) | dict(zip(self.positions, dynamic, strict=True))
        return tuple(every[i] for i in range(self.total))


def read_call(
    fun: Callable[..., Any], args: tuple[Any, ...], static_argnums: tuple[int, ...]
) -> tuple[PartitionedSignature, list[Any]]:
    """The signature of a call, and the leaves of the arguments that are not static.

    Raises:
        ProgramError: for static arguments that are missing or cannot be hashed, and for leaves
            that are no arrays.
    """
    import jax

    from shardviz.core.backend.arguments import parameter_names, path_name

    statics = tuple((i, args[i]) for i in _positions(static_argnums, args))
    for position, value in statics:
        try:
            hash(value)
        except TypeError:
            raise ProgramError(
                f"Argument {position} is static, so it must be hashable, and {shown(value)} is"
                " not. Give a tuple in place of a list, or leave it out of static_argnums."
            ) from None
    static = dict(statics)
    dynamic = tuple(a for i, a in enumerate(args) if i not in static)
    paths, tree = jax.tree_util.tree_flatten_with_path(dynamic)
    every = parameter_names(fun, len(args))
    parameters = tuple(n for i, n in enumerate(every) if i not in static)
    names = tuple(path_name(parameters[p[0].idx], p[1:]) for p, _ in paths)
    leaves = [leaf for _, leaf in paths]
    structs = tuple(map(_struct, names, leaves))
    return PartitionedSignature(statics, len(args), tree, structs, parameters, names), leaves


def _positions(static_argnums: tuple[int, ...], args: tuple[Any, ...]) -> list[int]:
    for number in static_argnums:
        if not -len(args) <= number < len(args):
            raise ProgramError(
                f"static_argnums={static_argnums} makes argument {number} static, and the function"
                f" was called with {plural(len(args), 'positional argument')}. Pass every static"
                " argument, by position."
            )
    return sorted({n % len(args) for n in static_argnums})


def _struct(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
    import jax

    from shardviz.core.backend.bridge import jax_dtype

    if isinstance(leaf, ArraySpec):
        return jax.ShapeDtypeStruct(leaf.shape, jax_dtype(leaf.dtype))
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    try:
        aval: Any = jax.typeof(leaf)
        weak = bool(getattr(aval, "weak_type", False))
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)
    except (TypeError, AttributeError, OverflowError):
        raise ProgramError(
            f"{name} is {shown(leaf)}, which is no array or number. Arguments that are not arrays"
            " or containers of them are static: name their positions in static_argnums."
        ) from None


@dataclass(frozen=True, eq=False)
class PartitionRequest:
    """The arguments of `sharded_jit`.

    Attributes:
        fun: the function.
        in_parts, out_parts: prefixes of the trees of arguments and results.
        count: over how many devices; None where only the function says so.
    """

    fun: Callable[..., Any]
    in_parts: Any
    out_parts: Any
    count: int | None


class PartitionedCall:
    """A function under `sharded_jit`, traced for one signature.

    Attributes:
        request, signature: what it was made from.
        in_parts, out_parts: one Parts or None for each leaf.
        constraints: what constraints inside the function ask for.
        out_tree: the PyTreeDef of the result.
        count: over how many devices it is split.

    Raises:
        ProgramError: where trees, counts or ranks do not fit together.
    """

    def __init__(self, request: PartitionRequest, signature: PartitionedSignature) -> None:
        import jax

        from shardviz.core.backend.arguments import path_name

        self.request, self.signature = request, signature
        self.in_parts = flat_parts(request.in_parts, signature.tree, "in_parts")
        _check(self.in_parts, signature.structs, signature.names)
        dynamic = signature.tree.unflatten(signature.structs)
        jaxpr, shapes = jax.make_jaxpr(self.fn, return_shape=True)(*dynamic)
        self.constraints = tuple(constraints_inside(jaxpr))
        self.count = _reconcile(request.count, self.constraints)
        results, self.out_tree = jax.tree_util.tree_flatten_with_path(shapes)
        self.out_parts = flat_parts(request.out_parts, self.out_tree, "out_parts")
        names = [path_name("output", path) for path, _ in results]
        _check(self.out_parts, [leaf for _, leaf in results], names)

    @cached_property
    def fn(self) -> Callable[..., Any]:
        """The function of the arguments that are not static."""
        signature, fun = self.signature, self.request.fun

        def partial(*dynamic: Any) -> Any:
            with inside():
                return fun(*signature.merge(dynamic))

        update_wrapper(partial, fun, updated=())
        names = [n if n.isidentifier() else f"a{i}" for i, n in enumerate(signature.parameters)]
        kind = inspect.Parameter.POSITIONAL_ONLY
        partial.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(n, kind) for n in names]
        )
        return partial

    @property
    def indirect(self) -> bool:
        """Whether arguments and results are replicated before and after the function, since XLA
        cannot reshard all numbers of devices directly (see `replicated_on`).
        """
        return not is_prime_power(self.count) and len(set(self._partitions) - {None}) > 1

    @cached_property
    def body(self) -> Callable[..., Any]:
        """The function as it is run, traced with the mesh of parts as jax's mesh in context."""
        if not self.indirect:
            return self.fn

        import jax

        def replicate(x: Any) -> Any:
            mesh = jax.sharding.get_abstract_mesh()
            return jax.lax.with_sharding_constraint(x, replicated_on(mesh))

        def with_replicated(*dynamic: Any) -> Any:
            return jax.tree.map(replicate, self.fn(*jax.tree.map(replicate, dynamic)))

        return update_wrapper(with_replicated, self.fn)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The axis sizes of the mesh that fits as many of the parts as one mesh can."""
        return mesh_sizes(self.count, self._partitions)[0]

    @property
    def unfit(self) -> tuple[Parts, ...]:
        """The parts that need a mesh of their own over the same devices."""
        return mesh_sizes(self.count, self._partitions)[1]

    @property
    def _partitions(self) -> tuple[Partition, ...]:
        return (*self.in_parts, *self.out_parts, *(c.parts for c in self.constraints))

    def sizes_and_spec(self, partition: Partition) -> tuple[tuple[int, ...], Spec]:
        """The axis sizes of a mesh that splits an array so, and the Spec over it."""
        spec = spec_over(partition, self.sizes)
        if spec is not None:
            return self.sizes, spec
        sizes = mesh_sizes(self.count, [partition])[0]
        own = spec_over(partition, sizes)
        assert own is not None
        return sizes, own

    def program(self) -> Program:
        """The same as a Program.

        Raises:
            ProgramError: where no single mesh fits all of its parts.
        """
        from shardviz.core.backend.arguments import program_arrays

        if self.unfit:
            raise ProgramError(
                f"No single mesh splits {self.count:,} devices, in one order, into"
                f" {listed(self.unfit)} and into the other parts of this function, and a Program"
                " has one mesh. Calling it and to_modern(...) work, over several meshes; or use"
                " parts whose products divide each other, left to right."
            )
        signature = self.signature
        dynamic = signature.tree.unflatten(signature.structs)
        arrays, tree, _ = program_arrays(dynamic, self.fn)
        split = tuple(
            array.replace(spec=self.sizes_and_spec(partition)[1])
            for array, partition in zip(arrays, self.in_parts, strict=True)
        )
        specs = self.out_tree.unflatten([self.sizes_and_spec(p)[1] for p in self.out_parts])
        return Program(self.body, split, mesh_over(self.sizes), tree=tree, out_specs=specs)


def _check(partitions: Sequence[Partition], arrays: Sequence[Any], names: Sequence[str]) -> None:
    for parts, array, name in zip(partitions, arrays, names, strict=True):
        if parts is not None:
            parts.check(array.shape, name)


def _reconcile(count: int | None, constraints: Sequence[ConstraintRequest]) -> int:
    before = "in_parts, out_parts or num_partitions"
    for inner in constraints:
        if count is not None and inner.count != count:
            raise ProgramError(
                f"{inner.what} asks for {plural(inner.count, 'partition')}, and {before} for"
                f" {count:,}. All parts in one sharded_jit have the same product: change one of"
                " them, or write None for what is replicated."
            )
        count, before = inner.count, inner.what if count is None else before
    return 1 if count is None else count
