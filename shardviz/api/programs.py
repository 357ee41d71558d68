"""Public functions for programs, and for the hardware that they are compiled for."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardviz.api.adopt import as_mesh, optional
from shardviz.api.keywords import Step, shares_keywords, takes_by_name
from shardviz.axis_rules.rules import Dialect, Rules
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError, import_optional
from shardviz.base.format import shown
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.report import Report
from shardviz.hardware.targets import Targets
from shardviz.programs.effects import Effects
from shardviz.programs.program import Program, function_name
from shardviz.runs.cache import cache

if TYPE_CHECKING:
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import Lock
    from shardviz.compiled.stages import Stages
    from shardviz.plans.plan import Plan
    from shardviz.runs.backend.cached_function import CachedFunction
    from shardviz.runs.backend.hosts.run import Hosts


@shares_keywords
def program(
    fn: Any,
    *arrays: Any,
    mesh: Any = None,
    rules: Any = None,
    dialect: Any = "linen",
    in_specs: Any = None,
    out_specs: Any = None,
    donate: Any = (),
    name: str = "",
    names: Callable[[str, Any], Any] | None = None,
    args: Any = None,
    kwargs: Any = None,
    **keywords: Any,
) -> Program:
    """A function with the arrays it takes, and how they are to be split.

    Args:
        fn: the function, as you would give it to `jax.jit`, or `jax.jit` of it: then
            its static arguments count, and its shardings and donation where the
            arguments below do not say otherwise. Methods, partials, `nnx.jit` and
            `eqx.filter_jit` are traced as you call them.
        *arrays: its arguments, as you would call it: arrays, `jax.ShapeDtypeStruct`s
            (with or without a sharding), ArraySpecs, numbers, or pytrees of these. What
            is no array, such as text, None or a function, is static. Flax's metadata of
            a parameter (`nn.with_partitioning`, `nnx` metadata) counts as logical axes.
        mesh: the mesh; may be left out if an array's sharding has one, `jax.set_mesh`
            has set one, or the function names one itself. A mesh given here takes the
            place of the one in context. Its axis types count: `sv.mesh` makes Auto
            axes, `jax.make_mesh` Explicit ones.
        rules: axis rules, for arrays with logical names.
        dialect: who reads the rules.
        in_specs, out_specs: PartitionSpecs, or pytree prefixes of them as `jax.jit`
            takes them, where arrays and rules do not say. None for an output leaves it
            to the compiler.
        donate: positions of arguments whose memory the program may reuse.
        name: what to call it; the function's name by default.
        names: called as `names(path, array)` for each array that says nothing of how it
            is split, such as `"params.mlp.kernel"`; it returns logical names, a
            PartitionSpec, or None.
        args, kwargs: the function's arguments, in place of `*arrays` and `**keywords`:
            then every other keyword is meant for `sv.program`, whatever the function
            calls its parameters.
        **keywords: further arguments of the function, by name. Where it has a parameter
            that is called as one of those above (`rules`, `name` …), that keyword is
            the function's. A `mesh` of jax is both the function's and the program's.

    Raises:
        ShardvizError: where the parts do not fit together.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> matmul = program(jnp.dot, sv.array("x", (8, 4)), sv.array("w", (4, 8)), mesh="data=4")
    >>> [a.name for a in matmul.arrays]
    ['x', 'w']
    """
    # `shares_keywords` hands the function over with the keywords that are its own.
    step = fn
    if not isinstance(fn, Step):
        step = Step(fn, {})
    grid, table = optional(as_mesh, mesh), optional(Rules.of, rules)
    building = import_optional(
        "shardviz.programs.backend.build_program", "sv.program", "jax"
    )
    made = building.build_program(
        step.fn,
        arrays,
        grid,
        table,
        Dialect.of(dialect, paths=False),
        in_specs,
        out_specs,
        donate,
        name,
        {**keywords, **step.keywords},
        names,
    )
    if step.notes:
        made = made.replace(notes=(*made.notes, *step.notes))
    return made


def plan(thing: Any, /, *arrays: Any, **keywords: Any) -> Plan:
    """What the compiler would decide about every value of a program; nothing is
    compiled.

    Runs the compiler's own propagation (Shardy) on the lowered program: milliseconds,
    on a mesh of any size, without its devices.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *arrays: for a function, its arguments, as in `sv.program`.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes: `mesh=`, `rules=` and so on.

    Returns:
        A Plan: every value with its sharding and the origin of every axis in `.ops`, an
        estimate of the collectives in `.collectives`; `.why(value)` explains one value,
        and `.diff(other)` is what an edit changed.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program
            that cannot be planned is a Plan with an error.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (4096, 512), spec="data, None")
    >>> made = plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=1024, model=1024"))
    >>> str(made.op("dot_general").spec)
    "P('data', 'model')"
    >>> str(plan(lambda x: x.sum(), x, mesh="data=4").op("reduce_sum").spec)
    'P()'
    """
    planning = import_optional("shardviz.plans.backend.build_plan", "sv.plan", "jax")
    return planning.plan_program(_program_of(thing, "plan", arrays, keywords))


def compile(
    thing: Any,
    /,
    *arrays: Any,
    target: Any = None,
    options: Any = None,
    **keywords: Any,
) -> Report:
    """Compiles a program for a target, and reports; nothing is executed.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *arrays: for a function, its arguments, as in `sv.program`; after a program its
            target, which may also be given by name.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        options: compiler options, by name.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes: `mesh=`, `rules=` and so on.

    Returns:
        A Report. The program is planned as well: the buffers of `.memory` have the
        plan's names, and `.roofline` counts loops as often as they run.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with
            an error.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> compile(program(jnp.sin, sv.array("x", (8,)), mesh="data=1")).error
    """
    arrays, target = _target_after(thing, arrays, target)
    own = {"target": target, "options": options}
    program = _program_of(thing, "compile", arrays, keywords, own)
    runner = import_optional("shardviz.runs.backend.hosts.run", "sv.compile", "jax")
    if options is not None:
        # Options are a part of a program: with others it is another one.
        program = program.replace(options={**program.options, **options})
    with _clock(program) as clock:
        report = runner.compile_program(program, target, cache=cache, progress=clock)
    # A program that does not fit has an error, and buffers as well.
    if report.error is not None and report.memory.timeline is None:
        return report
    # A plan takes a small part of a compile's time.
    planned = _plan_for(program, report.on)
    if report.error is None:
        report = _with_operations(report, planned)
    return with_values(report, planned)


def _plan_for(program: Program, target: Any) -> Plan:
    """The plan of a program, lowered for the platform of a target."""
    planning = import_optional("shardviz.plans.backend.build_plan", "sv.plan", "jax")
    from shardviz.runs.backend.targets import lowering_platform

    platform = lowering_platform(target, program.mesh.size)
    return planning.plan_program(program, platform)


def _with_operations(report: Report, planned: Plan | None) -> Report:
    """The report, with the least times of the operations that its plan counts."""
    from shardviz.compiled.roofline import with_operations

    return report.replace(roofline=with_operations(report, planned))


def stages(thing: Any, /, *arrays: Any, target: Any = None, **keywords: Any) -> Stages:
    """A program at all its stages: requested, propagated, partitioned, compiled.

    Plans and compiles; nothing is executed.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *arrays: for a function, its arguments, as in `sv.program`; after a program its
            target, which may also be given by name.
        target: as for `sv.compile`: None, or text such as `"cpu:8"` or `"tpu:v5e:4x4"`.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes: `mesh=`, `rules=` and so on.

    Returns:
        Stages: `.plan`, `.report`, and `.between("propagated", "partitioned")` for what
        changed from one stage to another, and where.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program
            that fails shows on which stage it did.

    >>> import shardviz as sv
    >>> x = sv.array("x", (64,), spec="data")
    >>> stages = stages(sv.program(lambda x: x.sum(), x, mesh="data=1"))
    >>> stages.report.error
    """
    from shardviz.compiled.stages import Stages

    arrays, target = _target_after(thing, arrays, target)
    program = _program_of(thing, "stages", arrays, keywords, {"target": target})
    # First, so that it is there where the compile fails.
    planned = _plan_for(program, target)
    runner = import_optional("shardviz.runs.backend.hosts.run", "sv.stages", "jax")
    with _clock(program) as clock:
        report = runner.compile_program(program, target, cache=cache, progress=clock)
    report = with_values(_with_operations(report, planned), planned)
    return Stages(program, planned, report)


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
    runner = import_optional("shardviz.runs.backend.hosts.run", "sv.run", "jax")
    calls = import_optional("shardviz.programs.backend.calls", "sv.run", "jax")
    if isinstance(thing, Program):
        program = thing
        # A bound call knows which of these values are static.
        if keywords or (values and hasattr(program.fn, "values")):
            values = calls.values_of(program.fn, values, keywords)
    else:
        own = {"target": target, "repeat": None if repeat == 1 else repeat}
        program = _program_of(thing, "run", values, keywords, own)
        values = calls.values_in_call(program.fn, _positional(values, keywords))
    with _clock(program) as clock:
        report = runner.run_program(
            program, *values, target=target, repeat=repeat, cache=cache, progress=clock
        )
    # A plan counts loops as often as they run, if the chip's rates are known.
    planned = None if report.roofline is None else _plan_for(program, report.on)
    return with_values(_with_operations(report, planned), planned)


def _program_of(
    thing: Any,
    public: str,
    arrays: Sequence[Any],
    keywords: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
) -> Program:
    """The program that was given, or that is made of a function and its call.

    Args:
        thing: a Program, or a function.
        public: the name of the public function.
        arrays, keywords: what was given beside it.
        own: those keywords of the public function that `sv.program` does not have.

    Raises:
        ProgramError: for anything else, for a Program with arguments, and for a keyword
            that may be the function's or the public function's.
    """
    if isinstance(thing, Program):
        if arrays or keywords:
            raise ProgramError(
                f"sv.{public} got a program and arguments; a program has its own. Give"
                f" the program alone, or the function: sv.{public}(fn, *args)."
            )
        return thing
    if not callable(thing):
        raise ProgramError(
            f"sv.{public} takes what sv.program(fn, ...) made, or a function and its"
            f" arguments: sv.{public}(fn, *args); got {shown(thing)}."
        )
    if "args" not in keywords and "kwargs" not in keywords:
        for name, value in (own or {}).items():
            if value is not None and takes_by_name(thing, name, len(arrays)):
                raise ProgramError(
                    f"{function_name(thing)} has a parameter {name}, and so has"
                    f" sv.{public}. Tell the two apart: sv.{public}(fn, args=(...),"
                    f" kwargs={{{name!r}: ...}}, {name}=...)."
                )
    return program(thing, *arrays, **keywords)


def _target_after(
    thing: Any, arrays: tuple[Any, ...], target: Any
) -> tuple[tuple[Any, ...], Any]:
    """The arrays and the target of a call that may give the target after a program."""
    if isinstance(thing, Program) and len(arrays) == 1 and target is None:
        return (), arrays[0]
    return arrays, target


def _positional(
    values: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The positional arguments of a function, also where `args=` spells them out."""
    return values or tuple(keywords.get("args") or ())


