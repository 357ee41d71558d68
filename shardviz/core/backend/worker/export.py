"""export_program(): a program as bytes and plain data, to be sent to a worker process.

The program is traced and lowered here, on an AbstractMesh, for the platform of its target. Only the
serialised export is sent, never the user's own code. It keeps the source lines, so that what the
compiler says leads to the user's code.
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
from shardviz.core.backend.compile import PLAIN, compiler_options, plain
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.jaxprs import operations, positive_arguments
from shardviz.core.backend.reference import unsharded
from shardviz.core.backend.tracing import Traced, donated_leaves, in_context, trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, shown
from shardviz.core.hlo.sources import source_lines
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program

_NO_GUARANTEE = "no compatibility guarantees"
_CUSTOM_CALL = re.compile(r"custom_call @\"?([\w.$\-]+)")
_LOCATIONS = re.compile(r"^#loc\d* = .*\n", re.M)
_LOCATION = re.compile(r' ?loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*")\)')
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "callback")


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


def export_program(
    program: Program,
    traced: Traced,
    platform: str,
    target: str = "",
    *,
    run: bool = False,
    capacity: int | None = None,
) -> ExportedProgram:
    """A program as it is sent to a worker.

    Args:
        program: what to export.
        traced: the program, traced on `abstract_mesh(program.mesh)`.
        platform: what to lower for: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        run: whether it will be run and compared with the unsharded function.
        capacity: bytes of memory on each device of the target.

    Raises:
        ProgramError: for a program that cannot be exported, with the reason.
    """
    if reason := why_not_exportable(program, traced):
        raise ProgramError(reason)
    exported = _export(traced, platform)
    text = str(exported.mlir_module())
    single = _unsharded(program, platform) if run and program.mesh.size > 1 else None
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
        bytes(exported.serialize()),
        _key(without_lines(text), arrays, traced, options, platform, target),
        hashlib.sha256(repr(source_lines(text)).encode()).hexdigest(),
        single,
        bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        capacity,
        positive_arguments(traced.stage.jaxpr),
    )


def why_not_exportable(program: Program, traced: Traced) -> str | None:
    """Why a program cannot be sent to another process, in one sentence; None where it can."""
    if what := _calls_to_python(traced):
        return (
            f"The program has effects or callbacks ({listed(what)}), which call this kernel's"
            " Python, so it cannot be sent to another process. Take them out to compile it for this"
            " target, or run it on devices of this kernel."
        )
    for name, value in program.options.items():
        if name != "donate" and not (isinstance(name, str) and isinstance(value, PLAIN)):
            return (
                f"The compiler option {shown(name)} is {shown(value)}, which cannot be sent to"
                " another process. Give text, a number or a truth value."
            )
    return None


def must_run_here(program: Program) -> bool:
    """Whether a program calls this kernel's Python, found out by tracing it; starts no backend.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> must_run_here(Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=8)))
    False
    """
    try:
        return bool(_calls_to_python(trace(program, abstract_mesh(program.mesh))))
    except (Exception, SystemExit):  # noqa: BLE001  it will be raised again, when traced
        return False


def _calls_to_python(traced: Traced) -> tuple[str, ...]:
    return tuple(traced.effects) or callback_names(traced.stage.jaxpr)


def callback_names(jaxpr: Any) -> tuple[str, ...]:
    """The names of the callbacks to Python in a jaxpr and in all that it calls, sorted.

    >>> import numpy as np
    >>> def host_sine(x):
    ...     return jax.pure_callback(np.sin, x, x)
    >>> callback_names(jax.make_jaxpr(host_sine)(jax.ShapeDtypeStruct((), "float32")))
    ('pure_callback',)
    """
    return tuple(sorted({o.name for o in operations(jaxpr) if o.name in _CALLBACKS}))


class _AsTraced:
    """Passes for a jitted function in `jax.export.export`: a function that was traced before."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage

    def trace(self, *_: Any, **__: Any) -> Any:
        return self.stage

    def lower(self, *_: Any, **__: Any) -> Any:
        return self.stage.lower()

    def eval_shape(self, *_: Any, **__: Any) -> Any:
        return self.stage.out_info

    __call__ = eval_shape


def _export(traced: Traced, platform: str) -> Any:
    allowed: list[Any] = []
    while True:
        try:
            with in_context(traced.mesh):
                return jax.export.export(
                    _AsTraced(traced.stage),  # type: ignore[arg-type]
                    platforms=(platform,),
                    disabled_checks=allowed,
                )()
        except (NotImplementedError, ValueError, TypeError, KeyError) as error:
            # The worker has the same jax: custom calls need no compatibility with later ones.
            names = _CUSTOM_CALL.findall(str(error)) if _NO_GUARANTEE in str(error) else []
            if not names or allowed:
                raise ProgramError(
                    "jax cannot export the program, so it cannot be sent to another process."
                    f" {in_words(error)}"
                ) from error
            allowed = [jax.export.DisabledSafetyCheck.custom_call(n) for n in set(names)]


def _unsharded(program: Program, platform: str) -> bytes | None:
    single = unsharded(program)
    try:
        return bytes(_export(trace(single, abstract_mesh(single.mesh)), platform).serialize())
    except Exception:  # noqa: BLE001  a function may be made for many devices only
        return None


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
