"""Mesh axes whose names this jaxlib cannot compile, refused before it tries.

Tracing, lowering and planning carry any name. Compiling writes the meshes of a module into
attributes of text and reads them back. In jaxlib 0.10 a letter beyond ASCII and most backslashes
end the process there. In 0.12 a single quote or a backslash lose the shardings over that axis, and
both together end the process. The names cannot be replaced on the way, since the function itself
says them (`jax.lax.psum(x, "é")`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jaxlib.mlir.dialects import sdy
from jaxlib.version import __version__ as jaxlib_version

from shardviz.core.errors import ProgramError
from shardviz.core.format import shown

# Measured on jaxlib 0.10.2 and 0.12.0.1, each name in a process of its own; of 0.11, which was not,
# both are expected.
_VERSION = tuple(int(n) for n in re.findall(r"\d+", jaxlib_version)[:2])
_NOT_CARRIED = (r"\\",) + (r"[^\x00-\x7f]",) * (_VERSION < (0, 12)) + ("'",) * (_VERSION > (0, 10))
_FORBIDDEN = re.compile("|".join(_NOT_CARRIED))


def can_compile(name: str) -> bool:
    """Whether this jaxlib can compile for a mesh axis of that name.

    >>> can_compile("data"), can_compile("a\\\\b")
    (True, False)
    """
    return _FORBIDDEN.search(name) is None


def check_axis_names(names: Iterable[str]) -> None:
    """Refuses names of mesh axes that this jaxlib cannot compile.

    Raises:
        ProgramError: with the name.

    >>> check_axis_names(["data", "model"])
    """
    for name in names:
        if not can_compile(name):
            raise ProgramError(
                f"jaxlib {jaxlib_version} cannot compile for a mesh axis named {shown(name)}: it"
                " ends the process, or loses the sharding. Layouts, rules and plans take such a"
                " name; to compile or run, name the axis in ASCII letters and digits."
            )


def check_lowered_names(lowered: Any) -> None:
    """The same for every mesh of a lowered program, those in the user's function included.

    Args:
        lowered: what `lower` of a function under `jax.jit` gave.

    Raises:
        ProgramError: with the name.

    >>> import jax
    >>> check_lowered_names(jax.jit(abs).lower(1.0))
    """
    check_axis_names(_axis_names(lowered.compiler_ir("stablehlo")))


def _axis_names(module: Any) -> Iterator[str]:
    for operation in module.body.operations if module is not None else ():
        if operation.operation.name == "sdy.mesh":
            for axis in sdy.MeshAttr(operation.attributes["mesh"]).axes:
                yield sdy.MeshAxisAttr(axis).name
