"""sharded_jit(fun, in_parts, out_parts): splits a function over devices by integers.

We convert the Parts of a call to one mesh and a PartitionSpec for each array, and pass
these to `jax.jit`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ProgramError, TargetError, needed_by
from shardviz.base.format import listed, plural, shown
from shardviz.base.mesh import MAX_DEVICES
from shardviz.base.parse import check_size
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import PyTree, UserFunction
from shardviz.compiled.report import Report
from shardviz.legacy.constraints import (
    constraints_inside,
    inside,
    is_inside,
    replicated_on,
)
from shardviz.legacy.partitions import (
    Partition,
    count_of,
    fitting,
    flat_parts,
    is_parts_mesh,
    is_prime_power,
    mesh_over,
    mesh_sizes,
    parts_in,
)
from shardviz.programs.program import Program
from shardviz.runs.cache import cache


def sharded_jit(
    fun: UserFunction,
    in_parts: PyTree,
    out_parts: PyTree,
    num_partitions: int | None = None,
    local_in_parts: PyTree = None,
    local_out_parts: PyTree = None,
    local_num_partitions: int | None = None,
    static_argnums: int | Iterable[int] = (),
) -> ShardedJit:
    """Splits a function over devices by integers, as JAX did before named meshes.

    Call the result like `fun`. Its `.report(*args)` runs the function once and returns
    a Report. Its `.program(*args)` returns the same function as a Program with named
    axes.

    Args:
        fun: the function, which takes arrays, or containers of arrays, by position.
        in_parts: the partitions of the arguments: a Parts, None for a replicated array,
            or containers of these, as a prefix of the arguments.
        out_parts: the partitions of the results, in the same form.
        num_partitions: the number of devices, if no Parts determines it.
        local_in_parts, local_out_parts, local_num_partitions: the values for one of
            several processes. Here all devices belong to one process, so these values
            must equal the arguments without `local_`.
        static_argnums: positions of arguments that are compile-time constants; these
            have no parts.

    Raises:
        ShardvizError: if parts conflict, or if jax is not installed. In a call: if
            arguments don't fit the parts, static arguments are missing, or there are
            too few devices.

    >>> from shardviz import legacy
    >>> import jax.numpy as jnp
    >>> from shardviz.legacy.partitions import Parts
    >>> scale = legacy.sharded_jit(lambda x, s: x * s, (Parts(1, 1), None), Parts(1, 1))
    >>> scale(jnp.ones((2, 2)), 3.0).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    with needed_by("legacy.sharded_jit"):
        import jax  # noqa: F401
    if not callable(fun):
        raise ProgramError(f"sharded_jit takes a function first; got {shown(fun)}.")
    # All of these must request the same number of devices.
    requests = []
    counts = {
        "num_partitions": num_partitions,
        "local_num_partitions": local_num_partitions,
    }
    for argument, number in counts.items():
        if number is None:
            continue
        count = check_size(number, argument, ProgramError)
        if not 1 <= count <= MAX_DEVICES:
            raise ProgramError(f"{argument} is a number of devices; got {count:,}.")
        requests.append((f"{argument}={count}", count))
    trees = {
        "in_parts": (in_parts, local_in_parts),
        "out_parts": (out_parts, local_out_parts),
    }
    for argument, (tree, local) in trees.items():
        for parts in parts_in(tree, argument):
            requests.append((f"{parts} in {argument}", parts.product))
        if local is not None and local != tree:
            raise ProgramError(
                f"local_{argument} says how the data of one process is split. sharded_jit"
                f" runs in one process here, so it is the same as {argument}; got"
                f" {shown(local)} and {shown(tree)}. Leave local_{argument} out."
            )
    numbers = static_argnums
    if not isinstance(numbers, Iterable):
        numbers = (numbers,)
    statics = [check_size(n, "Each of static_argnums", ProgramError) for n in numbers]
    count_of(requests)  # raises now if the device counts differ
    return ShardedJit(fun, in_parts, out_parts, requests, statics)


