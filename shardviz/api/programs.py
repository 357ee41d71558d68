"""Public functions for programs, and for the hardware that they are compiled for."""

from __future__ import annotations

import functools
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from shardviz.api.values import adopt, as_mesh, make_movement, reads_arguments
from shardviz.core.display import StageClock
from shardviz.core.errors import ProgramError, import_optional
from shardviz.core.format import joined, shown, suggestion
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.cache import ExecutableCache, cache
from shardviz.core.program.effects import Effects, Observed
from shardviz.core.program.program import Program, Targets, function_name
from shardviz.core.program.report import Report

if TYPE_CHECKING:
    from shardviz.core.backend.call_cache.cached_function import CachedFunction
    from shardviz.core.backend.hosts.run import Hosts
    from shardviz.core.hardware.topology import Topology
    from shardviz.core.program.contracts import Expectation
    from shardviz.core.program.lock import Lock
    from shardviz.core.program.movement import Movement
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.stages import Stages


P = ParamSpec("P")
T = TypeVar("T")


class _Step(NamedTuple):
    """A function with those keywords of a call that are its own."""

    fn: Any
    keywords: dict[str, Any]
    notes: tuple[str, ...] = ()


def _shares_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """The public function, with the keywords that the user's function takes kept for that.

    A keyword that the user's function names is its own. Of the others, those of the public function
    are its own, and the rest belong to a user's function with `**keywords`; without that they are
    refused with a sentence that lists the known ones. With `args=` or `kwargs=` the call of the
    user's function is spelled out, and every other keyword is the public function's.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    @functools.wraps(function)
    def sharing(*args: P.args, **keywords: P.kwargs) -> T:
        first = args[0] if args else keywords.pop(known[0], None)
        arrays = args[1:]
        named, any_other = _step_parameters(getattr(first, "fn", first))
        notes: list[str] = []
        theirs: dict[str, Any] = {}
        if any(name in keywords and name not in named for name in ("args", "kwargs")):
            arrays, theirs = _spelled_out(function.__name__, arrays, keywords)
            named, any_other = {}, False
        for name in list(keywords):
            if name == "mesh" and name in named and isinstance(keywords[name], (str, MeshSpec)):
                # No function can use the text or the MeshSpec of a program's mesh.
                _check_mesh_parameter(first, named["mesh"], len(arrays))
            elif name in named or (name not in known and any_other):
                theirs[name] = keywords.pop(name)
                if name in known and name != "mesh":
                    notes.append(_keyword_note(first, name, function.__name__))
            elif name not in known:
                raise ProgramError(
                    f"sv.{function.__name__} takes no {name}=, and neither does the function."
                    f"{suggestion(name, [*known, *named])} sv.{function.__name__} takes"
                    f" {joined(f'{k}=' for k in known)}; the function takes"
                    f" {joined(f'{k}=' for k in named) or 'no keywords'}."
                )
        step: Any = _Step(first, theirs, tuple(notes))
        return function(step, *arrays, **keywords)  # type: ignore[call-arg]

    return sharing


class _Parameter(NamedTuple):
    """A parameter that a function names: its position, and whether a call must give it."""

    position: int
    required: bool


def _step_parameters(fn: Any) -> tuple[dict[str, _Parameter], bool]:
    """The parameters that a call may give by name, and whether the function takes any other."""
    if not callable(fn):
        return {}, False
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some builtins have none
        return {}, False
    named = {}
    for position, parameter in enumerate(parameters):
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            required = parameter.default is parameter.empty
            named[parameter.name] = _Parameter(position, required)
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _spelled_out(
    public: str, arrays: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that `args=` and `kwargs=` spell out, which are taken from the keywords."""
    args, kwargs = keywords.pop("args", None), keywords.pop("kwargs", None)
    if args is not None and arrays:
        raise ProgramError(
            f"sv.{public} got arguments both one by one and as args=. Give all of them as args=."
        )
    if not isinstance(args, (tuple, list, type(None))):
        raise ProgramError(f"args= is a tuple of the function's arguments; got {shown(args)}.")
    if not isinstance(kwargs, (dict, type(None))):
        raise ProgramError(f"kwargs= is a dict of the function's arguments; got {shown(kwargs)}.")
    return arrays if args is None else tuple(args), dict(kwargs or {})


