"""export_program(): a program as bytes and plain data, to be sent to a worker process.

The program is traced and lowered here, on a mesh without devices, for the platform of
its target. Only the lowered module is sent, never the user's own code: its callbacks
stay in this process. It keeps the source lines, so that what the compiler says leads to
the user's code.

The worker gives the compiler that very module. What `jax.export` serialises is another
one, whose constants are merged, and to call it adds a function and constraints, so that
XLA splits values and places collectives otherwise. To compile a module, jax needs a
traced function around it: `placeholder` makes one with the same arguments, results and
effects, and `put_module` replaces what it was lowered to.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import ShapedArray
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.version import __version__ as jaxlib_version

from shardviz.base.array_spec import ArraySpec, dtype_name
from shardviz.base.backend.jax_compat import (
    Primitive,
    concrete_mesh,
    keep_module,
    kept_module,
    lowering_attribute,
    stablehlo_module,
)
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.bridge import abstract_mesh, adopt_mesh, jax_dtype
from shardviz.programs.backend.devices import MOST_NAMED, mesh_of, mesh_to_lower_on
from shardviz.programs.backend.failures import in_words, said_by
from shardviz.programs.backend.jaxpr_names import DEBUG_CALLS
from shardviz.programs.backend.jaxprs import (
    named_device_count,
    operations,
    positive_arguments,
)
from shardviz.programs.backend.retraced import (
    spec_of_type,
    specs_of_types,
    trace_unsharded,
    unsharded,
    with_specs_of_types,
)
from shardviz.programs.backend.trace import (
    Traced,
    donated_leaves,
    left_to_compiler,
    trace,
)
from shardviz.programs.backend.worker.messages import (
    HostCallback,
    compile_arguments,
    effects_of,
    take_callbacks,
)
from shardviz.programs.program import Program
from shardviz.runs.backend.compile import Lowered, compiler_options, lower
from shardviz.runs.backend.runner import NotExportable

_CALLBACKS = ("pure_callback", "io_callback", "callback", *DEBUG_CALLS)
#: What jax keeps beside the module of a lowered program, and what that comes from.
BESIDE = {
    "mut": "mutable arrays of its own (jax.new_ref)",
    "keepalive": "functions that partition it (custom_partitioning)",
    "const_args": "closed-over arrays as arguments (jax_use_simplified_jaxpr_constants)",
}


@dataclass(frozen=True, eq=False)
class LoweredModule:
    """What a program was lowered to, and what jax has to know to compile it.

    Attributes:
        bytecode: the StableHLO module.
        kept: the positions of the arguments that it takes: jax drops those that nothing
            reads.
        results: shape and dtype of each result; on a mesh with Explicit axes its spec;
            and the mesh of its type, unless that is the program's.
        effects: the classes of its ordered and of its other effects.
        names_devices: whether it names a mesh of devices, on all of which jax then runs
            it, even if it reads no argument.
    """

    bytecode: bytes
    kept: tuple[int, ...]
    results: tuple[tuple[tuple[int, ...], str, Spec | None, MeshSpec | None], ...]
    effects: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    names_devices: bool = False


@dataclass(frozen=True, eq=False)
class ExportedProgram:
    """A program that can be sent to another process: bytes, names and numbers.

    Attributes:
        name: what the program is called.
        arrays: its arguments, each with the spec that holds.
        mesh: the mesh it is laid out on.
        out_specs: one Spec per result, or None where the compiler chooses.
        options: compiler options; `donate` holds positions of leaves.
        outputs: the names of the results.
        platform: what it was lowered for: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        module: the lowered program.
        unsharded: the unsharded function, lowered; None where it is not needed, or why
            it cannot be lowered, in words.
        key: the fingerprint of the compile.
        x64: whether jax is set to 64 bits.
        capacity: bytes of memory on each device; None to ask the device itself.
        positive: the positions of arguments whose made-up values are above 0.
        free: whether the compiler chooses how to split some of its arguments.
    """

    name: str
    arrays: tuple[ArraySpec, ...]
    mesh: MeshSpec
    out_specs: tuple[Spec | None, ...]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]
    platform: str
    target: str
    module: LoweredModule
    key: str
    unsharded: LoweredModule | str | None = None
    x64: bool = False
    capacity: int | None = None
    positive: tuple[int, ...] = ()
    free: bool = False


@dataclass
class TakenCallbacks:
    """The callbacks of an exported program, which stay in this process.

    Attributes:
        program: those of the program, by number.
        unsharded: those of the unsharded function.
    """

    program: tuple[HostCallback, ...] = ()
    unsharded: tuple[HostCallback, ...] = ()


def export_program(
    program: Program,
    traced: Traced,
    platform: str,
    target: str = "",
    *,
    run: bool = False,
    capacity: int | None = None,
    callbacks: TakenCallbacks | None = None,
) -> ExportedProgram:
    """A program as it is sent to a worker.

    Args:
        program: what to export.
        traced: the program, traced on `abstract_mesh(program.mesh)`.
        platform: what to lower for: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        run: whether it will be run and compared with the unsharded function.
        capacity: bytes of memory on each device of the target.
        callbacks: takes the program's callbacks; None to refuse a program that has any.
    """
    calls = traced.effects or callback_names(traced.stage.jaxpr)
    if calls and callbacks is None:
        raise NotExportable(
            f"The program has effects or callbacks ({listed(calls)}), which call this"
            " kernel's Python, so it cannot be sent to another process. Take them out to"
            " compile it for this target, or run it on devices of this kernel."
        )
    lowered, module, taken = _lowered(traced, platform)
    # Lowered in the kernel too: the worker has no function to trace.
    single = None
    if run and program.mesh.size > 1:
        single = unsharded_module(program, platform, callbacks)
    if callbacks is not None:
        callbacks.program = taken
    options = compiler_options(program)
    if donated := donated_leaves(program):
        options["donate"] = donated
    free, arrays = left_to_compiler(program), []
    for position, request in enumerate(program.requests):
        array = request.array
        if position not in free:
            array = array.replace(spec=request.spec or Spec())
        arrays.append(array)
    return ExportedProgram(
        program.name,
        tuple(arrays),
        program.mesh,
        traced.out_specs,
        options,
        tuple(output.name for output in traced.outputs),
        platform,
        target,
        module,
        _key(lowered, arrays, options, platform, target),
        single,
        bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        capacity,
        positive_arguments(traced.stage.jaxpr),
        bool(free),
    )


def trace_for_export(program: Program) -> Traced:
    """The program traced on its mesh, without devices."""
    traced = trace(program, abstract_mesh(program.mesh))
    # On Explicit axes every type names its sharding, which must be kept.
    typed = any(spec is not None for spec in specs_of_types(traced))
    # jax lowers callbacks for devices only.
    partly = typed and set(program.mesh.axis_types) != {"Explicit"}
    few = program.mesh.size <= MOST_NAMED
    if callback_names(traced.stage.jaxpr) or (partly and few):
        return trace(program, mesh_to_lower_on(program.mesh))
    if partly or not typed:
        return traced
    return with_specs_of_types(traced)


def callback_names(jaxpr: Any) -> tuple[str, ...]:
    """The names of the callbacks to Python in a jaxpr and in all that it calls, sorted.

    >>> import numpy as np
    >>> def host_sine(x):
    ...     return jax.pure_callback(np.sin, x, x)
    >>> callback_names(jax.make_jaxpr(host_sine)(jax.ShapeDtypeStruct((), "float32")))
    ('pure_callback',)
    """
    return tuple(sorted({o.name for o in operations(jaxpr) if o.name in _CALLBACKS}))


def _lowered(
    traced: Traced, platform: str
) -> tuple[Lowered, LoweredModule, tuple[HostCallback, ...]]:
    """A program, lowered; its module, to be sent; and the callbacks that stay here."""

    def for_all_devices(lowered: Any) -> None:
        # jax would run a program that reads no argument on one device.
        module = lowered.compiler_ir("stablehlo").operation
        with module.context:
            kind = ir.IntegerType.get_signless(32)
            count = ir.IntegerAttr.get(kind, traced.program.mesh.size)
        module.attributes["mhlo.num_partitions"] = count

    try:
        lowered = lower(traced, platforms=(platform,), change=for_all_devices)
    except (NotImplementedError, ValueError, TypeError, KeyError) as error:
        raise NotExportable(
            "jax cannot lower the program without its devices, so it cannot be sent to"
            f" another process. {in_words(error)}"
        ) from error
    module = module_of(lowered.stage, traced.program.mesh)
    names_devices = named_device_count(traced.stage.jaxpr) is not None
    module = replace(module, names_devices=names_devices)
    return lowered, module, take_callbacks(lowered.stage)


def module_of(lowered: Any, mesh: MeshSpec) -> LoweredModule:
    """The module of jax's own `Lowered` of a program on a mesh, to be sent."""
    arguments = compile_arguments(lowered)
    for name, what in BESIDE.items():
        if arguments.get(name) or lowering_attribute(lowered, name):
            raise NotExportable(
                f"The program has {what}, so it cannot be sent to another process. Run it on"
                " devices of this kernel, with target='attached'."
            )
    # Bytecode keeps the source lines, which plain text leaves out.
    file = io.BytesIO()
    stablehlo_module(lowered).operation.write_bytecode(file)
    results = []
    for aval in arguments["global_out_avals"]:
        shape, dtype = tuple(aval.shape), dtype_name(aval.dtype)
        results.append((shape, dtype, spec_of_type(aval), _other_mesh(aval, mesh)))
    return LoweredModule(
        file.getvalue(),
        tuple(sorted(arguments["kept_var_idx"])),
        tuple(results),
        (
            _classes(arguments["ordered_effects"]),
            _classes(arguments["unordered_effects"]),
        ),
    )


