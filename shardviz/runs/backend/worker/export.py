"""export_program(): converts a program to bytes and plain data for a worker process.

The program is traced and lowered here, on a mesh without devices, for the target's
platform. Only the lowered module is sent. The user's Python code, including callbacks,
stays in this process. The module contains source lines, so that the compiler's output
can be traced to the user's code.

The worker compiles exactly this module. `jax.export` would serialize a different
module, with merged constants. A call of an exported module adds a function and
constraints, which changes XLA's shardings and collectives. But jax compiles a module
only for a traced function, so `placeholder` returns a function with the same arguments,
results and effects, and `put_module` replaces the module that it lowers to.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
from shardviz.runs.backend.inputs import partial_result
from shardviz.runs.backend.runner import NotExportable

_CALLBACKS = ("pure_callback", "io_callback", "callback", *DEBUG_CALLS)
#: Compile arguments that jax stores outside the module -> their cause in a program.
BESIDE = {
    "mut": "mutable arrays of its own (jax.new_ref)",
    "keepalive": "functions that partition it (custom_partitioning)",
    "const_args": "closed-over arrays as arguments (jax_use_simplified_jaxpr_constants)",
}

if TYPE_CHECKING:
    # After importing jax.extend, jax 0.12 compiles all jitted functions again.
    from jax.extend.core import ClosedJaxpr, Jaxpr


class ModuleResult(NamedTuple):
    """The type of one result of a lowered module.

    Attributes:
        shape, dtype: shape and dtype of the result.
        spec: the spec in the result's type on Explicit axes; else None.
        mesh: the mesh in the result's type; None if it is the program's mesh.
    """

    shape: tuple[int, ...]
    dtype: str
    spec: Spec | None
    mesh: MeshSpec | None


@dataclass(frozen=True, eq=False)
class LoweredModule:
    """A lowered program's module, with all that jax needs to compile it.

    Attributes:
        bytecode: the StableHLO module.
        read_positions: positions of the program's arguments that the module takes; jax
            drops unused arguments.
        results: the type of each result.
        effects: class names of the ordered effects, and of the unordered effects.
        names_devices: True if the program names a mesh of devices, or is compiled for
            described ones. jax then uses all these devices, even if the program reads
            no argument.
    """

    bytecode: bytes
    read_positions: tuple[int, ...]
    results: tuple[ModuleResult, ...]
    effects: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    names_devices: bool = False


@dataclass(frozen=True, eq=False)
class ExportedProgram:
    """A program that can be sent to another process: bytes, names and numbers.

    Attributes:
        name: the name of the program.
        arrays: the arguments, each with its resolved spec.
        mesh: the program's mesh.
        out_specs: one Spec per result; None if the compiler chooses.
        options: compiler options; `donate` contains positions of leaves.
        outputs: the names of the results.
        platform: the platform of the lowering: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        module: the lowered program.
        key: the fingerprint of the compile.
        unsharded: the lowered unsharded function; None if not needed; the reason as
            text if it can't be lowered.
        x64: jax's x64 flag.
        capacity: bytes of memory on each device; None to ask the device.
        positive: positions of arguments whose generated values must be above 0.
        free: whether the compiler chooses the sharding of any argument.
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
class ProgramCallbacks:
    """The callbacks of an exported program, which stay in this process.

    Attributes:
        program: the sharded program's callbacks, in the order of the module.
        unsharded: the unsharded function's callbacks, in the order of its module.
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
    callbacks: ProgramCallbacks | None = None,
) -> ExportedProgram:
    """Lowers a program, and packs it to send it to a worker.

    Args:
        program: the program.
        traced: the program, traced on `abstract_mesh(program.mesh)`.
        platform: the platform to lower for: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        run: whether to also lower the unsharded function, to compare results.
        capacity: bytes of memory on each device of the target.
        callbacks: receives the program's callbacks; None to reject programs with
            callbacks.

    Raises:
        NotExportable: if the program cannot be sent to another process.
    """
    calls = traced.effects or callback_names(traced.stage.jaxpr)
    if calls and callbacks is None:
        raise NotExportable(
            f"The program has effects or callbacks ({listed(calls)}), which call this"
            " kernel's Python, so it cannot be sent to another process. Take them out to"
            " compile it for this target, or run it on devices of this kernel."
        )
    lowered, module, host_callbacks = _lowered(traced, platform)
    if target:
        module = replace(module, names_devices=True)
    # Lower the unsharded function here too: the worker has no function to trace.
    unsharded_or_reason = None
    if run and program.mesh.size > 1:
        unsharded_or_reason = unsharded_module(traced, platform, callbacks)
    if callbacks is not None:
        callbacks.program = host_callbacks
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
        name=program.name,
        arrays=tuple(arrays),
        mesh=program.mesh,
        out_specs=traced.out_specs,
        options=options,
        outputs=tuple(output.name for output in traced.outputs),
        platform=platform,
        target=target,
        module=module,
        key=_key(lowered, arrays, options, platform, target),
        unsharded=unsharded_or_reason,
        x64=bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        capacity=capacity,
        positive=positive_arguments(traced.stage.jaxpr),
        free=bool(free),
    )


def trace_for_export(program: Program) -> Traced:
    """Traces a program on its mesh, without devices if possible."""
    traced = trace(program, abstract_mesh(program.mesh))
    # On Explicit axes, types contain shardings, which the module must keep.
    typed = any(spec is not None for spec in specs_of_types(traced))
    partly_typed = typed and set(program.mesh.axis_types) != {"Explicit"}
    can_name_devices = program.mesh.size <= MOST_NAMED
    # jax lowers callbacks only for named devices.
    has_callbacks = bool(callback_names(traced.stage.jaxpr))
    if has_callbacks or (partly_typed and can_name_devices):
        return trace(program, mesh_to_lower_on(program.mesh))
    if partly_typed or not typed:
        return traced
    return with_specs_of_types(traced)


def callback_names(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[str, ...]:
    """Returns the sorted names of Python callbacks in a jaxpr and its sub-jaxprs.

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
    """Lowers a trace; returns the result, the module to send, and the callbacks."""

    def for_all_devices(lowered: jax.stages.Lowered) -> None:
        # Otherwise jax runs a program on one device if it reads no argument.
        stablehlo: Any = lowered.compiler_ir("stablehlo")
        module = stablehlo.operation
        with module.context:
            kind = ir.IntegerType.get_signless(32)
            count = ir.IntegerAttr.get(kind, traced.program.mesh.size)
        module.attributes["mhlo.num_partitions"] = count

    try:
        lowered = lower(traced, platforms=(platform,), change=for_all_devices)
    except (NotImplementedError, ValueError, TypeError, KeyError) as error:
        raise NotExportable(
            f"jax could not lower the program. {in_words(error)} (The program is lowered"
            " without devices, because another process compiles it.)"
        ) from error
    module = module_of(lowered.stage, traced.program.mesh)
    names_devices = named_device_count(traced.stage.jaxpr) is not None
    module = replace(module, names_devices=names_devices)
    return lowered, module, take_callbacks(lowered.stage)