def _clock(program: Any) -> StageClock:
    """The line that says what is done; of several processes the first one has it."""
    name = getattr(program, "name", "program")
    compat = import_optional("shardviz.base.backend.jax_compat", "sv.run", "jax")
    if compat.process_number() == 0:
        return StageClock(name)
    return StageClock(name, stream=io.StringIO())


def effects(thing: Any, *args: Any, **keywords: Any) -> Effects:
    """The effects of a program, and on how many devices it may run, before it runs.

    The function is traced and lowered, as jax would; nothing is compiled and no
    callback is called.

    Args:
        thing: what `sv.program` made, or a function.
        *args: for a function, what it takes, as in `sv.program`.
        **keywords: for a function, what it takes by name.

    Raises:
        ShardvizError: for what is neither, or where jax is not installed. What jax
            refuses is in `.refused`.

    >>> import jax
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    >>> effects(log, jax.ShapeDtypeStruct((8,), "float32")).devices
    '1 device'
    """
    prediction = import_optional(
        "shardviz.programs.backend.effects", "sv.effects", "jax"
    )
    return prediction.predict(thing, *args, **keywords)


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
    caching = import_optional(
        "shardviz.runs.backend.cached_function", "sv.cached", "jax"
    )
    return caching.CachedFunction(fn, size, **options)


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
    return import_optional(
        "shardviz.runs.backend.hosts.run", "sv.hosts", "jax"
    ).make_hosts(processes, devices, platform, heartbeat)


