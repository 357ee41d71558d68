"""export_program(): a program as bytes and plain data, to be sent to a worker process.

The program is traced and lowered here, on a mesh without devices, for the platform of its target.
Only the serialised export is sent, never the user's own code: its callbacks stay in this process.
It keeps the source lines, so that what the compiler says leads to the user's code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jaxlib.version import __version__ as jaxlib_version

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.compile import compiler_options, plain
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.jaxprs import operations, plain_jaxpr, positive_arguments
from shardviz.core.backend.reference import unsharded
from shardviz.core.backend.targets import mesh_to_lower_on
from shardviz.core.backend.tracing import Traced, donated_leaves, in_context, trace
from shardviz.core.backend.worker.callbacks import (
    CUSTOM_CALLS,
    HostCallback,
    effect_classes,
    take_callbacks,
    without_effects,
)
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed
from shardviz.core.hlo.sources import source_lines
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program

_NO_GUARANTEE = "no compatibility guarantees"
_CUSTOM_CALL = re.compile(r"custom_call @\"?([\w.$\-]+)")
_LOCATIONS = re.compile(r"^#loc\d* = .*\n", re.M)
_LOCATION = re.compile(r' ?loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*")\)')
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print", "callback")


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
        module: the serialised export.
        unsharded: the unsharded function, serialised; None where it is not needed.
        key: the fingerprint of the compile.
        sources: a digest of its source lines, without those of the call that exported it.
        x64: whether jax is set to 64 bits.
        capacity: bytes of memory on each device; None to ask the device itself.
        positive: the positions of arguments whose made-up values are above 0.
        effects: the classes of its ordered and of its other effects.
    """

    name: str
    arrays: tuple[ArraySpec, ...]
    mesh: MeshSpec
    out_specs: tuple[Spec | None, ...]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]
    platform: str
    target: str
    module: bytes
    key: str
    sources: str
    unsharded: bytes | None = None
    x64: bool = False
    capacity: int | None = None
    positive: tuple[int, ...] = ()
    effects: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class NotExportable(ProgramError):
    """The program cannot be sent to another process."""


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

    Raises:
        NotExportable: for a program that cannot be exported, with the reason.
    """
    if reason := why_not_exportable(program, traced, callbacks is not None):
        raise NotExportable(reason)
    exported, taken = _export(traced, platform)
    text = str(exported.mlir_module())
    single = None
    if run and program.mesh.size > 1:
        single = _unsharded(program, platform, callbacks)
    if callbacks is not None:
        callbacks.program = taken
    options = compiler_options(program)
    if donated := donated_leaves(program):
        options["donate"] = donated
    arrays = tuple(
        array.replace(spec=request.spec or Spec())
        for array, request in zip(program.arrays, program.requests, strict=True)
    )
    return ExportedProgram(
        plain(program.name),
        arrays,
        program.mesh,
        traced.out_specs,
        options,
        tuple(output.name for output in traced.outputs),
        platform,
        target,
        _serialized(exported),
        _key(without_lines(text), arrays, traced, options, platform, target),
        hashlib.sha256(repr(source_lines(text)).encode()).hexdigest(),
        single,
        bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        capacity,
        positive_arguments(traced.stage.jaxpr),
        effect_classes(exported),
    )


def trace_for_export(program: Program) -> Traced:
    """The program traced on its mesh, without devices.

    Raises:
        ProgramError: as `trace` does, and for callbacks on a mesh that is too large.
        Exception: whatever the function raises.
    """
    traced = trace(program, abstract_mesh(program.mesh))
    if callback_names(traced.stage.jaxpr):
        return trace(
            program, mesh_to_lower_on(program.mesh)
        )  # jax lowers callbacks for devices only
    return traced


def why_not_exportable(program: Program, traced: Traced, callbacks: bool = False) -> str | None:
    """Why a program cannot be sent to another process, in one sentence; None where it can.

    Args:
        program: the program.
        traced: the program, traced.
        callbacks: whether its callbacks can be called from there.
    """
    calls = callback_names(traced.stage.jaxpr)
    if (traced.effects or calls) and not callbacks:
        what = listed(traced.effects or calls)
        return (
            f"The program has effects or callbacks ({what}), which call this kernel's Python, so it"
            " cannot be sent to another process. Take them out to compile it for this target, or"
            " run it on devices of this kernel."
        )
    if _has_partial_sums(traced):
        return (
            "An argument or result is a partial sum (its sharding has unreduced axes), which jax"
            " does not export, so the program cannot be sent to another process. Run it on devices"
            " of this kernel, with target='attached'."
        )
    return None


def _has_partial_sums(traced: Traced) -> bool:
    body = plain_jaxpr(traced.stage.jaxpr)
    specs = (getattr(v.aval, "sharding", None) for v in (*body.invars, *body.outvars))
    return any(getattr(getattr(s, "spec", None), "unreduced", None) for s in specs)


def callback_names(jaxpr: Any) -> tuple[str, ...]:
    """The names of the callbacks to Python in a jaxpr and in all that it calls, sorted.

    >>> import numpy as np
    >>> def host_sine(x):
    ...     return jax.pure_callback(np.sin, x, x)
    >>> callback_names(jax.make_jaxpr(host_sine)(jax.ShapeDtypeStruct((), "float32")))
    ('pure_callback',)
    """
    return tuple(sorted({o.name for o in operations(jaxpr) if o.name in _CALLBACKS}))


class _AsJitted:
    """Passes for a jitted function in `jax.export.export`: a function that was traced before.

    Attributes:
        callbacks: the callbacks that it was lowered with, taken out of what is exported.
    """

    def __init__(self, stage: Any, has_callbacks: bool) -> None:
        self.stage, self.has_callbacks = stage, has_callbacks
        self.callbacks: tuple[HostCallback, ...] = ()

    def trace(self, *_: Any, **__: Any) -> Any:
        return self

    def lower(self, *arguments: Any, **options: Any) -> Any:
        lowered = self.stage.lower(*arguments, **options)
        if self.has_callbacks:
            self.callbacks = take_callbacks(lowered)
        return lowered

    def eval_shape(self, *_: Any, **__: Any) -> Any:
        return self.stage.out_info

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    __call__ = eval_shape


def _export(traced: Traced, platform: str) -> tuple[Any, tuple[HostCallback, ...]]:
    """jax's own export, and the callbacks that were taken out of it."""
    calls = bool(callback_names(traced.stage.jaxpr))
    jitted = _AsJitted(traced.stage, calls)
    names = set(CUSTOM_CALLS if calls else ())
    while True:
        allowed = [jax.export.DisabledSafetyCheck.custom_call(n) for n in sorted(names)]
        try:
            with in_context(traced.mesh):
                found = jax.export.export(
                    jitted,  # type: ignore[arg-type]
                    platforms=(platform,),
                    disabled_checks=allowed,
                )()
            return found, jitted.callbacks
        except (NotImplementedError, ValueError, TypeError, KeyError) as error:
            # The worker has the same jax: custom calls need no compatibility with later ones.
            others = _CUSTOM_CALL.findall(str(error)) if _NO_GUARANTEE in str(error) else []
            if names.issuperset(others):
                raise _not_exportable(error) from error
            names.update(others)