def _check_mesh_parameter(fn: Any, parameter: _Parameter, given: int) -> None:
    """Refuses a program whose function needs a mesh of its own, which the call does not give."""
    if parameter.required and parameter.position >= given:
        raise ProgramError(
            f"{function_name(fn)} has a parameter mesh of its own, which needs a mesh of jax."
            " Give it one, mesh=jax.make_mesh(...): it is the program's mesh as well. Or tell the"
            " two apart: sv.program(fn, args=(...), kwargs={'mesh': ...}, mesh=...)."
        )


def _keyword_note(fn: Any, name: str, public: str) -> str:
    return (
        f"{name}= was given to {function_name(fn)}, which has a parameter of that name, and not to"
        f" sv.{public}. To give both, write sv.{public}(fn, args=(...), kwargs={{'{name}': ...}},"
        f" {name}=...)."
    )


@reads_arguments
@_shares_keywords
def program(
    fn: Any, *arrays: Any, mesh: Any = None, rules: Any = None, dialect: Any = "linen",
    in_specs: Any = None, out_specs: Any = None, donate: Any = (), name: str = "",
    names: Callable[[str, Any], Any] | None = None, args: Any = None, kwargs: Any = None,
    **keywords: Any,
) -> Program:  # fmt: skip
    """A function with the arrays it takes, and how they are to be split.

    Args:
        fn: the function, as you would give it to `jax.jit`, or `jax.jit` of it: then its static
            arguments count, and its shardings and donation where the arguments below do not say
            otherwise. Methods, partials, `nnx.jit` and `eqx.filter_jit` are traced as you call
            them.
        *arrays: its arguments, as you would call it: arrays, `jax.ShapeDtypeStruct`s (with or
            without a sharding), ArraySpecs, numbers, or pytrees of these. What is no array, such as
            text, None or a function, is static. Flax's metadata of a parameter
            (`nn.with_partitioning`, `nnx` metadata) counts as logical axes.
        mesh: the mesh; may be left out where an array's sharding has one, or `jax.set_mesh`. Its
            axis types count: `sv.mesh` makes Auto axes, `jax.make_mesh` Explicit ones.
        rules: axis rules, for arrays with logical names.
        dialect: who reads the rules.
        in_specs, out_specs: PartitionSpecs, or pytree prefixes of them as `jax.jit` takes them,
            where arrays and rules do not say. None for an output leaves it to the compiler.
        donate: positions of arguments whose memory the program may reuse.
        name: what to call it; the function's name by default.
        names: called as `names(path, array)` for each array that says nothing of how it is split,
            such as `"params.mlp.kernel"`; it returns logical names, a PartitionSpec, or None.
        args, kwargs: the function's arguments, in place of `*arrays` and `**keywords`: then every
            other keyword is meant for `sv.program`, whatever the function calls its parameters.
        **keywords: further arguments of the function, by name. Where it has a parameter that is
            called as one of those above (`rules`, `name` …), that keyword is the function's. A
            `mesh` of jax is both the function's and the program's.

    Raises:
        ShardvizError: where the parts do not fit together.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> matmul = program(jnp.dot, sv.array("x", (8, 4)), sv.array("w", (4, 8)), mesh="data=4")
    >>> [a.name for a in matmul.arrays]
    ['x', 'w']
    """
    step, theirs, notes = fn if isinstance(fn, _Step) else _Step(fn, {})
    grid = None if mesh is None else as_mesh(mesh)
    table = None if rules is None else Rules.of(rules)
    if names is not None and not callable(names):
        raise ProgramError(
            "names= is a function of a path and an array, such as lambda path, array: ('batch',"
            f" None); got {shown(names)}."
        )
    building = import_optional("shardviz.core.backend.build_program", "sv.program", "jax")
    made = building.build_program(
        step, arrays, grid, table, Dialect.of(dialect, paths=False), in_specs, out_specs, donate,
        name, {**keywords, **theirs}, names,
    )  # fmt: skip
    return made.replace(notes=(*made.notes, *notes)) if notes else made


def plan(program: Program) -> Plan:
    """What the compiler would decide about every value of a program; nothing is compiled.

    Runs the compiler's own propagation (Shardy) on the lowered program: milliseconds, on a mesh of
    any size, without its devices.

    Args:
        program: what `sv.program` made.

    Returns:
        A Plan: every value with its sharding and the origin of every axis in `.ops`, an estimate
        of the collectives in `.collectives`; `.why(value)` explains one value, and
        `.diff(other)` is what an edit changed.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program that cannot
            be planned is a Plan with an error.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (4096, 512), spec="data, None")
    >>> made = plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=1024, model=1024"))
    >>> str(made.op("dot_general").spec)
    "P('data', 'model')"
    """
    planning = import_optional("shardviz.core.backend.shardy.build_plan", "sv.plan", "jax")
    return planning.plan_program(program)