def _other_mesh(aval: Any, mesh: MeshSpec) -> MeshSpec | None:
    """The mesh of a result's type if its axes are not those of `mesh`.

    jax reads the sharding of a compiled result in terms of the mesh of its type.
    """
    own = getattr(getattr(aval, "sharding", None), "mesh", None)
    if own is None or own.empty:
        return None
    sizes = dict(zip(own.axis_names, own.axis_sizes, strict=True))
    return None if [*sizes.items()] == [*mesh.shape.items()] else adopt_mesh(own)


def _classes(effects: Any) -> tuple[str, ...]:
    return tuple(sorted(type(e).__name__ for e in effects))


def placeholder(module: LoweredModule, name: str) -> Callable[..., Any]:
    """A function with the arguments, results and effects of a lowered program."""
    effects = effects_of(module.effects)

    def call(*arguments: Any) -> tuple[Any, ...]:
        results = []
        for shape, dtype, spec, other in module.results:
            mesh = jax.sharding.get_abstract_mesh()
            if other is not None:
                mesh, spec = abstract_mesh(other), spec or Spec()
            sharding = None if spec is None else NamedSharding(mesh, spec.to_jax())
            results.append(ShapedArray(shape, jax_dtype(dtype), sharding=sharding))
        # jax has dropped the others from the module.
        kept = [arguments[i] for i in module.kept]
        values = _program.bind(*kept, results=tuple(results), has_effects=effects)
        for number, (*_, spec, other) in enumerate(module.results):
            set_mesh = concrete_mesh()
            if spec is not None or set_mesh is None:
                continue
            there = None
            if other is not None:
                there = mesh_of(list(set_mesh.devices.flat), other)
            elif module.names_devices and not kept:
                there = set_mesh
            if there is not None:
                # If no argument has a sharding, jax takes the devices from the first
                # constraint, and reads the shardings of results in terms of its mesh.
                named = NamedSharding(there, PartitionSpec())
                values[number] = jax.lax.with_sharding_constraint(values[number], named)
        return tuple(values)

    call.__name__ = call.__qualname__ = name
    return call


