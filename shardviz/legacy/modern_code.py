"""The code of a function under `sharded_jit` over `jax.jit` and NamedSharding."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.legacy.call import PartitionedCall
from shardviz.legacy.partitions import Partition, is_partition

# Names that the code around the call defines.
_TAKEN = {
    *("jax", "np", "P", "NamedSharding", "AxisType", "Mesh", "mesh", "devices"),
    *("in_shardings", "jitted", "result", "replicate", "with_replicated"),
}
_LITERALS = (bool, int, float, complex, str, bytes, type(None))
_HEAD = """\
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
"""


def modern_code(call: PartitionedCall) -> str:
    """The code: a mesh, the shardings, `jax.jit`, and the call, whose value is
    `result`.

    It takes the function by its name. `legacy.with_sharding_constraint` inside of it
    finds the mesh that the code sets.

    Raises:
        ProgramError: for containers and static arguments that have no literal.
    """
    meshes, name = _Meshes(call), getattr(call.request.fun, "__name__", "")
    if not name.isidentifier() or keyword.iskeyword(name):
        name = "fun"
    arguments = _arguments(call, name)
    values = [arguments[i] for i in call.signature.positions]
    prefix = call.request.in_parts
    if is_partition(prefix):
        prefix = (prefix,) * len(values)
    ins = _tuple([_code(parts, meshes, "in_parts") for parts in prefix])
    outs = _code(call.request.out_parts, meshes, "out_parts")
    numbers = tuple(i for i, _ in call.signature.statics)

    definition = f"# {name} is your own function: define it above.\n"
    jitted = name
    if call.indirect:
        definition += f"\n\n{_with_replicated(name, arguments, values)}\n\n"
        # Static arguments are written into that function.
        jitted, arguments, numbers = "with_replicated", values, ()
    statics = f"\n    static_argnums={numbers!r}," if numbers else ""
    jit = f"""\
in_shardings = {ins}
jitted = jax.jit(
    {jitted},
    in_shardings=in_shardings,
    out_shardings={outs},{statics}
)"""
    lines = [_HEAD, _mesh_code(call.count, meshes.sizes), "", definition, jit]
    if values:
        # Arrays on other devices are moved, as sharded_jit does.
        placed = f"jax.device_put({_tuple(values)}, in_shardings)"
        lines.append(f"{_targets(values)} = {placed}")
    last = f"result = jitted({', '.join(arguments)})"
    if call.constraints:
        last = f"with jax.set_mesh(mesh):\n    {last}"
    return "\n".join([*lines, last]) + "\n"


def _with_replicated(name: str, arguments: Sequence[str], values: Sequence[str]) -> str:
    """A function around the function that replicates arguments and results.

    For shardings between which XLA cannot reshard directly.
    """
    take = ""
    if values:
        mapped = f"jax.tree.map(replicate, {_tuple(values)})"
        take = f"    {_targets(values)} = {mapped}\n"
    return f"""\
def replicate(x):  # between two ways to split
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))


def with_replicated({", ".join(values)}):
{take}    return jax.tree.map(replicate, {name}({", ".join(arguments)}))"""


def _mesh_code(count: int, sizes: Sequence[tuple[int, ...]]) -> str:
    code = f"""\
try:  # simulated devices, where there are too few real ones; only before JAX starts
    jax.config.update("jax_num_cpu_devices", {count})
except RuntimeError:
    pass
devices = jax.devices() if jax.device_count() >= {count} else jax.devices("cpu")"""
    for index, axes in enumerate(sizes):
        names = tuple(f"part{k}" for k in range(len(axes)))
        code += f"""
{_Meshes.name(index)} = Mesh(
    np.array(devices[:{count}]).reshape({axes!r}),
    {names!r},
    axis_types=(AxisType.Auto,) * {len(axes)},
)"""
    return code


class _Meshes:
    """The meshes of a call, in the order in which its code needs them."""

    def __init__(self, call: PartitionedCall) -> None:
        self.call = call
        self.sizes: list[tuple[int, ...]] = [call.sizes]

    @staticmethod
    def name(index: int) -> str:
        return "mesh" if index == 0 else f"mesh_{index + 1}"

    def named_sharding(self, partition: Partition) -> str:
        """The code of the NamedSharding that splits an array so."""
        sizes, spec = self.call.sizes_and_spec(partition)
        if sizes not in self.sizes:
            self.sizes.append(sizes)
        return f"NamedSharding({self.name(self.sizes.index(sizes))}, {spec})"


def _code(prefix: Any, meshes: _Meshes, what: str) -> str:
    """A tree of parts as the code of a tree of shardings."""
    if is_partition(prefix):
        return meshes.named_sharding(prefix)
    # Exactly these: a subclass, such as a namedtuple, has no literal.
    if type(prefix) is tuple:
        return _tuple([_code(p, meshes, what) for p in prefix])
    if type(prefix) is list:
        return f"[{', '.join(_code(p, meshes, what) for p in prefix)}]"
    if type(prefix) is dict:
        items = []
        for key, value in prefix.items():
            items.append(f"{_literal(key)}: {_code(value, meshes, what)}")
        return f"{{{', '.join(items)}}}"
    raise ProgramError(
        f"{what} holds a {type(prefix).__name__}, which cannot be printed as code. Use"
        " tuples, lists and dicts, or one Parts for all arrays below it."
    )


def _tuple(items: Sequence[str]) -> str:
    return f"({_targets(items)})"


def _targets(items: Sequence[str]) -> str:
    """Names that are assigned to at once, or the inside of a tuple."""
    return ", ".join(items) + "," * (len(items) == 1)


def _literal(value: Any) -> str:
    if type(value) is tuple:
        return _tuple([_literal(v) for v in value])
    # nan and inf have no literal either.
    if type(value) not in _LITERALS or repr(value) in ("nan", "inf", "-inf"):
        raise ProgramError(
            f"{shown(value)} cannot be printed as code; numbers, text, None and tuples"
            " of them can. Take the code of a call with such static arguments and keys."
        )
    return repr(value)


def _arguments(call: PartitionedCall, name: str) -> list[str]:
    """What the call passes: the parameter's name, or a static argument's literal."""
    from shardviz.core.backend.tracing.arguments import unique

    taken = {*_TAKEN, name, *(_Meshes.name(i) for i in range(8))}
    static, parameters = dict(call.signature.statics), iter(call.signature.parameters)
    written = []
    for position in range(call.signature.total):
        if position in static:
            written.append(_literal(static[position]))
            continue
        parameter = next(parameters)
        if not parameter.isidentifier() or keyword.iskeyword(parameter):
            parameter = f"argument_{position}"
        written.append(unique(parameter, taken))
        taken.add(written[-1])
    return written
