"""Here: the runner that compiles and runs a program on the devices of this process.

The kernel uses `Here` for attached devices. A worker, and each process of a cluster,
uses it for programs that the kernel sends.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, Sharding

from shardviz.base.backend.jax_compat import forget_failed_callbacks
from shardviz.base.errors import OutOfMemory
from shardviz.base.format import bytes_text
from shardviz.base.layout import Layout
from shardviz.compiled.report import Memory
from shardviz.compiled.roofline import roofline
from shardviz.hardware.chips import chip_of_kind
from shardviz.programs.backend.devices import Device, with_devices
from shardviz.programs.backend.failures import available_memory
from shardviz.programs.backend.jaxprs import positive_arguments
from shardviz.programs.backend.retraced import trace_unsharded
from shardviz.programs.backend.trace import Output, Traced, left_to_compiler, trace
from shardviz.programs.failure import CancelledAfter
from shardviz.programs.program import Program
from shardviz.runs.backend.agree import account_of
from shardviz.runs.backend.checks import (
    output_layouts,
    shards_check,
    spec_checks,
    unsharded_checks,
)
from shardviz.runs.backend.compile import (
    Executable,
    Lowered,
    compile_lowered,
    compiler_options,
    donation_note,
    fingerprint,
    lower,
    refused_memory,
)
from shardviz.runs.backend.device_memory import (
    capacity_of,
    host_available,
    refuse_too_big,
)
from shardviz.runs.backend.inputs import Inputs, copies_allowed
from shardviz.runs.backend.partitioner import TooLargeToCompile
from shardviz.runs.backend.profiling import profiled
from shardviz.runs.backend.runner import Job, Runner


class Here(Runner[Lowered, Executable]):
    """Compiles or runs a job in this process.

    Args:
        job: the job.
        mesh: the jax mesh to run on.
    """

    def __init__(self, job: Job, mesh: Mesh) -> None:
        super().__init__(job)
        self.mesh, self.devices = mesh, list(mesh.devices.flat)
        # Each device's id in the program's mesh, which may differ from jax's id.
        ids = job.program.mesh.device_ids.ravel().tolist()
        self.ids: dict[Device, int] = dict(zip(self.devices, ids, strict=True))
        job.note(mesh=with_devices(job.program.mesh, self.devices))

    # `HereForKernel` overrides these methods, for programs that the kernel sends.

    def trace(self) -> Traced:
        return trace(self.job.program, self.mesh)

    def lower(self, traced: Traced) -> Lowered:
        return lower(traced)

    def lower_unsharded(self, original: Traced, single: Program, mesh: Mesh) -> Lowered:
        """Lowers the unsharded function for one device."""
        traced = trace_unsharded(original, single, lambda program: trace(program, mesh))
        return lower(traced)

    def key(self, lowered: Lowered) -> str:
        return fingerprint(lowered, self.devices, compiler_options(self.job.program))

    def positive(self, traced: Traced) -> tuple[int, ...]:
        """Returns positions of arguments whose generated values must be above 0."""
        return positive_arguments(traced.stage.jaxpr)

    def with_capacity(self, memory: Memory) -> Memory:
        """Adds the total and the free memory of each device."""
        chip = chip_of_kind(self.devices[0].device_kind)
        capacity, count = capacity_of(self.devices), len(self.devices)
        total = capacity.total_per_device(count)
        if chip is not None:
            # The runtime's total excludes the memory that the runtime reserves.
            total = chip.device_bytes or total
        return memory.replace(capacity=total, free_now=capacity.per_device(count))

    def note_roofline(self) -> None:
        """Adds a roofline to the report, if the chip's figures are published."""
        chip = chip_of_kind(self.devices[0].device_kind)
        if chip is not None:
            self.job.note(roofline=roofline(self.job.report, chip))

    def inputs(self, lowered: Lowered, executable: Executable) -> Inputs:
        """Collects the arguments of a run; does not place them yet."""
        job, positive = self.job, self.positive(lowered.traced)
        shardings = _input_shardings(executable)
        # Argument position -> sharding that the compiler chose.
        compiled: dict[int, Sharding] = {}
        for position in left_to_compiler(job.program):
            sharding = shardings[position]
            if sharding is not None:
                compiled[position] = sharding
        return Inputs(job.program, self.mesh, job.leaves, positive, compiled)

    def before_compile(self, lowered: Lowered) -> None:
        """A hook for rejecting programs that must not be compiled in this process."""

    # Compiling.

    def compile(self, lowered: Lowered) -> Executable:
        job = self.job
        # Compare first: compiling for minutes would be in vain if processes disagree.
        if job.rendezvous is not None:
            job.enter("compare")
            account = account_of(job, self.devices, job.rendezvous.call)
            job.rendezvous.compare(account)
        job.enter("compile")
        new: list[Executable] = []

        def compile_new() -> Executable:
            self.before_compile(lowered)
            new.append(self.compile_new(lowered))
            return new[0]

        # Programs with effects or callbacks aren't cached, because their text does not
        # show which Python functions they call.
        if lowered.cacheable:
            key = self.key(lowered)
            executable = job.cache.get_or_make(key, compile_new, job.program.name)
        else:
            executable = compile_new()
        job.note(cache_hit=not new, compile_s=executable.compile_s if new else 0.0)
        self.note_executable(lowered, executable)
        return executable

    def compile_new(self, lowered: Lowered) -> Executable:
        """Compiles; if the program is too large, reports the memory that it needs."""
        program = self.job.program
        try:
            return compile_lowered(lowered, program.mesh)
        except TooLargeToCompile as refusal:
            memory = self.with_capacity(
                refused_memory(refusal.final, lowered, program.mesh)
            )
            available = available_memory(refusal.error) or memory.capacity
            self.job.note(memory=memory.replace(capacity=available))
            raise refusal.error from None

    def note_executable(self, lowered: Lowered, executable: Executable) -> None:
        """Adds the compiler's figures to the report, and checks the output layouts."""
        job = self.job
        self._note_chosen_layouts(executable)
        outputs, mesh = lowered.traced.outputs, job.program.mesh
        shardings = jax.tree.leaves(executable.stage.output_shardings)
        layouts, without = output_layouts(outputs, shardings, mesh, self.ids)
        job.note(
            collectives=executable.collectives,
            partitioned=executable.partitioned,
            partition_s=executable.partition_s,
            memory=self.with_capacity(executable.memory),
            cost=executable.cost,
            loops=executable.loops,
            out_layouts=layouts,
        )
        notes = (
            executable.unpartitioned,
            executable.unread,
            donation_note(job.program, executable.unusable),
        )
        job.add_notes([note for note in notes if note])
        self.note_roofline()
        specs = lowered.traced.out_specs
        job.check(*without, *spec_checks(outputs, specs, mesh, layouts))

    def _note_chosen_layouts(self, executable: Executable) -> None:
        """Reports the layouts that the compiler chose for arguments."""
        job = self.job
        arrays = list(job.program.arrays)
        # Most programs leave no sharding to the compiler.
        free = sorted(left_to_compiler(job.program))
        if not free:
            return
        shardings = _input_shardings(executable)
        positions, outputs, chosen = [], [], []
        for position in free:
            array, sharding = arrays[position], shardings[position]
            # The sharding of an unused argument is None.
            if sharding is not None:
                positions.append(position)
                outputs.append(Output(array.name, array.shape, array.dtype))
                chosen.append(sharding)
        mesh = job.program.mesh
        layouts, without = output_layouts(outputs, chosen, mesh, self.ids)
        for position in positions:
            array = arrays[position]
            layout = layouts.get(array.name)
            if layout is not None and layout.spec is not None:
                arrays[position] = array.replace(logical=None, spec=layout.spec)
        job.program = job.program.replace(arrays=tuple(arrays))
        job.note(in_layouts={**job.report.in_layouts, **layouts})
        job.check(*without)

    # Running.

    def run(self, lowered: Lowered, executable: Executable) -> None:
        job = self.job
        job.enter("place")
        inputs = self.inputs(lowered, executable)
        self.refuse_if_too_big(executable, inputs)
        self._meet("place")
        begun = time.perf_counter()
        placed = inputs.place_all()
        job.note(place_s=time.perf_counter() - begun)
        # Check the inputs first: wrong placement would explain wrong results.
        for request, array in zip(job.program.requests, placed, strict=True):
            layout = job.report.in_layouts.get(request.array.name, request.layout)
            if layout is not None:
                self._check_shards(request.array.name, layout, array)
        self._meet("run")
        job.enter("run")
        try:
            results = self.execute(executable, inputs, placed)
            if not lowered.cacheable:
                jax.effects_barrier()  # effects can finish after the results
        except Exception:
            forget_failed_callbacks()
            raise
        job.note(outputs=lowered.traced.out_tree.unflatten(results))
        job.enter("check")
        layouts = job.report.out_layouts
        for output, array in zip(lowered.traced.outputs, results, strict=True):
            if output.name in layouts:
                self._check_shards(output.name, layouts[output.name], array)
        compared = unsharded_checks(
            job.program,
            lowered,
            executable,
            self.devices,
            inputs,
            self.lower_unsharded,
            results,
        )
        job.check(*compared)

    def refuse_if_too_big(self, executable: Executable, inputs: Inputs) -> None:
        """Raises if a run needs more memory than is free."""
        capacity, placed = capacity_of(self.devices), inputs.bytes_in_place
        refuse_too_big(executable.memory, capacity, len(self.devices), placed)
        arrays = self.job.program.arrays
        largest = max(arrays, key=lambda array: array.bytes, default=None)
        free = host_available()
        if inputs.leaves is None and largest and free and largest.bytes > free:
            raise OutOfMemory(
                f"Making up values for {largest.name}, {largest.short}, takes"
                f" {bytes_text(largest.bytes)} on this machine, which has"
                f" {bytes_text(free)} free. Give it a smaller shape, or take sv.compile,"
                " which needs no values."
            )

    def _meet(self, step: str) -> None:
        """Waits until all processes are ready, so that none waits in a collective."""
        if self.job.rendezvous is not None:
            self.job.rendezvous.ready(step)

    def execute(
        self, executable: Executable, inputs: Inputs, placed: list[jax.Array]
    ) -> list[jax.Array]:
        """Executes the program `job.repeat` times; returns the last results.

        To measure, a few more calls follow, under a profile.
        """
        job = self.job
        seconds: list[float] = []
        results: list[jax.Array] = []
        repeat = job.repeat or 1

        def execute_again() -> None:
            del results[:]  # frees memory for the next results
            inputs.replace_donated(placed)
            results[:] = self._execute_once(executable, placed)

        for runs_done in range(repeat):
            if runs_done:
                job.poll(CancelledAfter(runs_done, repeat))
                del results[:]
                inputs.replace_donated(placed)
            begun = time.perf_counter()
            results[:] = self._execute_once(executable, placed)
            seconds.append(time.perf_counter() - begun)
        job.note(runs_s=tuple(seconds), run_s=statistics.median(seconds))
        if job.measure:
            job.poll(CancelledAfter(repeat, repeat))
            job.note_measured(profiled(executable, self.ids, execute_again))
        return results

    def _execute_once(
        self, executable: Executable, placed: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        """Executes the program once; raises if another process fails meanwhile."""
        if self.job.rendezvous is None:
            return jax.block_until_ready(executable.run(*placed))

        def execute() -> Sequence[jax.Array]:
            results = jax.block_until_ready(executable.run(*placed))
            jax.effects_barrier()  # jax tracks effects per thread
            return results

        return self.job.rendezvous.run(execute)

    @copies_allowed()
    def _check_shards(self, name: str, layout: Layout, array: jax.Array) -> None:
        self.job.check(shards_check(name, layout, array, self.ids))


def _input_shardings(executable: Executable) -> list[Sharding | None]:
    """Returns the compiled sharding of each argument; None for an unused one."""
    stage = executable.stage
    # An argument that is None has no sharding either, and isn't a leaf.
    return list(stage.in_tree.flatten_up_to(stage.input_shardings))