def compile(program: Program, target: Any = None, *, options: Any = None) -> Report:
    """Compiles a program for a target, and reports; nothing is executed.

    Args:
        program: what `sv.program` made.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        options: compiler options, by name.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with an error.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> compile(program(jnp.sin, sv.array("x", (8,)), mesh="data=1")).error
    """
    runner = import_optional("shardviz.core.backend.hosts.run", "sv.compile", "jax")
    if options is not None and not isinstance(options, Mapping):
        raise ProgramError(f"Compiler options are a dict of names to values; got {shown(options)}.")
    changed = program if options is None else program.replace(
        options={**program.options, **options}
    )  # fmt: skip
    with _clock(program) as clock:
        return runner.compile_program(changed, target, cache=cache, progress=clock)


def stages(program: Program, target: Any = None) -> Stages:
    """A program at all its stages: requested, propagated, partitioned, compiled.

    Plans and compiles; nothing is executed.

    Args:
        program: what `sv.program` made.
        target: as for `sv.compile`: None, or text such as `"cpu:8"` or `"tpu:v5e:4x4"`.

    Returns:
        Stages: `.plan`, `.report`, and `.between("propagated", "partitioned")` for what changed
        from one stage to another, and where.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program that fails
            shows on which stage it did.

    >>> import shardviz as sv
    >>> x = sv.array("x", (64,), spec="data")
    >>> stages = stages(sv.program(lambda x: x.sum(), x, mesh="data=1"))
    >>> stages.report.error
    """
    from shardviz.core.program.stages import Stages

    planned = plan(program)
    runner = import_optional("shardviz.core.backend.hosts.run", "sv.stages", "jax")
    with _clock(program) as clock:
        report = runner.compile_program(program, target, cache=cache, progress=clock)
    return Stages(program, planned, report)


def run(
    program: Program, *values: Any, target: Any = None, repeat: int = 1, **keywords: Any
) -> Report:
    """Compiles and runs a program, and compares what was predicted with what happened.

    Args:
        program: what `sv.program` made.
        *values: the arguments, as for the function or without its static ones; by default made-up
            ones, small and always the same.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        repeat: how often to run it.
        **keywords: further arguments of the function, by name.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with an error.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> run(program(jnp.sin, sv.array("x", (8,)), mesh="data=1")).ok
    True
    """
    runner = import_optional("shardviz.core.backend.hosts.run", "sv.run", "jax")
    if isinstance(program, Program) and (keywords or (values and hasattr(program.fn, "arguments"))):
        calls = import_optional("shardviz.core.backend.calls", "sv.run", "jax")
        values = calls.values_of(program.fn, values, keywords)
    with _clock(program) as clock:
        return runner.run_program(
            program, *values, target=target, repeat=repeat, cache=cache, progress=clock
        )


def _clock(program: Any) -> StageClock:
    """The line that says what is done; of several processes the first one has it."""
    name = program.name if isinstance(program, Program) else "program"
    processes = import_optional("shardviz.core.backend.rendezvous", "sv.run", "jax")
    return StageClock(name, stream=None if processes.is_first() else io.StringIO())


def effects(thing: Any, *args: Any, **keywords: Any) -> Effects:
    """The effects of a program, and on how many devices it may run, before it runs.

    The function is traced and lowered, as jax would; nothing is compiled and no callback is called.

    Args:
        thing: what `sv.program` made, or a function.
        *args: for a function, what it takes, as in `sv.program`.
        **keywords: for a function, what it takes by name.

    Raises:
        ShardvizError: for what is neither, or where jax is not installed. What jax refuses is in
            `.refused`.

    >>> import jax
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    >>> effects(log, jax.ShapeDtypeStruct((8,), "float32")).devices
    '1 device'
    """
    prediction = import_optional("shardviz.core.backend.worker.effects", "sv.effects", "jax")
    return prediction.predict(thing, *args, **keywords)


def observed_order(program: Program, *values: Any, target: Any = None) -> Observed:
    """Runs a program and records in which order its effects happened, on each device.

    Args:
        program: what `sv.program` made.
        *values: the arguments; by default made-up ones.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.

    Raises:
        ShardvizError: for what is no program. The error of a failed run is in `.report`.

    >>> import jax, shardviz as sv
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x.sum())
    ...     return x
    >>> seen = observed_order(sv.program(log, sv.array("x", (8,)), mesh="data=1"))
    >>> [e.what for e in seen.events]
    ['{x}']
    """
    order = import_optional("shardviz.core.backend.worker.effects", "sv.observed_order", "jax")
    return order.observed_order(program, *values, target=target)


