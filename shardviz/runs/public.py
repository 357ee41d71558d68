"""Public functions that run programs or list the devices to run them on.

`sv.run`, `sv.watch`, `sv.hosts`, `sv.targets`, `sv.compare_meshes`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.public.adopt import is_compiled
from shardviz.base.typing import ArrayLike, MeshLike, PyTree, SpecLike, UserFunction
from shardviz.compiled.measured import with_least_times
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.report import Report
from shardviz.hardware.targets import TargetLike, Targets, check_target
from shardviz.plans.public import plan, plan_for_target
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of, progress_clock
from shardviz.runs.cache import cache

if TYPE_CHECKING:
    from shardviz.plans.plan import Plan
    from shardviz.runs.backend.hosts.run import Hosts
    from shardviz.runs.backend.listening import CompileLog
    from shardviz.runs.backend.watched_function import Watch
    from shardviz.runs.recompiles import MeshComparison


def run(
    program: Program | UserFunction,
    /,
    *values: PyTree,
    target: TargetLike = None,
    repeat: int = 1,
    measure: bool = False,
    **keywords: Any,
) -> Report:
    """Compiles and runs a program, and checks the program's layouts and results.

    Args:
        program: a Program, or a function, which `sv.program` turns into one.
        *values: the arguments, with or without the static ones. If omitted, shardviz
            generates small values, the same in every run. If `program` is a function,
            the arguments also define the program; if any argument has no value, such as
            a `jax.ShapeDtypeStruct`, shardviz generates all values.
        target: where to run: text such as `"cpu:8"`, or None for the attached devices
            if there are enough for the mesh, otherwise simulated ones.
        repeat: the number of runs.
        measure: whether to run the program three more times under jax's profiler, and
            report the time of each collective and operation in `.measured`.
        **keywords: the function's keyword arguments. If `program` is a function, also
            keyword arguments of `sv.program`, such as `mesh=` and `rules=`.

    Raises:
        ShardvizError: if jax is not installed, or if there is no such target. If the
            program fails, this function returns a Report with an `.error`.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> sv.run(jnp.sin, sv.array("x", (8,)), mesh="data=1").ok
    True
    """
    with needed_by("sv.run"):
        from shardviz.runs.backend.hosts import run
    with needed_by("sv.run"):
        from shardviz.programs.backend import calls
    if isinstance(program, Program):
        # A bound call has `values`, and knows which arguments are static.
        if keywords or (values and hasattr(program.fn, "values")):
            values = calls.values_of(program.fn, values, keywords)
    else:
        public_only = {
            "target": target,
            "repeat": None if repeat == 1 else repeat,
            "measure": measure or None,
        }
        program = program_of(program, "run", values, keywords, public_only)
        values = calls.values_in_call(program.fn, _positional(values, keywords))
    target = check_target(target, program.mesh.size)
    with progress_clock(program) as clock:
        report = run.run_program(
            program,
            *values,
            target=target,
            repeat=repeat,
            measure=measure,
            cache=cache,
            progress=clock,
        )
    # Operation times need loop counts, from the plan, and the chip's rates.
    planned = None
    if report.without_error.roofline is not None:
        planned = plan_for_target(program, report.on)
    return with_values(with_least_times(report, planned), planned)


def _positional(
    values: tuple[PyTree, ...], keywords: Mapping[str, Any]
) -> tuple[PyTree, ...]:
    """Returns positional arguments, which the caller can also pass as `args=`."""
    return values or tuple(keywords.get("args") or ())


@overload
def watch(fn: None = None) -> CompileLog: ...
@overload
def watch(
    fn: UserFunction, *, recompiles: Literal["allow", "error"] = "allow", **options: Any
) -> Watch: ...
def watch(
    fn: UserFunction | None = None,
    *,
    recompiles: Literal["allow", "error"] = "allow",
    **options: Any,
) -> Watch | CompileLog:
    """Jits a function, counts the calls of each signature, and explains each compile.

    Call the returned Watch like the result of `jax.jit`; it runs jax's own executables.
    A notebook shows the Watch as a table. Calls by `jax.grad`, `jax.vmap` and other
    transformations work, but are not counted. `with sv.watch() as compiles:` lists
    every compile of jax in a block.

    Args:
        fn: the function, jitted or not; None for a `with` block.
        recompiles: with `"error"`, a call that needs a second compile raises a
            RecompileError. The error comes before the compile if jax would trace the
            function again, after it if only shardings differ or `fn` is already jitted.
        **options: options of `jax.jit`, such as `static_argnums`.

    Returns:
        A Watch, with `.entries`, `.cache_size()` and `.explain_miss()`. There is one
        entry for each signature, with `.calls`, `.compile_s`, `.difference`, `.plan`
        and `.report`. Without `fn`, a CompileLog for a `with` block.

    Raises:
        ShardvizError: if jax is not installed, or `fn` is a `jax.stages.Compiled`.
        TypeError: from jax, if `fn` isn't a function or an option is unknown.

    >>> import shardviz as sv
    >>> double = sv.watch(lambda x: x * 2)
    >>> results = double(1), double(2), double(2.5)
    >>> double.cache_size(), double.explain_miss()[-39:]
    (2, 'argument x: dtype int32 became float32.')
    >>> with sv.watch() as compiles:
    ...     result = double(3)
    >>> len(compiles)
    0
    """
    with needed_by("sv.watch"):
        from shardviz.runs.backend import listening, watched_function
    if fn is None:
        if options or recompiles != "allow":
            raise ProgramError(
                "sv.watch() without a function lists the compiles of a `with` block, and"
                " takes no options. With options: sv.watch(fn, ...)."
            )
        return listening.CompileLog()
    if is_compiled(fn):
        raise ProgramError(
            "A Compiled never compiles again, so sv.watch has nothing to count. Give"
            " sv.watch the function, or the Compiled to sv.report."
        )
    return watched_function.Watch(fn, recompiles, options, _plan_of_call, _show)


def _plan_of_call(
    fn: UserFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> Plan:
    try:
        return plan(fn, args=args, kwargs=kwargs)
    except ProgramError:  # a program without a mesh runs on one device
        return plan(fn, args=args, kwargs=kwargs, mesh={"device": 1})


def _show(watch: Watch) -> None:
    try:
        from shardviz.explorer.watch_table import show
    except ImportError:  # without ipywidgets, IPython shows the table as HTML
        raise NotImplementedError from None
    from shardviz.explorer.public import explore

    show(watch, explore)


def hosts(
    processes: int | object,
    *,
    devices: int | None = None,
    platform: str | None = None,
    heartbeat: int = 10,
) -> Hosts:
    """Joins several processes into one target that behaves like several hosts.

    Pass the result, or its text `"2 hosts x 4, local"`, as `target=` to `sv.run` and
    `sv.compile`. Use the result as a context manager,
    `with sv.hosts(2, devices=4) as hosts:`, or call its `.close()`. Processes that this
    function starts end when this kernel ends, if not earlier.

    Args:
        processes: the number of processes to start on this machine; or an ipyparallel
            Client or Cluster, whose engines can run anywhere.
        devices: the number of devices per process; by default 1 for processes that this
            function starts, and all devices for ipyparallel engines.
        platform: `"cpu"` for simulated devices, the default for processes that this
            function starts; `"gpu"` to give each process its own GPUs.
        heartbeat: the seconds without a heartbeat after which a process counts as lost.

    Returns:
        Hosts, with `.processes`, `.devices`, `.device_ids` and `.close()`. Its method
        `.mesh(data=4, model=2)` makes a mesh of these devices.

    Raises:
        ShardvizError: if ipyparallel or jax is not installed, if the processes do not
            start, or if engines cannot be joined because they have already initialized
            jax or have another version of jax.

    >>> with sv.hosts(2, devices=4) as two:                         # doctest: +SKIP
    ...     report = sv.run(step, target=two)
    """
    with needed_by("sv.hosts"):
        from shardviz.runs.backend.hosts.run import make_hosts
    return make_hosts(processes, devices, platform, heartbeat)


def targets() -> Targets:
    """Lists the targets for which this kernel can compile or run programs.

    >>> import shardviz as sv
    >>> len(sv.targets()) >= 1
    True
    """
    with needed_by("sv.targets"):
        from shardviz.runs.backend import targets
    # Only this module joins processes, so if it isn't imported, there are none.
    group = sys.modules.get("shardviz.runs.backend.hosts.group")
    running = []
    if group is not None:
        running = group.running_targets()
    return Targets([*running, *targets.targets()])


def compare_meshes(
    first: MeshLike,
    second: MeshLike,
    fn: UserFunction,
    *arrays: ArrayLike,
    specs: SpecLike | None = None,
) -> MeshComparison:
    """Shows whether jax traces, lowers or compiles a function again for a second mesh.

    Args:
        first, second: jax meshes, or MeshSpecs with device ids.
        fn: the function, which is called twice on the first mesh and once on the
            second.
        *arrays: the function's arguments, as arrays or as shapes and dtypes.
        specs: one PartitionSpec for all arguments.

    Raises:
        ShardvizError: if `fn` is not a function, a mesh has no devices, or an array
            does not fit a mesh.

    >>> import jax, jax.numpy as jnp, shardviz as sv
    >>> here = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    >>> print(sv.compare_meshes(here, here, jnp.sin, jax.ShapeDtypeStruct((8,), "float32")).explain())
    jax repeated nothing for the second mesh, because both meshes have the same devices.
    """
    with needed_by("sv.compare_meshes"):
        from shardviz.runs.backend import listening
    return listening.compare_meshes(first, second, fn, *arrays, specs=specs)