class ShardedJit:
    """A function under `sharded_jit`. Call it, run it for a Report, or get its Program.

    The first call with a new shape, dtype, tree or static value traces the function
    twice: once to find its constraints, and once for the devices.

    >>> import jax
    >>> from shardviz.legacy.partitions import Parts
    >>> double = sharded_jit(lambda x: 2 * x, Parts(1), None)
    >>> double.report(jax.numpy.arange(3)).ok
    True
    """

    def __init__(
        self,
        fun: UserFunction,
        in_parts: PyTree,
        out_parts: PyTree,
        requests: Sequence[tuple[str, int]],
        statics: Sequence[int],
    ) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._fun, self._parts, self._requests = fun, (in_parts, out_parts), requests
        self._statics = statics
        self._calls: dict[object, _PartitionedCall] = {}

    def __call__(self, *args: PyTree) -> PyTree:
        """Calls the function; its results are split according to `out_parts`."""
        call, leaves = self._prepared(args)
        return call.run(leaves)

    def program(self, *args: PyTree) -> Program:
        """Converts the function to a Program, for arguments or their shapes.

        Raises:
            ProgramError: as in a call, and if no single mesh fits all parts.
        """
        return self._prepared(args)[0].program()

    def report(self, *args: PyTree) -> Report:
        """Runs the function once and returns a Report, like `sv.run`.

        If any argument is only a shape, values for all arguments are generated.

        Raises:
            ProgramError: as in `program`.
        """
        import jax

        from shardviz.runs.backend.worker.run import run_program

        call, leaves = self._prepared(args)
        program = call.program()
        if any(isinstance(leaf, (ArraySpec, jax.ShapeDtypeStruct)) for leaf in leaves):
            return run_program(program, cache=cache)
        arrays = []
        for leaf, struct in zip(leaves, call.structs, strict=True):
            arrays.append(jax.numpy.asarray(leaf, struct.dtype))
        return run_program(program, *call.tree.unflatten(arrays), cache=cache)

    def _prepared(
        self, args: tuple[PyTree, ...]
    ) -> tuple[_PartitionedCall, list[PyTree]]:
        """Returns the traced call for these arguments, and their leaves."""
        import jax

        static = _static_arguments(self._statics, args)
        dynamic = tuple(a for i, a in enumerate(args) if i not in static)
        paths, tree = jax.tree_util.tree_flatten_with_path(dynamic)
        leaves, structs, avals = [leaf for _, leaf in paths], [], []
        for path, leaf in paths:
            struct = _struct(jax.tree_util.keystr(path), leaf)
            structs.append(struct)
            avals.append((struct.shape, struct.dtype, struct.weak_type))
        # Like the cache of jax.jit, the key ignores the values of non-static arguments.
        key = tuple(static.items()), len(args), tree, tuple(avals)
        call = self._calls.get(key)
        if call is None:
            call = _PartitionedCall(
                self._fun,
                *self._parts,
                self._requests,
                static,
                len(args),
                tree,
                structs,
            )
            # Concurrent threads all use the call that was stored first.
            call = self._calls.setdefault(key, call)
        return call, leaves


def _static_arguments(
    numbers: Sequence[int], args: tuple[PyTree, ...]
) -> dict[int, PyTree]:
    static = {}
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise ProgramError(
                f"static_argnums makes argument {number} static, and the function was"
                f" called with {plural(len(args), 'positional argument')}. Pass every"
                " static argument, by position."
            )
        static[number % len(args)] = args[number]
    return dict(sorted(static.items()))


def _struct(name: str, leaf: PyTree) -> Any:
    """Returns the shape and dtype that JAX gives an argument."""
    import jax

    from shardviz.programs.backend.bridge import jax_dtype

    if isinstance(leaf, ArraySpec):
        return jax.ShapeDtypeStruct(leaf.shape, jax_dtype(leaf.dtype))
    # JAX decides which values count as arrays or numbers.
    try:
        return jax.eval_shape(lambda x: x, leaf)
    except (TypeError, OverflowError):
        raise ProgramError(
            f"Argument {name} is {shown(leaf)}, which is neither an array nor a number. Arguments"
            " that are not arrays or containers of them are static: name their"
            " positions in static_argnums."
        ) from None


