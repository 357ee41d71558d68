"""One signature of a function under `sharded_jit`: how each array is split.

Nothing here looks for devices. The function is traced once without any, to see what it
returns and what its constraints ask for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import Any

from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program
from shardviz.legacy.constraints import (
    ConstraintRequest,
    constraints_inside,
    inside,
    replicated_on,
)
from shardviz.legacy.partitions import (
    Partition,
    Parts,
    flat_parts,
    is_prime_power,
    mesh_over,
    mesh_sizes,
    spec_over,
)


@dataclass(frozen=True, eq=False)
class PartitionedSignature:
    """The arguments of one call, without their values.

    Attributes:
        statics: the static arguments, by position.
        total: how many positional arguments there are, static ones included.
        tree: the PyTreeDef of the other arguments.
        structs: shape and dtype of every leaf, as `jax.ShapeDtypeStruct`s.
        parameters: the function's names for the arguments that are not static.
        names: a name for every leaf.
    """

    statics: tuple[tuple[int, Any], ...]
    total: int
    tree: Any
    structs: tuple[Any, ...]
    parameters: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def key(self) -> Hashable:
        """Equal for two calls that are traced alike."""
        avals = []
        for struct in self.structs:
            weak = getattr(struct, "weak_type", False)
            avals.append((struct.shape, struct.dtype, weak))
        return self.statics, self.total, self.tree, tuple(avals)

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
        ProgramError: for static arguments that are missing or cannot be hashed, and for
            leaves that are no arrays.
    """
    import jax

    from shardviz.core.backend.tracing.arguments import parameter_names, path_name

    static = {}
    for position in _positions(static_argnums, args):
        value = static[position] = args[position]
        try:
            hash(value)
        except TypeError:
            raise ProgramError(
                f"Argument {position} is static, so it must be hashable, and"
                f" {shown(value)} is not. Give a tuple in place of a list, or leave it"
                " out of static_argnums."
            ) from None
    dynamic = tuple(a for i, a in enumerate(args) if i not in static)
    paths, tree = jax.tree_util.tree_flatten_with_path(dynamic)
    every = parameter_names(fun, len(args))
    parameters = tuple(n for i, n in enumerate(every) if i not in static)
    names = tuple(path_name(parameters[p[0].idx], p[1:]) for p, _ in paths)
    leaves = [leaf for _, leaf in paths]
    signature = PartitionedSignature(
        tuple(static.items()),
        len(args),
        tree,
        tuple(map(_struct, names, leaves)),
        parameters,
        names,
    )
    return signature, leaves


def _positions(static_argnums: tuple[int, ...], args: tuple[Any, ...]) -> list[int]:
    for number in static_argnums:
        if not -len(args) <= number < len(args):
            raise ProgramError(
                f"static_argnums={static_argnums} makes argument {number} static, and"
                " the function was called with"
                f" {plural(len(args), 'positional argument')}. Pass every static"
                " argument, by position."
            )
    return sorted({n % len(args) for n in static_argnums})


