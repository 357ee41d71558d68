"""`python -m tests.stages.dumps FILE`: compiles every case on every mesh, and keeps what came out.

`python -m tests.stages.dumps FILE propagated` does so with the programs of `nested` and some of
`random_programs`, only until XLA has propagated.

In a process of its own, since it needs more devices than the other tests. FILE then holds a pickled
dict of case and mesh -> Entry.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardviz.base.collective import Collective


@dataclass(frozen=True)
class Entry:
    """One case on one mesh.

    Attributes:
        axis_names, axis_sizes: the mesh.
        collectives: what the package read from XLA's module after partitioning.
        compiled: what it read from the final one, with what it knew of the one before.
        partitioned, propagated: the modules after partitioning and before, as XLA serialises them.
        printed: the module after partitioning, as XLA prints it.
        final: the final module, so too.
        settled: opcode, dtype, shape and Shardy's sharding of every value straight after Shardy's
            propagation, before it inserts reshards; from Shardy's own dump.
        plan: what the package says before anything is compiled.
        compile_s, partition_s: seconds of the compile, and until the partitioner was done.
        reason: why there is no module, or None.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    collectives: tuple[Collective, ...]
    partitioned: bytes
    propagated: bytes
    settled: tuple[tuple[str, str, tuple[int, ...], str], ...]
    plan: Any
    compile_s: float
    partition_s: float | None
    reason: Any
    compiled: tuple[Collective, ...] = ()
    final: bytes = b""
    printed: str = ""


# Beside the modules that the package reads, their text.
OPTIONS = {
    "xla_dump_hlo_as_proto": True,
    "xla_dump_hlo_as_text": True,
    "xla_backend_optimization_level": 0,  # none of it runs, and the partitioner is long done
}
# As quick as can be for the same reason, where this jax has the option (0.12 has not).
QUICKER = {"xla_cpu_use_fusion_emitters": False}


def entry(case: Any, mesh: str) -> Entry:
    """Plans and compiles one case."""
    from shardviz.compiled.inherited import inherited
    from shardviz.compiled.module import Module
    from shardviz.compiled.read_collectives import read_collectives
    from shardviz.plans.backend.build_plan import plan_program
    from shardviz.runs.backend.compile import lower
    from shardviz.runs.backend.partitioner import compile_with_dump, dump_root
    from shardviz.runs.backend.targets import choose, device_mesh

    program = case.program(mesh)
    axes = program.mesh.axis_names, program.mesh.axis_sizes
    lowered = lower(program, device_mesh(program.mesh, choose("cpu", program.mesh.size)))
    with tempfile.TemporaryDirectory(dir=dump_root()) as folder:
        dumped = compile_with_dump(lowered.stage, OPTIONS, folder)
        partitioned = _proto(folder, "after_spmd-partitioning")
        (printed,) = Path(folder).glob("*.after_spmd-partitioning.*.txt")
        text = printed.read_text()
        propagated = _proto(folder, "after_shardy-xla")
        settled = _settled(folder, lowered.stage.compiler_ir("stablehlo").context)
    found = read_collectives(Module(partitioned), *axes)
    (module,) = dumped.compiled.runtime_executable().hlo_modules()
    final = module.as_serialized_hlo_module_proto()
    return Entry(
        *axes,
        found,
        partitioned,
        propagated,
        settled,
        plan_program(program),
        dumped.seconds,
        dumped.partition_s,
        dumped.reason,
        inherited(found, read_collectives(Module(final), *axes)),
        final,
        text,
    )


