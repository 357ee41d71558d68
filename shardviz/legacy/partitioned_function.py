"""sharded_jit(fun, in_parts, out_parts): a function cut over devices by whole numbers alone.

The dialect of JAX before meshes had names. Here it is a translation: the parts of a call become
one mesh and a PartitionSpec an array, and `jax.jit` does the rest.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.devices import mesh_of
from shardviz.core.backend.targets import choose, devices_of
from shardviz.core.backend.worker.run import run_program
from shardviz.core.errors import ProgramError, TargetError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.parse import check_size
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.legacy.call import PartitionedCall, PartitionedSignature, PartitionRequest, read_call
from shardviz.legacy.constraint import inside, is_inside
from shardviz.legacy.modern_code import modern_code
from shardviz.legacy.partition_trees import (
    Partition,
    check_count,
    check_tree,
    count_of,
    flat_parts,
    is_parts_mesh,
    mesh_over,
    same_parts,
)

Shardings = tuple[NamedSharding, ...]
_KEPT = 256  # signatures a function; an old one is traced again


def sharded_jit(
    fun: Callable[..., Any],
    in_parts: Any,
    out_parts: Any,
    num_partitions: int | None = None,
    local_in_parts: Any = None,
    local_out_parts: Any = None,
    local_num_partitions: int | None = None,
    static_argnums: int | Iterable[int] = (),
    *,
    cache: ExecutableCache,
) -> ShardedJit:
    """The function behind `shardviz.sharded_jit`; `cache` keeps what its reports compile.

    Raises:
        ProgramError: for arguments that do not fit together.

    >>> from shardviz.legacy.partitions import Parts
    >>> double = sharded_jit(lambda x: 2 * x, Parts(1), None, cache=ExecutableCache())
    >>> double(jax.numpy.arange(3)).tolist()
    [0, 2, 4]
    """
    if not callable(fun):
        raise ProgramError(f"sharded_jit takes a function first; got {shown(fun)}.")
    asked = [(w, check_tree(p, w)) for w, p in (("in_parts", in_parts), ("out_parts", out_parts))]
    count = count_of(asked, num_partitions)
    local = [("local_in_parts", local_in_parts), ("local_out_parts", local_out_parts)]
    alone = count_of([(w, check_tree(p, w)) for w, p in local])
    if local_num_partitions is not None:
        alone = check_count(local_num_partitions, "local_num_partitions")
    _check_local(alone, count)
    numbers = static_argnums if isinstance(static_argnums, Iterable) else (static_argnums,)
    statics = tuple(check_size(n, "A number in static_argnums", ProgramError) for n in numbers)
    asking = PartitionRequest(fun, in_parts, out_parts, count)
    return ShardedJit(asking, (local_in_parts, local_out_parts, alone), statics, cache)


class ShardedJit:
    """A function under `sharded_jit`: call it, or ask what became of it.

    Its first call with arguments of a new shape, dtype, tree or static value traces the function
    twice: once to learn what it asks for, once for the devices.

    >>> from shardviz.legacy.partitions import Parts
    >>> double = sharded_jit(lambda x: 2 * x, Parts(1), None, cache=ExecutableCache())
    >>> double.report(jax.numpy.arange(3)).ok
    True
    """

    def __init__(
        self,
        asking: PartitionRequest,
        local: tuple[Any, Any, int | None],
        statics: tuple[int, ...],
        cache: ExecutableCache,
    ) -> None:
        functools.update_wrapper(self, asking.fun, updated=())
        self._asking, self._local, self._statics, self._cache = asking, local, statics, cache
        self._calls: dict[Any, _Placed] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, as arrays cut as `out_parts` says."""
        placed, leaves = self._prepared(args, kwargs)
        return placed(leaves)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The same as a Program, for `sv.explore`, `sv.compile` and `sv.run`.

        Args:
            *args: arguments, or their shapes: ArraySpecs or `jax.ShapeDtypeStruct`s.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as a call; and where no single mesh has all of the parts.
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
        placed, leaves = self._prepared(args, kwargs)
        program = placed.call.program()
        if any(isinstance(leaf, (ArraySpec, jax.ShapeDtypeStruct)) for leaf in leaves):
            return run_program(program, cache=self._cache)
        structs = placed.call.signature.structs
        arrays = [
            leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf, struct.dtype)
            for leaf, struct in zip(leaves, structs, strict=True)
        ]
        values = placed.call.signature.tree.unflatten(arrays)
        return run_program(program, *values, cache=self._cache)

    def to_modern(self, *args: Any, **kwargs: Any) -> str:
        """The same in today's words: `jax.jit` over a Mesh with NamedShardings, as code.

        Args:
            *args: arguments, or their shapes.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as a call; and for containers that have no literal.
        """
        return modern_code(self._prepared(args, kwargs)[0].call)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Placed, list[Any]]:
        if kwargs:
            raise ProgramError(
                "sharded_jit passes no keyword arguments to its function; got"
                f" {', '.join(f'{k}={shown(v, 20)}' for k, v in kwargs.items())}. Pass them by"
                " position, or set them with functools.partial first."
            )
        signature, leaves = read_call(self._asking.fun, args, self._statics)
        found = self._calls.get(signature.key)
        return (found or self._add(signature)), leaves

    def _add(self, signature: PartitionedSignature) -> _Placed:
        call = PartitionedCall(self._asking, signature)
        local_in, local_out, alone = self._local
        tree = signature.tree
        same_parts(local_in, self._asking.in_parts, lambda p, w: flat_parts(p, tree, w), "in_parts")
        same_parts(
            local_out,
            self._asking.out_parts,
            lambda p, w: flat_parts(p, call.out_tree, w),
            "out_parts",
        )
        _check_local(alone, call.count)
        placed = _Placed(call)
        with self._lock:
            while len(self._calls) >= _KEPT:
                del self._calls[next(iter(self._calls))]
            return self._calls.setdefault(signature.key, placed)


