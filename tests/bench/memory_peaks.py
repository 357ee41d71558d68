"""The peaks of 100 programs on CPUs, TPUs and GPUs: equal to those of the compilers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from shardviz.base.mesh import MeshSpec, make_mesh

TARGETS = ("cpu", "tpu:v5e:2x4", "tpu:v5p:2x2x2", "gpu:h100:1x8")
MESHES = (make_mesh(data=4, model=2), make_mesh(data=2, model=4), make_mesh(data=8, model=1))
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def main() -> int:
    """Compares every program on every target, a process each; how many differ."""
    differ = 0
    for target in TARGETS:
        command = [sys.executable, "-m", "tests.bench.memory_peaks", target]
        ran = subprocess.run(command, env={**os.environ, **_ENVIRONMENT}, check=False)
        differ += ran.returncode
    return differ


def compare(target: str, most: int | None = None) -> int:
    """Compiles the programs for one target and prints what was found; how many differ."""
    compared = on_core = 0
    wrong: list[str] = []
    read_s = 0.0
    for name, fn, arrays, mesh, donate in list(programs())[:most]:
        final, own = compiled(target, fn, arrays, mesh, donate)
        begun = time.perf_counter()
        ours, theirs = peak_of(final), compilers(final, own, target)
        read_s += time.perf_counter() - begun
        compared += 1
        on_core += theirs != own
        if ours != theirs:
            wrong.append(f"{name} on {mesh}: {ours} and not {theirs}")
    print(
        f"{target}: {compared} programs, {len(wrong)} differ; in {on_core} the figure"
        f" peak_memory_in_bytes is of another memory; read in {read_s:.1f} s",
        *wrong,
        sep="\n  ",
        flush=True,
    )
    return len(wrong)


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
    from tests.bench import memory_programs as own

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


if __name__ == "__main__":
    sys.exit(compare(sys.argv[1], *map(int, sys.argv[2:])))