def propagated_entry(case: Any, mesh: str) -> Entry:
    """The same with a compile that ends once XLA has propagated; nothing is partitioned.

    Takes a tenth of the time: the partitioner refuses an operation that is put into the program.
    """
    import jax

    from shardviz.plans.backend.build_plan import plan_program
    from shardviz.runs.backend.compile import lower
    from shardviz.runs.backend.partitioner import PASSES, dump_root
    from shardviz.runs.backend.targets import choose, device_mesh

    program = case.program(mesh)
    axes = program.mesh.axis_names, program.mesh.axis_sizes
    ending = program.replace(fn=_ending(program.fn), out_specs=None)
    if program.out_specs is not None:
        ending = ending.replace(out_specs=(program.out_specs, None))
    lowered = lower(ending, device_mesh(program.mesh, choose("cpu", program.mesh.size)))
    with tempfile.TemporaryDirectory(dir=dump_root()) as folder:
        options = {**OPTIONS, "xla_dump_to": folder, "xla_dump_hlo_pass_re": PASSES}
        try:
            lowered.stage.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if "PartitionId" not in str(error):
                raise
        propagated = _proto(folder, "after_shardy-xla")
        settled = _settled(folder, lowered.stage.compiler_ir("stablehlo").context)
    plan = plan_program(program)
    return Entry(*axes, (), b"", propagated, settled, plan, 0.0, None, None)


def _ending(fn: Any) -> Any:
    """A function with one more result, whose operation the partitioner refuses."""
    number = _partition_number()

    @functools.wraps(fn)
    def with_number(*args: Any) -> Any:
        return fn(*args), number.bind()

    return with_number


@functools.cache
def _partition_number() -> Any:
    import jax
    import numpy as np
    from jax.extend.core import Primitive
    from jax.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    made = Primitive("partition_number")
    made.def_abstract_eval(lambda: jax.core.ShapedArray((), np.dtype("uint32")))
    mlir.register_lowering(made, lambda context: [stablehlo.partition_id()])
    return made


def _proto(folder: str, word: str) -> bytes:
    (found,) = Path(folder).glob(f"*.{word}.*.pb")
    return found.read_bytes()


def _settled(folder: str, context: Any) -> tuple[Any, ...]:
    from jaxlib.mlir import ir

    (found,) = Path(folder).glob("shardy/*/02.after_propagation.mlir")
    values: list[Any] = []

    def collect(operation: Any) -> None:
        said = operation.attributes
        text = str(said["sdy.sharding"]) if "sdy.sharding" in said else ""
        shardings = _each(text) or [""] * len(operation.results)
        for result, sharding in zip(operation.results, shardings, strict=True):
            shaped = ir.ShapedType(result.type)
            name = operation.name.partition(".")[2]
            values.append((name, str(shaped.element_type), tuple(shaped.shape), sharding))
        for region in operation.regions:
            for block in region.blocks:
                for inside in block.operations:
                    collect(inside.operation)

    with context:
        collect(ir.Module.parse(found.read_text()).operation)
    return tuple(values)


def _each(text: str) -> list[str]:
    """The shardings of `#sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>, ...]>`."""
    return re.findall(r"<@\w+, \[[^\]]*\][^>]*>", text)


def main(path: str, which: str = "all") -> None:
    """Compiles them all; with `which` "propagated", those that end once XLA has propagated."""
    import jax

    from tests.stages import nested, random_programs
    from tests.stages.programs import CASES, DEVICES

    jax.config.update("jax_num_cpu_devices", DEVICES)
    gc.set_threshold(20_000, 20, 50)  # what is made here is kept to the end
    if which == "propagated":
        cases = (*nested.CASES, *map(random_programs.program, random_programs.TESTED))
        pairs = [(case, mesh) for case in cases for mesh in case.meshes]
        ended = {(case.name, mesh): propagated_entry(case, mesh) for case, mesh in pairs}
        Path(path).write_bytes(pickle.dumps(ended))
        return
    begun = time.perf_counter()
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.jit(lambda x: x).lower(1.0).compile(compiler_options=QUICKER)
        OPTIONS.update(QUICKER)
    found = {(case.name, mesh): entry(case, mesh) for case in CASES for mesh in case.meshes}
    Path(path).write_bytes(pickle.dumps(found))
    print(f"{len(found)} programs in {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    # So that what is pickled names this module as the tests import it.
    from tests.stages import dumps

    dumps.main(*sys.argv[1:])
