"""Programs whose peak of memory is compared with that of their compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shardviz.base.mesh import MeshSpec, make_mesh

MESHES = (make_mesh(data=4, model=2), make_mesh(data=2, model=4), make_mesh(data=8, model=1))


def peak_of(final: bytes) -> int | None:
    """The sum over the buffers at the peak."""
    from shardviz.compiled.buffers import read_memory

    timeline = read_memory(final)
    if timeline is None:
        return None
    peak = timeline.peak
    assert peak.bytes == sum(b.bytes for b in peak.buffers) == int(timeline.total.max())
    return peak.bytes


def compilers(final: bytes, own: int, target: str) -> int:
    """The compiler's own peak.

    `peak_memory_in_bytes` is what lasts and the most of any heap: of a CPU without the heap, and
    of a TPU that of the memory on the core, where that one is larger than that of the device.
    """
    from tests.program.memory_oracle import heap_peaks

    lasting, most = heap_peaks(final)
    counted = 0 if target == "cpu" else max(most.values(), default=0)
    assert own in (0, lasting + counted), (own, lasting, most)
    return lasting + most.get(0, 0)


def compiled(
    target: str, fn: Callable[..., Any], arrays: dict[str, Any], mesh: MeshSpec, donate: Any
) -> tuple[bytes, int]:
    """What a program's compile leaves: its buffers, and `peak_memory_in_bytes`."""
    import jax
    from jax.sharding import NamedSharding

    from shardviz.runs.backend.partitioner import compile_with_dump
    from shardviz.runs.backend.targets import choose, compile_only_mesh, device_mesh

    platform = target.partition(":")[0]
    if platform == "cpu":
        placed = device_mesh(mesh, choose("cpu:8", 8))
    else:
        placed, _ = compile_only_mesh(mesh, target)
    arguments = []
    for shape, dtype, spec in arrays.values():
        sharding = NamedSharding(placed, spec)
        arguments.append(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))
    with jax.set_mesh(placed):  # some constrain values by a spec alone
        traced = jax.jit(fn, donate_argnums=donate).trace(*arguments)
    lowered = traced.lower(lowering_platforms=({"gpu": "cuda"}.get(platform, platform),))
    dumped = compile_with_dump(lowered)
    assert dumped.final is not None
    return dumped.final, dumped.compiled.memory_analysis().peak_memory_in_bytes


def programs() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], MeshSpec, Any]]:
    """Programs as name, function, arrays, mesh and what is donated: 102 in all."""
    from jax.sharding import PartitionSpec as P

    from shardviz.gallery import programs as gallery
    from tests.program import memory_programs as own

    for mesh in MESHES:
        for registry in (gallery, gallery.puzzles):
            for name in registry.names():
                if name == "two orders of devices":  # of the kernel's own devices
                    continue
                program = registry.get(name).replace(mesh=mesh)
                arrays = {}
                for request in program.requests:
                    array = request.array
                    arrays[array.name] = array.shape, array.dtype, request.spec.to_jax()
                yield name, program.fn, arrays, mesh, ()
        for fn in own.PROGRAMS:
            weights = {"w": ((8, 4096, 4096), "float32", P(None, None, "model"))}
            if fn in own.OF_ONE_MATRIX:
                weights = {"w": ((4096, 4096), "float32", P(None, "model"))}
            arrays = {**weights, "x": ((8192, 4096), "float32", P("data", None))}
            yield fn.__name__, fn, arrays, mesh, (0,) if fn in own.DONATING else ()
