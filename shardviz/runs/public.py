"""Public functions that run programs, and the devices they run on.

`sv.run`, `sv.cached`, `sv.hosts`, `sv.targets`, `sv.compare_meshes`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardviz.base.errors import needed_by
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.public import (
    progress_clock,
    with_operation_times,
)
from shardviz.compiled.report import Report
from shardviz.hardware.targets import Targets
from shardviz.plans.public import plan_for_target
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of
from shardviz.runs.cache import cache

if TYPE_CHECKING:
    from shardviz.runs.backend.cached_function import CachedFunction
    from shardviz.runs.backend.hosts.run import Hosts
    from shardviz.runs.cached import MeshComparison


def run(
    thing: Any, /, *values: Any, target: Any = None, repeat: int = 1, **keywords: Any
) -> Report:
    """Compiles and runs a program, and compares what was predicted with what happened.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *values: the arguments, as for the function or without its static ones; by
            default made-up ones, small and always the same. Of a function they make the
            program as well; where one of them has a shape and no value, as a
            `jax.ShapeDtypeStruct` has, all values are made up.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        repeat: how often to run it.
        **keywords: further arguments of the function, by name; of a bare function also
            what else `sv.program` takes: `mesh=`, `rules=` and so on.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with
            an error.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> run(program(jnp.sin, sv.array("x", (8,)), mesh="data=1")).ok
    True
    """
    with needed_by("sv.run"):
        from shardviz.runs.backend.hosts import run
    with needed_by("sv.run"):
        from shardviz.programs.backend import calls
    if isinstance(thing, Program):
        program = thing
        # A bound call knows which of these values are static.
        if keywords or (values and hasattr(program.fn, "values")):
            values = calls.values_of(program.fn, values, keywords)
    else:
        own = {"target": target, "repeat": None if repeat == 1 else repeat}
        program = program_of(thing, "run", values, keywords, own)
        values = calls.values_in_call(program.fn, _positional(values, keywords))
    with progress_clock(program) as clock:
        report = run.run_program(
            program, *values, target=target, repeat=repeat, cache=cache, progress=clock
        )
    # A plan counts loops as often as they run, if the chip's rates are known.
    planned = None if report.roofline is None else plan_for_target(program, report.on)
    return with_values(with_operation_times(report, planned), planned)


def _positional(
    values: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The positional arguments of a function, also where `args=` spells them out."""
    return values or tuple(keywords.get("args") or ())


def cached(
    fn: Callable[..., Any], *, size: int = 128, **options: Any
) -> CachedFunction:
    """A function that compiles once for each signature of its calls, and says why it
    did again.

    Args:
        fn: the function.
        size: how many signatures it holds before the least recently used one is
            dropped.
        **options: options of `jax.jit`, such as `static_argnums`.

    Raises:
        ShardvizError: where jax is not installed, or for a size below 1.
        TypeError: by jax, for what is no function, and for unknown options.

    >>> double = cached(lambda x: x * 2)
    >>> results = double(1), double(2), double(2.5)
    >>> double.hits, double.misses, double.explain_miss()[-39:]
    (1, 2, 'argument x: dtype int32 became float32.')
    """
    with needed_by("sv.cached"):
        from shardviz.runs.backend import cached_function
    return cached_function.CachedFunction(fn, size, **options)


def hosts(
    processes: Any, *, devices: Any = None, platform: Any = None, heartbeat: Any = 10
) -> Hosts:
    """Several processes as one target, as on several hosts: started here, or engines
    that you have.

    `sv.run(program, target=hosts)` and `sv.compile` take it, and so they take its text,
    `"2 hosts x 4, local"`. It is a context manager: `with sv.hosts(2, devices=4) as
    hosts:`; or call `.close()`. What was started here ends with this kernel at the
    latest.

    Args:
        processes: how many to start on this machine; or an ipyparallel Client or
            Cluster, whose engines run on this machine or others.
        devices: how many devices each has; 1 by default where they are started here.
        platform: `"cpu"`, whose devices are simulated, by default where they are
            started here; or `"gpu"`, of which each process gets its share.
        heartbeat: seconds after which a process that says nothing counts as lost.

    Returns:
        Hosts: `.processes`, `.devices`, `.device_ids`, `.mesh(data=4, model=2)` of
        these devices, `.close()`.

    Raises:
        ShardvizError: where ipyparallel or jax is not installed, where they do not
            start, or for engines that cannot be joined: jax has started there, or has
            another version.

    >>> with hosts(2, devices=4) as two:                            # doctest: +SKIP
    ...     report = run(step, target=two)
    """
    with needed_by("sv.hosts"):
        from shardviz.runs.backend.hosts.run import make_hosts
    return make_hosts(processes, devices, platform, heartbeat)


def targets() -> Targets:
    """What a program can be compiled for or run on here, in words.

    >>> len(targets()) >= 1
    True
    """
    with needed_by("sv.targets"):
        from shardviz.runs.backend import targets
    # Where nothing has imported it, no hosts are running.
    group = sys.modules.get("shardviz.runs.backend.hosts.group")
    running = []
    if group is not None:
        running = group.running_targets()
    return Targets([*running, *targets.targets()])


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> MeshComparison:
    """What JAX traces, lowers and compiles again when one function is called on two
    meshes.

    Args:
        first, second: jax meshes, or MeshSpecs with device ids.
        fn: the function; it is called three times.
        *arrays: what it takes: arrays, or shapes and types.
        specs: one PartitionSpec for all of them.

    Raises:
        ShardvizError: for what is no function, no mesh of devices, or an array that
            does not fit.

    >>> import jax, jax.numpy as jnp
    >>> here = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    >>> print(compare_meshes(here, here, jnp.sin, jax.ShapeDtypeStruct((8,), "float32")).explain())
    Nothing was done again for the second mesh: it has the devices of the first.
    """
    with needed_by("sv.compare_meshes"):
        from shardviz.runs.backend import listening
    return listening.compare_meshes(first, second, fn, *arrays, specs=specs)