def cached(fn: Callable[..., Any], *, size: int = 128, **options: Any) -> CachedFunction:
    """A function that compiles once for each signature of its calls, and says why it did again.

    Args:
        fn: the function.
        size: how many signatures it holds before the least recently used one is dropped.
        **options: options of `jax.jit`, such as `static_argnums`.

    Raises:
        ShardvizError: for what is no function, for unknown options, or where jax is not installed.

    >>> double = cached(lambda x: x * 2)
    >>> results = double(1), double(2), double(2.5)
    >>> double.hits, double.misses, double.explain_miss()[-39:]
    (1, 2, 'argument x: dtype int32 became float32.')
    """
    caching = import_optional(
        "shardviz.core.backend.call_cache.cached_function", "sv.cached", "jax"
    )
    return caching.make_cached(fn, size, options)


@reads_arguments
def topology(text: str) -> Topology:
    """A slice of TPUs or a cluster of GPUs: chips, coordinates, hosts, links. Needs no jax.

    Args:
        text: as a target is written: `"tpu:v5e:4x4"`, `"tpu:v5p:8x8x16"`, `"tpu:v5e:4x4*2"` for
            two slices, `"gpu:h100:2x8"` for two hosts of eight.

    Raises:
        ShardvizError: with what could not be read, and how it is written.

    >>> pod = topology("tpu:v5p:8x8x16")
    >>> pod.size, pod.hosts, pod.coords[-1].tolist()
    (1024, 256, [7, 7, 15])
    """
    from shardviz.core.hardware.topology import Topology

    return Topology.parse(text)


@reads_arguments
def movement(
    what: Any,
    which: Any = None,
    *,
    mesh: Any = None,
    axes: Any = None,
    devices: Any = None,
    size: Any = None,
    group: Any = 0,
    algorithm: Any = None,
    topology: Any = None,
) -> Movement:
    """What a collective or a reshard sends, step by step, between the devices of one group.

    `sv.movement(report, 0)` takes a collective of a compiled program, `sv.movement("all-gather",
    devices=8, size="8 MiB")` one that is no program's, and `sv.movement(before, after)` goes from
    one Layout of an array to another. `sv.text` and `sv.plot` show what every device has after
    each step, and `.execute(values)` applies the steps to numbers.

    Args:
        what: a Report, Plan or Stages; a Collective; the kind of one; or a Layout.
        which: of a Report, Plan or Stages, which collective: its number, or itself; the largest
            where left out. Of a Layout, the Layout that the array goes to.
        mesh: for a Collective or a kind, the mesh.
        axes: for a kind, the mesh axes that it runs over: all where left out.
        devices: for a kind without a mesh, how many devices.
        size: for a kind, the bytes of the array on each device (of the result; of the operand for
            a reduce-scatter), or text such as `"8 MiB"`.
        group: which group of devices, counted from 0.
        algorithm: `"ring"`, `"both directions"`, `"torus"`, `"hosts"` or `"direct"`; what suits the
            group where left out.
        topology: the slice or cluster of the devices, `"tpu:v5e:4x4"`, for its axes and the rates
            of its links; of a Report, the one it was compiled for where left out.

    Raises:
        ShardvizError: for what has no steps, or arguments that do not fit together.

    >>> movement("all-reduce", devices=4, size="4 MiB").steps[0]
    MovementStep(Every device sends 1 chunk to its right neighbour, which adds its own part: sums \
of 2 of 4 devices.)
    """
    grid = None if mesh is None else as_mesh(mesh)
    return make_movement(
        adopt(what), adopt(which), mesh=grid, axes=axes, devices=devices, size=size, group=group,
        algorithm=algorithm, topology=topology,
    )  # fmt: skip


