"""Parcel: a program as it travels to a worker process. A serialised export and plain data; never
code of the person who wrote the program.

The program is traced and lowered here, on an AbstractMesh, for the platform of its target. Source
lines travel inside the export, so that what the compiler says leads to the person's own code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType
from jaxlib.version import __version__ as jaxlib_version

from shardviz.core.backend.failures import in_words
from shardviz.core.backend.inputs import positive_arguments
from shardviz.core.backend.program_meshes import in_context
from shardviz.core.backend.reference import unsharded
from shardviz.core.backend.tracing import Traced, donated_leaves, trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, shown
from shardviz.core.hlo.sources import source_lines
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program

_NO_PROMISE = "no compatibility guarantees"
_CUSTOM_CALL = re.compile(r"custom_call @\"?([\w.$\-]+)")
_LOCATIONS = re.compile(r"^#loc\d* = .*\n", re.M)
_LOCATION = re.compile(r' ?loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*")\)')
_PLAIN = (str, bool, int, float)
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "callback")


@dataclass(frozen=True, eq=False)
class ExportedProgram:
    """A program on its way to another process: bytes, names and numbers.

    Attributes:
        name: what the program is called.
        arrays: its arguments, each with the spec that counts.
        mesh: the mesh it is laid out on.
        out_specs: one Spec a result, or None where the compiler chooses.
        options: compiler options; `donate` holds positions of leaves.
        outputs: the names of the results.
        platform: what it was lowered for: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        module: the serialised export.
        alone: the unsharded function, serialised; None where it is not asked for.
        key: the fingerprint of the compile.
        sources: a digest of its source lines, without those that asked for it.
        x64: whether jax is set to 64 bits.
        capacity: bytes of memory on each device; None where the device itself says.
        positive: the positions of arguments that are made up above 0.
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
    alone: bytes | None = None
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
    """The parcel of a program.

    Args:
        program: what travels.
        traced: the program, traced on `abstract_mesh(program.mesh)`.
        platform: what to lower for: `"cpu"`, `"cuda"` or `"tpu"`.
        target: the text of a described target; `""` for CPU devices.
        run: whether it will be run, and held against the unsharded function.
        capacity: bytes of memory on each device of the target.

    Raises:
        ProgramError: for a program that cannot travel, with the reason.
    """
    if reason := why_not_exportable(program, traced):
        raise ProgramError(reason)
    exported = _export(traced, platform)
    text = str(exported.mlir_module())
    alone = _alone(program, platform) if run and program.mesh.size > 1 else None
    options = {k: v for k, v in program.options.items() if k != "donate"}
    if donated := donated_leaves(program):
        options["donate"] = donated
    asked = tuple(
        array.replace(spec=request.spec or Spec())
        for array, request in zip(program.arrays, program.requests, strict=True)
    )
    return ExportedProgram(
        program.name,
        asked,
        program.mesh,
        traced.out_specs,
        options,
        tuple(output.name for output in traced.outputs),
        platform,
        target,
        bytes(exported.serialize()),
        _key(without_lines(text), asked, traced, options, platform, target),
        hashlib.sha256(repr(source_lines(text)).encode()).hexdigest(),
        alone,
        bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        capacity,
        positive_arguments(traced.stage.jaxpr),
    )


def why_not_exportable(program: Program, traced: Traced) -> str | None:
    """Why a program cannot travel to another process, in one sentence; None where it can."""
    calls = callbacks_in(traced.stage.jaxpr.jaxpr)
    if traced.effects or calls:
        what = listed(traced.effects or calls)
        return (
            f"The program has effects or callbacks ({what}), which call this kernel's Python, so it"
            " cannot be sent to another process. Take them out to compile it for this target, or"
            " run it on devices of this kernel."
        )
    for name, value in program.options.items():
        if name != "donate" and not isinstance(value, _PLAIN):
            return (
                f"The compiler option {shown(name)} is {shown(value)}, which cannot be sent to"
                " another process. Give text, a number or a truth value."
            )
    return None


def must_run_here(program: Program) -> bool:
    """Whether a program cannot travel, found out by tracing it; starts no backend.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> stays_here(Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=8)))
    False
    """
    try:
        return why_not_exportable(program, trace(program, abstract_mesh(program.mesh))) is not None
    except (Exception, SystemExit):  # noqa: BLE001  it will be raised again, when traced
        return False


def callbacks_in(jaxpr: Any) -> tuple[str, ...]:
    """The callbacks to Python in a jaxpr and in all that it calls, by name, sorted.

    >>> import numpy as np
    >>> def asks(x):
    ...     return jax.pure_callback(np.sin, x, x)
    >>> callbacks_in(jax.make_jaxpr(asks)(jax.ShapeDtypeStruct((), "float32")).jaxpr)
    ('pure_callback',)
    """
    found, todo = set(), [jaxpr]
    while todo:
        inside = todo.pop()
        for equation in getattr(inside, "jaxpr", inside).eqns:
            if equation.primitive.name in _CALLBACKS:
                found.add(equation.primitive.name)
            todo.extend(_inner(equation.params))
    return tuple(sorted(found))


def abstract_mesh(mesh: MeshSpec) -> AbstractMesh:
    """The jax AbstractMesh with the axes of a mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> abstract_mesh(make_mesh(data=1024, model=8)).axis_sizes
    (1024, 8)
    """
    types = tuple(AxisType[t] for t in mesh.axis_types)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=types)


class _AsTraced:
    """What `jax.export.export` takes for a function under jit: one that was traced before."""

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
            # The worker has the same jax: custom calls need no promise to later versions.
            names = _CUSTOM_CALL.findall(str(error)) if _NO_PROMISE in str(error) else []
            if not names or allowed:
                raise ProgramError(
                    "jax cannot export the program, so it cannot be sent to another process."
                    f" {in_words(error)}"
                ) from error
            allowed = [jax.export.DisabledSafetyCheck.custom_call(n) for n in set(names)]


def _alone(program: Program, platform: str) -> bytes | None:
    alone = unsharded(program)
    try:
        return bytes(_export(trace(alone, abstract_mesh(alone.mesh)), platform).serialize())
    except Exception:  # noqa: BLE001  a function may be made for many devices alone
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
        [a.name for a in arrays if "donate" in options],  # which the notes speak of
        (jax.__version__, jaxlib_version),
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def without_lines(text: str) -> str:
    """A module's text without the lines of code that it comes from.

    >>> without_lines('%0 = add %a, %b : f32 loc(#loc3)\\n#loc3 = loc("f"(#loc1))\\n')
    '%0 = add %a, %b : f32\\n'
    """
    return _LOCATION.sub("", _LOCATIONS.sub("", text))


def _inner(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    values = [v for p in params.values() for v in (p if isinstance(p, (tuple, list)) else (p,))]
    return [v for v in values if hasattr(v, "eqns") or hasattr(getattr(v, "jaxpr", None), "eqns")]