def _not_exportable(error: Exception) -> NotExportable:
    return NotExportable(
        f"jax cannot export the program, so it cannot be sent to another process. {in_words(error)}"
    )


def _serialized(exported: Any) -> bytes:
    try:
        return bytes(without_effects(exported).serialize())
    except (NotImplementedError, ValueError, TypeError) as error:
        raise _not_exportable(error) from error


def _unsharded(program: Program, platform: str, callbacks: TakenCallbacks | None) -> bytes | None:
    single = unsharded(program)
    try:
        found, taken = _export(trace_for_export(single), platform)
        data = _serialized(found)
    except Exception:  # noqa: BLE001  a function may be made for many devices only
        return None
    if callbacks is not None:
        callbacks.unsharded = taken
    return data


def _key(
    text: str,
    arrays: tuple[ArraySpec, ...],
    traced: Traced,
    options: Mapping[str, Any],
    platform: str,
    target: str,
) -> str:
    program = traced.program
    parts = (
        text,
        program.mesh.device_ids.ravel().tolist() if program.mesh.concrete else "",
        (platform, target, program.mesh.size),
        sorted((str(k), repr(v)) for k, v in options.items()),
        [str(a.spec) for a in arrays],
        [str(s) for s in traced.out_specs],
        [a.memory_kind for a in arrays],
        [a.name for a in arrays if "donate" in options],  # the notes name them
        (jax.__version__, jaxlib_version),
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def without_lines(text: str) -> str:
    """A module's text without its source locations.

    >>> without_lines('%0 = add %a, %b : f32 loc(#loc3)\\n#loc3 = loc("f"(#loc1))\\n')
    '%0 = add %a, %b : f32\\n'
    """
    return _LOCATION.sub("", _LOCATIONS.sub("", text))