def hosts(
    processes: Any, *, devices: Any = None, platform: Any = None, heartbeat: Any = 10
) -> Hosts:
    """Several processes as one target, as on several hosts: started here, or engines that you have.

    `sv.run(program, target=hosts)` and `sv.compile` take it, and so they take its text,
    `"2 hosts x 4, local"`. It is a context manager: `with sv.hosts(2, devices=4) as hosts:`; or
    call `.close()`. What was started here ends with this kernel at the latest.

    Args:
        processes: how many to start on this machine; or an ipyparallel Client or Cluster, whose
            engines run on this machine or others.
        devices: how many devices each has; 1 by default where they are started here.
        platform: `"cpu"`, whose devices are simulated, by default where they are started here; or
            `"gpu"`, of which each process gets its share.
        heartbeat: seconds after which a process that says nothing counts as lost.

    Returns:
        Hosts: `.processes`, `.devices`, `.device_ids`, `.mesh(data=4, model=2)` of these devices,
        `.restart()`, `.close()`.

    Raises:
        ShardvizError: where ipyparallel or jax is not installed, where they do not start, or for
            engines that cannot be joined: jax has started there, or has another version.

    >>> with hosts(2, devices=4) as two:                            # doctest: +SKIP
    ...     report = run(step, target=two)
    """
    return import_optional("shardviz.core.backend.hosts.run", "sv.hosts", "jax").make_hosts(
        processes, devices, platform, heartbeat
    )


def targets() -> Targets:
    """What a program can be compiled for or run on here, in words.

    >>> len(targets()) >= 1
    True
    """
    found = import_optional("shardviz.core.backend.targets", "sv.targets", "jax").targets()
    several = sys.modules.get("shardviz.core.backend.hosts.group")  # else none can be running
    return found if several is None else Targets([*several.running_targets(), *found])


@reads_arguments
def expect(thing: Any, *, target: Any = None, stage: str = "partitioned") -> Expectation:
    """What should stay true of a program, for its tests: methods that return, or fail in words.

    `.no("all-gather", over="data")`, `.at_most("1 MiB", per="step")`, `.sharded(at_least=0.98)`,
    `.fits("tpu:v5p:8x8x16")` and `.matches("step.lock.json")`; each returns the expectation, or
    raises a ContractError. Nothing is compiled before a method needs it, and no more than once.

    Args:
        thing: a Program, which is compiled where collectives or memory count; a Report or Stages,
            for what is compiled already; a Plan, of which Shardy's estimate counts; or an Audit,
            which has arrays and no collectives.
        target: what a Program is compiled for: as many simulated CPUs as its mesh has devices
            where it is left out, whatever is attached, so that every machine finds the same.
        stage: `"partitioned"` for the collectives that XLA's partitioner put in, `"compiled"` for
            those of the final program, which differ from one kind of device to another.

    Raises:
        ShardvizError: for anything else. What is expected and not so is a ContractError, which is
            an AssertionError.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (64, 512), spec="data, None")
    >>> expect(sv.plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=4, model=2"))).no()
    Expectation(<lambda>)
    """
    from shardviz.core.program.contracts import Expectation

    return Expectation(thing, target, stage, _compile_for, plan)


@reads_arguments
def lock(thing: Any, *, collectives: bool = True, target: Any = None) -> Lock:
    """What a project commits, to hear when it changes: specs, and collectives folded by layer.

    Specs are those of the plan, which are XLA's own, and need no compile. Collectives are those
    that XLA's partitioner put in, which a compile for simulated CPUs finds out (Shardy's estimate
    is not locked, as the partitioner may choose otherwise).

    Args:
        thing: a Program; a Plan or an Audit, for specs alone; Stages; or the path of a lock's file,
            or of one of MaxText's records of shardings, which is read.
        collectives: whether to compile a Program, for its collectives.
        target: what to compile it for, as for `sv.expect`.

    Returns:
        A Lock: `.text` is its JSON, `.write(path)` writes it, and `.diff(other)` is what changed.

    Raises:
        ShardvizError: for anything else, and for a program that cannot be planned or compiled.

    >>> import shardviz as sv
    >>> found = lock(sv.audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "model=2"))
    >>> found.arrays["w"].text
    "float32[512, 2048] P(None, 'model')"
    """
    from shardviz.core.program.contracts import Expectation
    from shardviz.core.program.lock_files import read_lock

    if isinstance(thing, (str, os.PathLike)):
        return read_lock(thing)
    return Expectation(thing, target, compile=_compile_for, plan=plan).locked(collectives)


def _compile_for(program: Program, target: Any) -> Report:
    where = "cpu" if target is None else target
    report = compile(program, where)
    if report.cache_hit and not any(c.source for c in report.partitioned or ()):
        # What was compiled before, of code on other lines, has none; a contract names them.
        runner = import_optional("shardviz.core.backend.hosts.run", "sv.expect", "jax")
        return runner.compile_program(program, where, cache=ExecutableCache(size=1))
    return report
