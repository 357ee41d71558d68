"""sharded_jit(fun, in_parts, out_parts): a function split over devices by integers.

The parts of a call become one mesh and a PartitionSpec for each array, and `jax.jit`
does the rest.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from shardviz.core.errors import ProgramError, TargetError, import_optional
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.parse import check_size
from shardviz.core.program.cache import cache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.legacy.call import (
    PartitionedCall,
    PartitionedSignature,
    PartitionRequest,
    read_call,
)
from shardviz.legacy.constraints import inside, is_inside, replicated_on
from shardviz.legacy.modern_code import modern_code
from shardviz.legacy.partitions import (
    Partition,
    check_count,
    check_tree,
    count_of,
    is_parts_mesh,
    mesh_over,
    same_parts,
)

# Of each function; an older signature is traced again.
_MOST_SIGNATURES = 256


def sharded_jit(
    fun: Callable[..., Any],
    in_parts: Any,
    out_parts: Any,
    num_partitions: int | None = None,
    local_in_parts: Any = None,
    local_out_parts: Any = None,
    local_num_partitions: int | None = None,
    static_argnums: int | Iterable[int] = (),
) -> ShardedJit:
    """`fun`, split over devices by integers: `jax.jit` before meshes had names.

    The result is called as `fun` is. It also has `.report(*args)`, a Report of one run;
    `.program(*args)`, a Program for the Explorer; and `.to_modern(*args)`, the same as
    code over `jax.jit` and NamedSharding.

    Args:
        fun: the function; it takes arrays, or containers of them, by position.
        in_parts: how the arguments are split: a Parts, None for a replicated array, or
            containers of these, as a prefix of the tuple of arguments.
        out_parts: the same for what it returns.
        num_partitions: how many devices, where no Parts says so.
        local_in_parts, local_out_parts, local_num_partitions: the same for one process
            of several; where there is only one they may be left out, or repeat the
            others.
        static_argnums: positions of arguments that are compile-time constants; they
            have no parts.

    Raises:
        ShardvizError: for parts that do not fit together, and where jax is not
            installed; in a call for arguments that do not fit the parts, keywords,
            missing static arguments, and too few devices.

    >>> import jax.numpy as jnp
    >>> from shardviz.legacy.partitions import Parts
    >>> scale = sharded_jit(lambda x, s: x * s, (Parts(1, 1), None), Parts(1, 1))
    >>> scale(jnp.ones((2, 2)), 3.0).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    import_optional("jax", "legacy.sharded_jit", "jax")
    if not callable(fun):
        raise ProgramError(f"sharded_jit takes a function first; got {shown(fun)}.")
    ins, outs = check_tree(in_parts, "in_parts"), check_tree(out_parts, "out_parts")
    count = count_of([("in_parts", ins), ("out_parts", outs)], num_partitions)
    local = [
        ("local_in_parts", check_tree(local_in_parts, "local_in_parts")),
        ("local_out_parts", check_tree(local_out_parts, "local_out_parts")),
    ]
    local_count = count_of(local)
    if local_num_partitions is not None:
        local_count = check_count(local_num_partitions, "local_num_partitions")
    _check_local(local_count, count)
    numbers = static_argnums
    if not isinstance(numbers, Iterable):
        numbers = (numbers,)
    statics = tuple(
        check_size(n, "Each of static_argnums", ProgramError) for n in numbers
    )
    request = PartitionRequest(fun, in_parts, out_parts, count)
    return ShardedJit(request, (local_in_parts, local_out_parts, local_count), statics)


class ShardedJit:
    """A function under `sharded_jit`: call it, run it with a report, or translate it.

    Its first call with arguments of a new shape, dtype, tree or static value traces the
    function twice: once to learn what it asks for, once for the devices.

    >>> import jax
    >>> from shardviz.legacy.partitions import Parts
    >>> double = sharded_jit(lambda x: 2 * x, Parts(1), None)
    >>> double.report(jax.numpy.arange(3)).ok
    True
    """

    def __init__(
        self,
        request: PartitionRequest,
        local: tuple[Any, Any, int | None],
        statics: tuple[int, ...],
    ) -> None:
        functools.update_wrapper(self, request.fun, updated=())
        self._request, self._local, self._statics = request, local, statics
        self._calls: dict[Any, _CompiledCall] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, as arrays split as `out_parts` says."""
        compiled, leaves = self._prepared(args, kwargs)
        return compiled(leaves)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The same as a Program, for `sv.explore`, `sv.compile` and `sv.run`.

        Args:
            *args: arguments, or their shapes: ArraySpecs or `jax.ShapeDtypeStruct`s.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as a call; and where no single mesh fits all of the parts.
        """
        return self._prepared(args, kwargs)[0].call.program()

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """Runs the function once and reports, as `sv.run` does.

        Args:
            *args: arguments; values are made up if they are only shapes.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as `program`.
        """
        import jax

        from shardviz.core.backend.run.worker.run import run_program

        compiled, leaves = self._prepared(args, kwargs)
        signature, program = compiled.call.signature, compiled.call.program()
        if any(isinstance(leaf, (ArraySpec, jax.ShapeDtypeStruct)) for leaf in leaves):
            return run_program(program, cache=cache)
        arrays = []
        for leaf, struct in zip(leaves, signature.structs, strict=True):
            if not hasattr(leaf, "dtype"):
                leaf = jax.numpy.asarray(leaf, struct.dtype)
            arrays.append(leaf)
        return run_program(program, *signature.tree.unflatten(arrays), cache=cache)

    def to_modern(self, *args: Any, **kwargs: Any) -> str:
        """The same as code: `jax.jit` over a Mesh with NamedShardings.

        Args:
            *args: arguments, or their shapes.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as a call; and for containers that have no literal.
        """
        return modern_code(self._prepared(args, kwargs)[0].call)

    def _prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_CompiledCall, list[Any]]:
        if kwargs:
            raise ProgramError(
                "sharded_jit passes no keyword arguments to its function; got"
                f" {', '.join(kwargs)}. Pass them by position, or set them with"
                " functools.partial first."
            )
        signature, leaves = read_call(self._request.fun, args, self._statics)
        compiled = self._calls.get(signature.key) or self._add(signature)
        return compiled, leaves

    def _add(self, signature: PartitionedSignature) -> _CompiledCall:
        request, call = self._request, PartitionedCall(self._request, signature)
        local_in, local_out, local_count = self._local
        same_parts(local_in, request.in_parts, signature.tree, "in_parts")
        same_parts(local_out, request.out_parts, call.out_tree, "out_parts")
        _check_local(local_count, call.count)
        compiled = _CompiledCall(call)
        with self._lock:
            while len(self._calls) >= _MOST_SIGNATURES:
                del self._calls[next(iter(self._calls))]
            return self._calls.setdefault(signature.key, compiled)