def module_of(lowered: jax.stages.Lowered, mesh: MeshSpec) -> LoweredModule:
    """Converts jax's own `Lowered` to a module that can be sent."""
    arguments = compile_arguments(lowered)
    for name, cause in BESIDE.items():
        if arguments.get(name) or lowering_attribute(lowered, name):
            raise NotExportable(
                f"The program has {cause}, so it cannot be sent to another process. Run it on"
                " devices of this kernel, with target='attached'."
            )
    # Use bytecode, because plain text omits the source lines.
    file = io.BytesIO()
    stablehlo_module(lowered).operation.write_bytecode(file)
    results = []
    for aval in arguments["global_out_avals"]:
        shape, dtype = tuple(aval.shape), dtype_name(aval.dtype)
        spec, other_mesh = spec_of_type(aval), _other_mesh(aval, mesh)
        results.append(ModuleResult(shape, dtype, spec, other_mesh))
    return LoweredModule(
        file.getvalue(),
        read_positions=tuple(sorted(arguments["kept_var_idx"])),
        results=tuple(results),
        effects=(
            _class_names(arguments["ordered_effects"]),
            _class_names(arguments["unordered_effects"]),
        ),
    )


def _other_mesh(aval: ShapedArray, mesh: MeshSpec) -> MeshSpec | None:
    """Returns the mesh of a result's type if its axes differ from those of `mesh`.

    jax expresses a compiled result's sharding on the mesh of the result's type.
    """
    type_mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if type_mesh is None or type_mesh.empty:
        return None
    # The types of an unsharded function can still name the mesh that it was traced on.
    if type_mesh.size > mesh.size:
        return None
    sizes = dict(zip(type_mesh.axis_names, type_mesh.axis_sizes, strict=True))
    if [*sizes.items()] == [*mesh.shape.items()]:
        return None
    return adopt_mesh(type_mesh)