class _PartitionedCall:
    """A function under `sharded_jit`, traced for one signature but without devices.

    Attributes:
        static: the static arguments, by position.
        parameters: the names of all arguments.
        tree, structs: the PyTreeDef of the non-static arguments, and the types of their
            leaves.
        in_parts, out_parts: one Parts or None per leaf.
        count: number of devices.
        sizes: the axis sizes of the mesh that fits most of the parts.
        unfit: the parts that need another mesh over the same devices.
    """

    def __init__(
        self,
        fun: UserFunction,
        in_parts: PyTree,
        out_parts: PyTree,
        requests: Sequence[tuple[str, int]],
        static: dict[int, PyTree],
        total: int,
        tree: Any,
        structs: Sequence[Any],
    ) -> None:
        import jax

        from shardviz.programs.backend.arguments import parameter_names, path_name

        self._fun, self.static, self.tree, self.structs = fun, static, tree, structs
        self.parameters = parameter_names(fun, total)
        self.in_parts = flat_parts(in_parts, tree, "in_parts")
        dynamic = [n for i, n in enumerate(self.parameters) if i not in static]
        arguments = tree.unflatten(structs)
        for (path, struct), parts in zip(
            jax.tree_util.tree_leaves_with_path(arguments), self.in_parts, strict=True
        ):
            if parts is not None:
                parts.check(struct.shape, path_name(dynamic[path[0].idx], path[1:]))
        # Shapes are enough to find results and constraints, so we need no devices.
        jaxpr, shapes = jax.make_jaxpr(self.fn, return_shape=True)(*arguments)
        inner = list(constraints_inside(jaxpr))
        counts = [(who, count) for who, _, count in inner]
        self.count = count_of([*requests, *counts]) or 1
        results, self._out_tree = jax.tree_util.tree_flatten_with_path(shapes)
        self.out_parts = flat_parts(out_parts, self._out_tree, "out_parts")
        for (path, struct), parts in zip(results, self.out_parts, strict=True):
            if parts is not None:
                parts.check(struct.shape, path_name("output", path))
        # Arguments come first: if parts conflict, the mesh fits the earlier ones.
        every = (*self.in_parts, *self.out_parts, *(parts for _, parts, _ in inner))
        self.sizes, self.unfit = mesh_sizes(self.count, every)
        # For some device counts, XLA cannot reshard directly (see `replicated_on`).
        # We then replicate arguments before the function, and results after it.
        several = len(set(every) - {None}) > 1
        self.indirect = several and not is_prime_power(self.count)

    @functools.cached_property
    def fn(self) -> UserFunction:
        """The user's function, with only its non-static arguments as parameters."""
        static, total = self.static, len(self.parameters)

        def partial(*dynamic: PyTree) -> PyTree:
            remaining = iter(dynamic)
            args = []
            for i in range(total):
                args.append(static[i] if i in static else next(remaining))
            with inside():
                return self._fun(*args)

        functools.update_wrapper(partial, self._fun, updated=())
        parameters = []
        for number, name in enumerate(self.parameters):
            if number not in static:
                # Names of variadic arguments, such as args[0], are not identifiers.
                name = name if name.isidentifier() else f"a{number}"
                kind = inspect.Parameter.POSITIONAL_ONLY
                parameters.append(inspect.Parameter(name, kind))
        partial.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return partial

    @functools.cached_property
    def body(self) -> UserFunction:
        """The function to run. It expects the mesh of parts as JAX's context mesh."""
        if not self.indirect:
            return self.fn

        import jax

        def replicate(x: Any) -> Any:
            mesh = jax.sharding.get_abstract_mesh()
            return jax.lax.with_sharding_constraint(x, replicated_on(mesh))

        def with_replicated(*dynamic: PyTree) -> PyTree:
            return jax.tree.map(replicate, self.fn(*jax.tree.map(replicate, dynamic)))

        return functools.update_wrapper(with_replicated, self.fn)

    def program(self) -> Program:
        """Converts the call to a Program with a single mesh."""
        from shardviz.programs.backend.arguments import program_arrays

        if self.unfit:
            raise ProgramError(
                f"No single mesh splits {self.count:,} devices, in one order, into"
                f" {listed(self.unfit)} and into the other parts of this function, and"
                " a Program has one mesh. Calling the function works, over several"
                " meshes; or use parts whose products divide each other, left to right."
            )

        def spec(partition: Partition) -> Spec:
            return fitting(partition, self.sizes, self.count)[1]

        arrays, tree, _ = program_arrays(self.tree.unflatten(self.structs), self.fn)
        split = []
        for array, partition in zip(arrays, self.in_parts, strict=True):
            split.append(array.replace(spec=spec(partition)))
        return Program(
            self.body,
            tuple(split),
            mesh_over(self.sizes),
            tree=tree,
            out_specs=self._out_tree.unflatten(map(spec, self.out_parts)),
        )

    def run(self, leaves: Sequence[PyTree]) -> PyTree:
        """Runs the function on the leaves of the non-static arguments."""
        import jax
        from jax.core import Tracer

        ins, outs, jitted = self._compiled
        if is_inside():
            return self._out_tree.unflatten(jitted(*leaves))
        placed = [_place(leaf, s) for leaf, s in zip(leaves, ins, strict=True)]
        results = list(jitted(*placed))
        # Constrain traced results, because jit accepts gradients only in this sharding.
        if any(isinstance(r, Tracer) for r in results):
            results = map(jax.lax.with_sharding_constraint, results, outs)
        return self._out_tree.unflatten(results)

    @functools.cached_property
    def _compiled(self) -> tuple[tuple, tuple, UserFunction]:
        """The shardings of arguments and results, and the jitted function."""
        import jax

        from shardviz.programs.backend.bridge import abstract_mesh
        from shardviz.programs.backend.devices import mesh_of

        devices = _devices(self.count)

        def sharding(partition: Partition) -> Any:
            mesh, spec = fitting(partition, self.sizes, self.count)
            return jax.sharding.NamedSharding(mesh_of(devices, mesh), spec.to_jax())

        ins = tuple(map(sharding, self.in_parts))
        outs = tuple(map(sharding, self.out_parts))
        around = abstract_mesh(mesh_over(self.sizes))

        def flat(*leaves: PyTree) -> tuple[PyTree, ...]:
            # Constraints read the context mesh, which is part of JAX's cache key.
            with jax.sharding.use_abstract_mesh(around), inside():
                return tuple(jax.tree.leaves(self.body(*self.tree.unflatten(leaves))))

        functools.update_wrapper(flat, self._fun, updated=())
        # JAX would follow `__wrapped__` and report the wrong argument names.
        del flat.__wrapped__
        return ins, outs, jax.jit(flat, in_shardings=ins, out_shardings=outs)