def _struct(name: str, leaf: Any) -> Any:
    import jax

    from shardviz.core.backend.bridge import jax_dtype

    if isinstance(leaf, ArraySpec):
        return jax.ShapeDtypeStruct(leaf.shape, jax_dtype(leaf.dtype))
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    # Whatever jax itself takes for an array or a number: numpy's, Python's, its own.
    try:
        aval: Any = jax.typeof(leaf)
        weak = bool(getattr(aval, "weak_type", False))
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)
    except (TypeError, AttributeError, OverflowError):
        raise ProgramError(
            f"{name} is {shown(leaf)}, which is no array or number. Arguments that are"
            " not arrays or containers of them are static: name their positions in"
            " static_argnums."
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
        sizes: the axis sizes of the mesh that fits as many of the parts as one mesh
            can.
        unfit: the parts that need a mesh of their own over the same devices.

    Raises:
        ProgramError: where trees, counts or ranks do not fit together.
    """

    def __init__(
        self, request: PartitionRequest, signature: PartitionedSignature
    ) -> None:
        import jax

        from shardviz.core.backend.tracing.arguments import path_name

        self.request, self.signature = request, signature
        self.in_parts = flat_parts(request.in_parts, signature.tree, "in_parts")
        _check(self.in_parts, signature.structs, signature.names)
        dynamic = signature.tree.unflatten(signature.structs)
        # Without devices: shapes are enough to see what it returns and constrains.
        jaxpr, shapes = jax.make_jaxpr(self.fn, return_shape=True)(*dynamic)
        self.constraints = tuple(constraints_inside(jaxpr))
        self.count = _count(request.count, self.constraints)
        results, self.out_tree = jax.tree_util.tree_flatten_with_path(shapes)
        self.out_parts = flat_parts(request.out_parts, self.out_tree, "out_parts")
        names = [path_name("output", path) for path, _ in results]
        _check(self.out_parts, [leaf for _, leaf in results], names)
        # The parts of arguments come first: theirs is the mesh that fits the others,
        # too.
        inner = tuple(constraint.parts for constraint in self.constraints)
        self._partitions = (*self.in_parts, *self.out_parts, *inner)
        self.sizes, self.unfit = mesh_sizes(self.count, self._partitions)

    @cached_property
    def fn(self) -> Callable[..., Any]:
        """The function of the arguments that are not static."""
        signature, fun = self.signature, self.request.fun

        def partial(*dynamic: Any) -> Any:
            with inside():
                return fun(*signature.merge(dynamic))

        update_wrapper(partial, fun, updated=())
        # Names of variadic parameters, such as args[0], are no names of Python.
        parameters = []
        for number, name in enumerate(signature.parameters):
            name = name if name.isidentifier() else f"a{number}"
            kind = inspect.Parameter.POSITIONAL_ONLY
            parameters.append(inspect.Parameter(name, kind))
        partial.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return partial

    @property
    def indirect(self) -> bool:
        """Whether arguments and results are replicated before and after the function.

        XLA cannot reshard all numbers of devices directly (see `replicated_on`).
        """
        ways = set(self._partitions) - {None}
        return len(ways) > 1 and not is_prime_power(self.count)

    @cached_property
    def body(self) -> Callable[..., Any]:
        """The function as it is run, with the mesh of parts as jax's mesh in context."""
        if not self.indirect:
            return self.fn

        import jax

        def replicate(x: Any) -> Any:
            mesh = jax.sharding.get_abstract_mesh()
            return jax.lax.with_sharding_constraint(x, replicated_on(mesh))

        def with_replicated(*dynamic: Any) -> Any:
            return jax.tree.map(replicate, self.fn(*jax.tree.map(replicate, dynamic)))

        return update_wrapper(with_replicated, self.fn)

    def sizes_and_spec(self, partition: Partition) -> tuple[tuple[int, ...], Spec]:
        """The axis sizes of a mesh that splits an array so, and the Spec over it."""
        spec = spec_over(partition, self.sizes)
        if spec is not None:
            return self.sizes, spec
        # Parts(3, 2) beside Parts(2, 3): a mesh of its own over the same devices.
        sizes = mesh_sizes(self.count, [partition])[0]
        own = spec_over(partition, sizes)
        assert own is not None
        return sizes, own

    def program(self) -> Program:
        """The same as a Program.

        Raises:
            ProgramError: where no single mesh fits all of its parts.
        """
        from shardviz.core.backend.tracing.arguments import program_arrays

        if self.unfit:
            raise ProgramError(
                f"No single mesh splits {self.count:,} devices, in one order, into"
                f" {listed(self.unfit)} and into the other parts of this function, and"
                " a Program has one mesh. Calling it and to_modern(...) work, over"
                " several meshes; or use parts whose products divide each other, left"
                " to right."
            )
        signature = self.signature
        dynamic = signature.tree.unflatten(signature.structs)
        arrays, tree, _ = program_arrays(dynamic, self.fn)
        split = []
        for array, partition in zip(arrays, self.in_parts, strict=True):
            split.append(array.replace(spec=self.sizes_and_spec(partition)[1]))
        outs = [self.sizes_and_spec(partition)[1] for partition in self.out_parts]
        return Program(
            self.body,
            tuple(split),
            mesh_over(self.sizes),
            tree=tree,
            out_specs=self.out_tree.unflatten(outs),
        )


def _check(
    partitions: Sequence[Partition], arrays: Sequence[Any], names: Sequence[str]
) -> None:
    for parts, array, name in zip(partitions, arrays, names, strict=True):
        if isinstance(parts, Parts):
            parts.check(array.shape, name)


def _count(count: int | None, constraints: Sequence[ConstraintRequest]) -> int:
    """How many devices the arguments and all constraints ask for."""
    said_by = "in_parts, out_parts or num_partitions"
    for constraint in constraints:
        if count is None:
            count, said_by = constraint.count, str(constraint)
        if constraint.count != count:
            raise ProgramError(
                f"{constraint} asks for {plural(constraint.count, 'partition')}, and"
                f" {said_by} for {count:,}. All parts in one sharded_jit have the same"
                " product: change one of them, or write None for what is replicated."
            )
    return 1 if count is None else count