def targets() -> Targets:
    """What a program can be compiled for or run on here, in words.

    >>> len(targets()) >= 1
    True
    """
    here = import_optional("shardviz.runs.backend.targets", "sv.targets", "jax")
    # Where nothing has imported it, no hosts are running.
    group = sys.modules.get("shardviz.runs.backend.hosts.group")
    running = []
    if group is not None:
        running = group.running_targets()
    return Targets([*running, *here.targets()])


def expect(
    thing: Any, *, target: Any = None, stage: str = "partitioned"
) -> Expectation:
    """What should stay true of a program, for its tests: methods that return, or fail
    in words.

    `.no("all-gather", over="data")`, `.at_most("1 MiB", per="step")`,
    `.sharded(at_least=0.98)`, `.fits("tpu:v5p:8x8x16")` and
    `.matches("step.lock.json")`; each returns the expectation, or raises a
    ContractError. Nothing is compiled before a method needs it, and no more than once.

    Args:
        thing: a Program, which is compiled where collectives or memory count; a Report
            or Stages, for what is compiled already; a Plan, of which Shardy's estimate
            counts; or an Audit, which has arrays and no collectives.
        target: what a Program is compiled for: as many simulated CPUs as its mesh has
            devices where it is left out, whatever is attached, so that every machine
            finds the same.
        stage: `"partitioned"` for the collectives that XLA's partitioner put in,
            `"compiled"` for those of the final program, which differ from one kind of
            device to another.

    Raises:
        ShardvizError: for anything else. What is expected and not so is a
            ContractError, which is an AssertionError.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (64, 512), spec="data, None")
    >>> expect(sv.plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=4, model=2"))).no()
    Expectation(<lambda>)
    """
    from shardviz.advise.contracts import Expectation

    return Expectation(thing, target, stage, _compile_for, plan)


