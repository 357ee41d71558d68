"""The code of a function under `sharded_jit` over `jax.jit` and NamedSharding."""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

from shardviz.core.errors import ProgramError
from shardviz.core.format import clause, shown
from shardviz.legacy.partitions import is_partition, spec_over

_CODE = """\
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

try:  # simulated devices, where there are too few real ones; only before JAX starts
    jax.config.update("jax_num_cpu_devices", {count})
except RuntimeError:
    pass
devices = jax.devices() if jax.device_count() >= {count} else jax.devices("cpu")
mesh = Mesh(
    np.array(devices[:{count}]).reshape({sizes!r}),
    {names!r},
    axis_types=(AxisType.Auto,) * {rank},
)

# {name} is your own function: define it above.

in_shardings = {ins}
jitted = jax.jit(
    {name},
    in_shardings=in_shardings,
    out_shardings={outs},{statics}
)
"""


def modern_code(
    name: str,
    arguments: Sequence[str],
    static: dict[int, Any],
    sizes: tuple[int, ...],
    in_parts: Any,
    out_parts: Any,
) -> str:
    """The code: a mesh, shardings, `jax.jit`, and the call, whose value is `result`.

    It takes the function by its name. `legacy.with_sharding_constraint` inside of it
    finds the mesh that the code sets.

    Args:
        name: what the function is called.
        arguments: its names for its arguments, static ones included.
        static: the static arguments by position.
        sizes: the axis sizes of the mesh.
        in_parts, out_parts: as `sharded_jit` takes them.

    Raises:
        ProgramError: for containers and static arguments that have no literal.
    """
    if not _is_free(name, ()):
        name = "fun"
    given = []
    for position, argument in enumerate(arguments):
        # The code would replace what it needs itself, such as jax or mesh.
        if not _is_free(argument, (name, *given)):
            argument = f"argument_{position}"
        given.append(argument)
    values = [a for i, a in enumerate(given) if i not in static]
    if is_partition(in_parts):
        in_parts = (in_parts,) * len(values)
    statics = clause("\n    static_argnums={!r},", tuple(static))
    code = _CODE.format(
        count=math.prod(sizes),
        sizes=sizes,
        names=tuple(f"part{i}" for i in range(len(sizes))),
        rank=len(sizes),
        name=name,
        ins=_shardings(tuple(in_parts), sizes),
        outs=_shardings(out_parts, sizes),
        statics=statics,
    )
    if values:
        # Arrays on other devices are moved, as sharded_jit does.
        targets = ", ".join(values) + "," * (len(values) == 1)
        code += f"{targets} = jax.device_put(({targets}), in_shardings)\n"
    for position, value in static.items():
        given[position] = _literal(value)
    return f"{code}with jax.set_mesh(mesh):\n    result = jitted({', '.join(given)})\n"


def _is_free(name: str, taken: Sequence[str]) -> bool:
    """Whether it is a name of Python that means nothing else in the code."""
    used = name in taken or name in re.findall(r"\w+", _CODE)
    return name.isidentifier() and not keyword.iskeyword(name) and not used


def _shardings(prefix: Any, sizes: tuple[int, ...]) -> str:
    """A tree of parts as the code of a tree of shardings."""
    if is_partition(prefix):
        return f"NamedSharding(mesh, {spec_over(prefix, sizes)})"
    # Exactly these: a subclass, such as a namedtuple, has no literal.
    if type(prefix) is dict:
        items = [f"{_literal(k)}: {_shardings(v, sizes)}" for k, v in prefix.items()]
        return f"{{{', '.join(items)}}}"
    if type(prefix) not in (tuple, list):
        raise ProgramError(
            f"A {type(prefix).__name__} of Parts cannot be printed as code. Use tuples,"
            " lists and dicts, or one Parts for all arrays below it."
        )
    items = [_shardings(part, sizes) for part in prefix]
    if type(prefix) is list:
        return f"[{', '.join(items)}]"
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def _literal(value: Any) -> str:
    try:
        # Not so for nan, nor for a subclass that looks like its base.
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    except (ValueError, SyntaxError):
        pass
    raise ProgramError(
        f"{shown(value)} cannot be printed as code; numbers, text, None and tuples of"
        " them can. Take the code of a call with such static arguments and keys."
    )