def _class_names(effects: Iterable[object]) -> tuple[str, ...]:
    return tuple(sorted(type(effect).__name__ for effect in effects))


def placeholder(
    module: LoweredModule, name: str
) -> Callable[..., tuple[jax.Array, ...]]:
    """Creates a function with the arguments, results and effects of a module."""
    effects = effects_of(module.effects)

    def call(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        results = []
        for result in module.results:
            mesh, spec = jax.sharding.get_abstract_mesh(), result.spec
            if result.mesh is not None:
                mesh, spec = abstract_mesh(result.mesh), spec or Spec()
            sharding = None if spec is None else NamedSharding(mesh, spec.to_jax())
            dtype = jax_dtype(result.dtype)
            results.append(ShapedArray(result.shape, dtype, sharding=sharding))
        # The module takes only these arguments; jax has dropped the others.
        read = [arguments[i] for i in module.read_positions]
        values = _program.bind(*read, results=tuple(results), has_effects=effects)
        set_mesh = concrete_mesh()
        if set_mesh is None:
            return tuple(values)
        for number, result in enumerate(module.results):
            mesh = None
            if result.spec is not None:
                continue
            if result.mesh is not None:
                mesh = mesh_of(list(set_mesh.devices.flat), result.mesh)
            elif module.names_devices and not read:
                mesh = set_mesh
            if mesh is not None:
                # If no argument has a sharding, jax takes the devices, and the mesh for
                # result shardings, from the first constraint.
                replicated = NamedSharding(mesh, PartitionSpec())
                values[number] = jax.lax.with_sharding_constraint(
                    values[number], replicated
                )
        return tuple(values)

    call.__name__ = call.__qualname__ = name
    return call


_program = Primitive("lowered_program")
_program.multiple_results = True


@_program.def_effectful_abstract_eval
def _(
    *_: object, results: tuple[ShapedArray, ...], has_effects: frozenset[object]
) -> tuple[tuple[ShapedArray, ...], frozenset[object]]:
    return results, has_effects


def _zero(result: ShapedArray) -> jax.Array:
    """Returns zeros of a result's type."""
    zero = jax.lax.full(result.shape, 0, result.dtype)
    partial = result.sharding.spec.unreduced
    return partial_result(zero, result.sharding) if partial else zero


# jax must be able to lower the primitive, although `put_module` replaces the module.
mlir.register_lowering(
    _program,
    mlir.lower_fun(
        lambda *_, results, **__: [_zero(result) for result in results],
        multiple_results=True,
    ),
)


def put_module(lowered: jax.stages.Lowered, module: LoweredModule) -> None:
    """Replaces the module in the `Lowered` that jax returned for a `placeholder`."""
    placeholder_module = kept_module(lowered)
    if not isinstance(placeholder_module, ir.Module):
        raise ProgramError(
            f"jax {jax.__version__} does not expose a lowered program's module, so it"
            " cannot be compiled in another process. jax 0.10 to 0.12 do; or use"
            " devices of this kernel, with target='attached'."
        )
    context = placeholder_module.context
    keep_module(lowered, ir.Module.parse(module.bytecode, context))


def unsharded_module(
    traced: Traced, platform: str, callbacks: ProgramCallbacks | None = None
) -> LoweredModule | str:
    """Lowers the unsharded function; returns the reason as text if that fails."""
    try:
        single = trace_unsharded(traced, unsharded(traced.program), trace_for_export)
        _, module, host_callbacks = _lowered(single, platform)
    except Exception as error:  # noqa: BLE001  some functions need many devices
        return said_by(error)
    if callbacks is not None:
        callbacks.unsharded = host_callbacks
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
        [a.name for a in arrays if "donate" in options],  # notes contain these names
        named_device_count(traced.stage.jaxpr) is not None,
        (jax.__version__, jaxlib_version),
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