def lock(thing: Any, *, collectives: bool = True, target: Any = None) -> Lock:
    """What a project commits, to hear when it changes: specs, and collectives folded by
    layer.

    Specs are those of the plan, which are XLA's own, and need no compile. Collectives
    are those that XLA's partitioner put in, which a compile for simulated CPUs finds
    out (Shardy's estimate is not locked, as the partitioner may choose otherwise).

    Args:
        thing: a Program; a Plan or an Audit, for specs alone; Stages; or the path of a
            lock's file, which is read.
        collectives: whether to compile a Program, for its collectives.
        target: what to compile it for, as for `sv.expect`.

    Returns:
        A Lock: `.text` is its JSON, `.write(path)` writes it, and `.diff(other)` is
        what changed.

    Raises:
        ShardvizError: for anything else, and for a program that cannot be planned or
            compiled.

    >>> import shardviz as sv
    >>> found = lock(sv.audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "model=2"))
    >>> found.arrays["w"]
    "float32[512, 2048] P(None, 'model')"
    """
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import read_lock

    if isinstance(thing, (str, os.PathLike)):
        return read_lock(thing)
    return Expectation(thing, target, compile=_compile_for, plan=plan).locked(
        collectives
    )


def _compile_for(program: Program, target: Any) -> Report:
    return compile(program, "cpu" if target is None else target)
