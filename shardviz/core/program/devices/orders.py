"""Two meshes that hold the same devices in another order: jax refuses them (jax#15903).

Found before jax is asked, since a program that is traced on an abstract mesh has no order of
devices, and jax would say yes to what it refuses on the real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardviz.core.errors import ProgramError, plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.effects.sites import named_meshes
from shardviz.core.program.hlo.sources import is_user_file, place_in_words

MAX_SHOWN = 16


def refuse_other_orders(jaxpr: Any, mesh: MeshSpec) -> None:
    """Refuses a program that names the devices of its mesh in another order than the mesh.

    Raises:
        ProgramError: with both orders, how they differ, and the line that names the second.
    """
    for named, equation in named_meshes(jaxpr):
        own = mesh.device_ids.ravel().tolist()  # here: most programs name no mesh, however large
        other = [d.id for d in named.devices.flat]
        if other != own and sorted(other) == sorted(own):
            raise ProgramError(_in_words("The program's mesh", own, who(equation), other))


def _in_words(first: str, order: list[int], second: str, other: list[int]) -> str:
    """Both orders, who has which, and what to do."""
    return (
        f"Two meshes hold the same {plural(len(order), 'device')} in another order. {first}:"
        f" {_shown(order)}; {second}: {_shown(other)}{transposed(order, other)}. A program runs on"
        " one order of devices: make both meshes from one array of devices, or move the array"
        " first with jax.device_put."
    )


def who(equation: Any) -> str:
    """The operation that names a mesh, and its line where jax kept it.

    >>> import jax
    >>> who(jax.make_jaxpr(jax.numpy.sin)(1.0).eqns[0])
    'sin'
    """
    traceback = getattr(getattr(equation, "source_info", None), "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        if is_user_file(frame.file_name):
            return f"{equation.primitive.name} ({place_in_words(frame.file_name, frame.line_num)})"
    return equation.primitive.name


def transposed(order: list[int], other: list[int]) -> str:
    """How one order becomes the other by a transpose, in words; `""` where it does not.

    >>> transposed([0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5])
    ', which is the first order as 2 × 3, transposed'
    """
    size = len(order)
    for rows in range(2, size // 2 + 1):
        grid = np.array(order).reshape(rows, -1) if size % rows == 0 else None
        if grid is not None and np.array_equal(grid.T.ravel(), other):
            return f", which is the first order as {rows} × {size // rows}, transposed"
    return ", which is the first order reversed" if order[::-1] == other else ""


def _shown(ids: list[int]) -> str:
    more = f", … {len(ids) - MAX_SHOWN:,} more" if len(ids) > MAX_SHOWN else ""
    return ", ".join(map(str, ids[:MAX_SHOWN])) + more
