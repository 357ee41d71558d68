"""modern_code(): a call of `sharded_jit` in today's words, as code that runs by itself."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Any

from shardviz.core.errors import ProgramError, shown
from shardviz.core.layout.parts import Parts
from shardviz.core.program.given.arguments import unique
from shardviz.core.program.sharded_jit.call import Call
from shardviz.core.program.sharded_jit.modern_source import translated
from shardviz.core.program.sharded_jit.parts_tree import Cut, is_cut

_LITERALS = (bool, int, float, complex, str, bytes, type(None))


def modern_code(call: Call) -> str:
    """The code: a mesh, the shardings, `jax.jit`, and the call, whose value is `result`.

    The function's own source stands in it where it needs nothing around it, with its constraints
    translated; otherwise the code takes the function by its name.

    Raises:
        ProgramError: for containers and static arguments that have no literal.
    """
    meshes, fun = _Meshes(call), call.asking.fun
    # sv.with_sharding_constraint knows how to go from cut to cut.
    hidden = call.indirect and call.asked
    source = None if hidden else translated(fun, lambda c: f"NamedSharding({meshes.code(c)})")
    name = _name(fun)
    arguments = _arguments(call, name)
    values = [arguments[i] for i in call.signature.positions]
    ins = _prefix_each(call.asking.in_parts, len(values), meshes)
    outs = _code(call.asking.out_parts, meshes, "out_parts")
    numbers = tuple(i for i, _ in call.signature.statics)
    definition = source.code if source else f"# {name} is your own function: define it above."
    jitted = name
    if call.indirect:
        definition += "\n\n\n" + _through(name, arguments, values)
        jitted, arguments, numbers = "through", values, ()
    lines = [_HEAD, *filter(None, [source and source.imports])]
    gap = ["", ""] if source or call.indirect else [""]
    lines += ["", _mesh_code(call.count, meshes.sizes), *gap, definition, *gap]
    lines += [f"in_shardings = {_tuple(ins)}", "jitted = jax.jit(", f"    {jitted},"]
    lines += ["    in_shardings=in_shardings,", f"    out_shardings={outs},"]
    lines += [f"    static_argnums={numbers!r},"] * bool(numbers) + [")"]
    if values:
        # What lies on other devices is moved there, as sharded_jit does.
        names = ", ".join(values) + "," * (len(values) == 1)
        lines += [f"{names} = jax.device_put({_tuple(values)}, in_shardings)"]
    last = f"result = jitted({', '.join(arguments)})"
    if call.asked and not source:
        # sv.with_sharding_constraint finds the mesh here.
        last = f"with jax.set_mesh(mesh):\n    {last}"
    return "\n".join([*lines, last]) + "\n"


def _through(name: str, arguments: Sequence[str], values: Sequence[str]) -> str:
    """A function around the function, for cuts that XLA cannot turn into each other directly."""
    names = ", ".join(values) + "," * (len(values) == 1)
    take = f"    {names} = jax.tree.map(whole, {_tuple(values)})\n" if values else ""
    return f"""\
def whole(x):  # the way from cut to cut
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))


def through({", ".join(values)}):
{take}    return jax.tree.map(whole, {name}({", ".join(arguments)}))"""


_HEAD = """\
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P"""


def _mesh_code(count: int, sizes: Sequence[tuple[int, ...]]) -> str:
    lines = [
        "try:  # simulated devices, where there are too few real ones; only before JAX starts",
        f'    jax.config.update("jax_num_cpu_devices", {count})',
        "except RuntimeError:",
        "    pass",
        f'devices = jax.devices() if jax.device_count() >= {count} else jax.devices("cpu")',
    ]
    for i, axes in enumerate(sizes):
        names = tuple(f"part{k}" for k in range(len(axes)))
        lines += [
            f"{_Meshes.name(i)} = Mesh(",
            f"    np.array(devices[:{count}]).reshape({axes!r}),",
            f"    {names!r},",
            f"    axis_types=(AxisType.Auto,) * {len(axes)},",
            ")",
        ]
    return "\n".join(lines)


class _Meshes:
    """The meshes of a call, in the order in which its code needs them."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.sizes: list[tuple[int, ...]] = [call.sizes]

    @staticmethod
    def name(index: int) -> str:
        return "mesh" if index == 0 else f"mesh_{index + 1}"

    def code(self, cut: Cut) -> str:
        """The arguments of NamedSharding for what is cut so."""
        sizes, spec = self.call.placed(cut)
        if sizes not in self.sizes:
            self.sizes.append(sizes)
        return f"{self.name(self.sizes.index(sizes))}, {spec}"


def _code(prefix: Any, meshes: _Meshes, what: str) -> str:
    """A tree of parts as the code of a tree of shardings."""
    if is_cut(prefix):
        return f"NamedSharding({meshes.code(prefix)})"
    if type(prefix) is tuple:
        return _tuple([_code(p, meshes, what) for p in prefix])
    if type(prefix) is list:
        return f"[{', '.join(_code(p, meshes, what) for p in prefix)}]"
    if type(prefix) is dict:
        inner = (f"{_literal(k)}: {_code(v, meshes, what)}" for k, v in prefix.items())
        return f"{{{', '.join(inner)}}}"
    raise ProgramError(
        f"{what} holds a {type(prefix).__name__}, which cannot be printed as code. Use tuples,"
        " lists and dicts, or one Parts for all that lies below."
    )


def _prefix_each(prefix: Any, count: int, meshes: _Meshes) -> list[str]:
    """One entry an argument, where one prefix may speak for all."""
    parts = (prefix,) * count if isinstance(prefix, Parts) or prefix is None else prefix
    return [_code(p, meshes, "in_parts") for p in parts]


def _tuple(items: Sequence[str]) -> str:
    if not items:
        return "()"
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def _literal(value: Any) -> str:
    if type(value) is tuple:
        return _tuple([_literal(v) for v in value])
    if type(value) not in _LITERALS or value != value or value in (float("inf"), -float("inf")):
        raise ProgramError(
            f"{shown(value)} cannot be printed as code; numbers, text, None and tuples of them can."
            " Take the code of a call with such static arguments and keys."
        )
    return repr(value)


def _arguments(call: Call, name: str) -> list[str]:
    """What the call passes: the parameter's name, or the literal of a static argument."""
    taken = {"jax", "np", "P", "AxisType", "Mesh", "NamedSharding", "devices", "mesh", name}
    taken |= {
        "in_shardings",
        "jitted",
        "result",
        "whole",
        "through",
        *(f"mesh_{i}" for i in range(2, 9)),
    }
    static, names = dict(call.signature.statics), iter(call.parameters)
    written = []
    for position in range(call.signature.total):
        if position in static:
            written.append(_literal(static[position]))
            continue
        given = next(names)
        good = given.isidentifier() and not keyword.iskeyword(given)
        written.append(unique(given if good else f"argument_{position}", taken))
        taken.add(written[-1])
    return written


def _name(fun: Callable[..., Any]) -> str:
    name = getattr(fun, "__name__", "")
    return name if name.isidentifier() and not keyword.iskeyword(name) else "fun"