class _CompiledCall:
    """A call, compiled for its devices when it is first made."""

    def __init__(self, call: PartitionedCall) -> None:
        self.call = call

    def __call__(self, leaves: list[Any]) -> Any:
        import jax
        from jax.core import Tracer

        ins, outs, jitted = self._compiled
        tree = self.call.out_tree
        if is_inside():
            return tree.unflatten(jitted(*leaves))
        placed = [_place(leaf, s) for leaf, s in zip(leaves, ins, strict=True)]
        results = list(jitted(*placed))
        # Gradients come back sharded as the results are, since jit takes no others.
        if any(isinstance(r, Tracer) for r in results):
            results = map(jax.lax.with_sharding_constraint, results, outs)
        return tree.unflatten(results)

    @functools.cached_property
    def _compiled(self) -> tuple[tuple, tuple, Callable[..., Any]]:
        """The shardings of arguments and of results, and the jitted function."""
        import jax

        from shardviz.core.backend.bridge import abstract_mesh
        from shardviz.core.backend.devices import mesh_of

        call, devices = self.call, _devices(self.call.count)

        def sharding(partition: Partition) -> Any:
            sizes, spec = call.sizes_and_spec(partition)
            mesh = mesh_of(devices, mesh_over(sizes))
            return jax.sharding.NamedSharding(mesh, spec.to_jax())

        ins = tuple(map(sharding, call.in_parts))
        outs = tuple(map(sharding, call.out_parts))
        around, tree = abstract_mesh(mesh_over(call.sizes)), call.signature.tree

        def flat(*leaves: Any) -> tuple[Any, ...]:
            # Constraints look for the mesh here, and jax keeps traces by it.
            with jax.sharding.use_abstract_mesh(around), inside():
                return tuple(jax.tree.leaves(call.body(*tree.unflatten(leaves))))

        functools.update_wrapper(flat, call.request.fun, updated=())
        # jax would look through it for the names of arguments, which are others.
        del flat.__wrapped__
        return ins, outs, jax.jit(flat, in_shardings=ins, out_shardings=outs)


def _place(leaf: Any, sharding: Any) -> Any:
    """An argument on the devices; an array may come from any others."""
    import jax
    from jax.core import Tracer

    # A traced one gets a constraint: under vmap, device_put would apply the sharding to
    # the wrong dimensions.
    if not isinstance(leaf, Tracer):
        return jax.device_put(leaf, sharding)
    try:
        return jax.lax.with_sharding_constraint(leaf, sharding)
    except ValueError:  # a gradient at an array that is committed to other devices
        moved = jax.device_put(leaf, replicated_on(sharding.mesh))
        return jax.lax.with_sharding_constraint(moved, sharding)


def _devices(count: int) -> tuple[Any, ...]:
    import jax

    from shardviz.core.backend.run.targets import choose, devices_of

    around = jax.sharding.get_abstract_mesh()
    if is_parts_mesh(around) and around.size != count:
        raise ProgramError(
            f"A sharded_jit over {plural(count, 'partition')} is called inside one over"
            f" {around.size:,}. Nested ones run on the same devices: give them the same"
            " product."
        )
    if jax.process_count() > 1:
        return _local_devices(count)
    try:
        return devices_of(choose(None, count))[:count]
    except TargetError as error:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, one per device. {error}"
        ) from error


def _local_devices(count: int) -> tuple[Any, ...]:
    """The devices of this process, where there are several processes."""
    import jax

    devices = tuple(jax.local_devices())
    if len(devices) < count:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, and this process has"
            f" {plural(len(devices), 'device')} of {jax.device_count():,}. shardviz runs"
            " sharded_jit on the devices of one process. Across processes, write it"
            " with jax.jit, NamedSharding and jax.make_array_from_process_local_data, as"
            " to_modern(...) begins it."
        )
    return devices[:count]


def _check_local(local_count: int | None, count: int | None) -> None:
    if local_count is not None and count is not None and local_count != count:
        raise ProgramError(
            "local_num_partitions, or the local parts, say"
            f" {plural(local_count, 'partition')} for this process, and there are"
            f" {count:,} in all. In a single process, which has all of the devices,"
            " they are the same number: leave the local_ arguments out."
        )