class _Placed:
    """A call and, once it is made, its devices."""

    def __init__(self, call: PartitionedCall) -> None:
        self.call = call

    def __call__(self, leaves: list[Any]) -> Any:
        ins, outs, jitted = self._compiled
        if is_inside():
            return self.call.out_tree.unflatten(jitted(*leaves))
        placed = [_place(leaf, s) for leaf, s in zip(leaves, ins, strict=True)]
        results = jitted(*placed)
        if any(isinstance(r, Tracer) for r in results):
            # So that gradients come back as the results went: jit takes no others.
            results = map(jax.lax.with_sharding_constraint, results, outs)
        return self.call.out_tree.unflatten(results)

    @functools.cached_property
    def _compiled(self) -> tuple[Shardings, Shardings, Callable[..., Any]]:
        call, devices = self.call, _devices(self.call.count)

        def sharding(cut: Partition) -> NamedSharding:
            sizes, spec = call.placed(cut)
            return NamedSharding(_mesh(devices, sizes), spec.to_jax())

        ins, outs = tuple(map(sharding, call.in_parts)), tuple(map(sharding, call.out_parts))
        around, tree = abstract_mesh(mesh_over(call.sizes)), call.signature.tree

        def flat(*leaves: Any) -> tuple[Any, ...]:
            # Inner constraints look for the mesh here, and jax keeps traces by it.
            with jax.sharding.use_abstract_mesh(around), inside():
                return tuple(jax.tree.leaves(call.body(*tree.unflatten(leaves))))

        functools.update_wrapper(flat, call.asking.fun, updated=())
        del flat.__wrapped__
        return ins, outs, jax.jit(flat, in_shardings=ins, out_shardings=outs)


def _place(leaf: Any, sharding: NamedSharding) -> Any:
    # Arrays go where they are wanted, wherever they are; a traced one is only marked, since
    # device_put under vmap would put the sharding on the wrong dimensions.
    if isinstance(leaf, Tracer):
        try:
            return jax.lax.with_sharding_constraint(leaf, sharding)
        except ValueError:  # a gradient at an array that is committed to other devices
            whole = NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
            moved = jax.device_put(leaf, whole)
            return jax.lax.with_sharding_constraint(moved, sharding)
    return jax.device_put(leaf, sharding)


def _mesh(devices: tuple[Any, ...], sizes: tuple[int, ...]) -> Mesh:
    return mesh_of(devices, mesh_over(sizes))


def _devices(count: int) -> tuple[Any, ...]:
    around = jax.sharding.get_abstract_mesh()
    if is_parts_mesh(around) and around.size != count:
        raise ProgramError(
            f"A sharded_jit over {plural(count, 'partition')} stands inside one over"
            f" {around.size:,}. Nested ones run on the same devices: give them the same product."
        )
    if jax.process_count() > 1:
        return _local_devices(count)
    try:
        return devices_of(choose(None, count))[:count]
    except TargetError as error:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, one a device. {error}"
        ) from error


def _local_devices(count: int) -> tuple[Any, ...]:
    """The devices of this process, where there are several processes."""
    found = tuple(jax.local_devices())
    if len(found) < count:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, and this process has"
            f" {plural(len(found), 'device')} of {jax.device_count():,}. Across processes every one"
            " would give only its own part of the data, cut as local_in_parts says; shardviz runs"
            " sharded_jit on the devices of one process. Write it with jax.jit, NamedSharding and"
            " jax.make_array_from_process_local_data, as to_modern(...) begins it."
        )
    return found[:count]


def _check_local(alone: int | None, count: int | None) -> None:
    if alone is not None and count is not None and alone != count:
        raise ProgramError(
            f"local_num_partitions, or the local parts, say {plural(alone, 'partition')} for this"
            f" process, and there are {count:,} in all. In a single process, which has all of the"
            " devices, they are the same number: leave the local_ arguments out."
        )