_program = Primitive("lowered_program")
_program.multiple_results = True


@_program.def_effectful_abstract_eval
def _(*_: Any, results: tuple[Any, ...], has_effects: frozenset[Any]) -> Any:
    return results, has_effects


def _zero(result: Any) -> Any:
    """A value of the type of a result."""
    zero = jax.lax.full(result.shape, 0, result.dtype)
    # jax insists that what makes partial sums says so in the module.
    partial = result.sharding.spec.unreduced
    return jax.sharding.reshard(zero, result.sharding) if partial else zero


# What it is lowered to is replaced, but jax has to lower it.
mlir.register_lowering(
    _program,
    mlir.lower_fun(
        lambda *_, results, **__: [_zero(result) for result in results],
        multiple_results=True,
    ),
)


def put_module(lowered: Any, module: LoweredModule) -> None:
    """Gives jax's own `Lowered` of a `placeholder` the module that it stands for."""
    own = kept_module(lowered)
    if not isinstance(own, ir.Module):
        raise ProgramError(
            f"jax {jax.__version__} does not say what a program was lowered to, so it"
            " cannot be compiled in another process. jax 0.10 to 0.12 do; or use devices"
            " of this kernel, with target='attached'."
        )
    keep_module(lowered, ir.Module.parse(module.bytecode, own.context))


def unsharded_module(
    program: Program, platform: str, callbacks: TakenCallbacks | None = None
) -> LoweredModule | str:
    """The unsharded function, lowered; or why it cannot be, in words."""
    try:
        traced = trace_unsharded(program, unsharded(program), trace_for_export)
        _, module, taken = _lowered(traced, platform)
    except Exception as error:  # noqa: BLE001  a function may be made for many devices only
        return said_by(error)
    if callbacks is not None:
        callbacks.unsharded = taken
    return module


def _key(
    lowered: Lowered,
    arrays: Sequence[ArraySpec],
    options: Mapping[str, Any],
    platform: str,
    target: str,
) -> str:
    traced = lowered.traced
    program = traced.program
    parts = (
        lowered.text,
        lowered.sources,
        ""
        if program.mesh.ids_are_positions
        else program.mesh.device_ids.ravel().tolist(),
        (platform, target, program.mesh.size),
        sorted((str(k), repr(v)) for k, v in options.items()),
        [str(a.spec) for a in arrays],
        [str(s) for s in traced.out_specs],
        [a.memory_kind for a in arrays],
        [a.name for a in arrays if "donate" in options],  # the notes name them
        named_device_count(traced.stage.jaxpr) is not None,
        (jax.__version__, jaxlib_version),
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