def _place(leaf: PyTree, sharding: Any) -> PyTree:
    """Moves an argument to the devices of its sharding, from any other devices."""
    import jax
    from jax.core import Tracer

    # A traced array gets a constraint, because device_put would apply the sharding to
    # the wrong dimensions under vmap.
    if not isinstance(leaf, Tracer):
        return jax.device_put(leaf, sharding)
    try:
        return jax.lax.with_sharding_constraint(leaf, sharding)
    except ValueError:
        # Under grad, the array may be committed to other devices.
        moved = jax.device_put(leaf, replicated_on(sharding.mesh))
        return jax.lax.with_sharding_constraint(moved, sharding)


def _devices(count: int) -> Sequence[Any]:
    import jax

    from shardviz.runs.backend.targets import choose, devices_of

    around = jax.sharding.get_abstract_mesh()
    if is_parts_mesh(around) and around.size != count:
        raise ProgramError(
            f"A sharded_jit over {plural(count, 'partition')} is called inside one over"
            f" {around.size:,}. Nested ones run on the same devices: give them the same"
            " product."
        )
    if jax.process_count() > 1:
        # A process can use only its own devices.
        devices = jax.local_devices()
        if len(devices) < count:
            raise TargetError(
                f"This sharded_jit makes {plural(count, 'partition')}, and this process"
                f" has {plural(len(devices), 'device')}. Across processes, use jax.jit."
            )
        return devices[:count]
    try:
        return devices_of(choose(None, count))[:count]
    except TargetError as error:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, one per device. {error}"
        ) from error
