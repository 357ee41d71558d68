"""The current state as plain JAX code: mesh, arrays, pytrees of arguments, and the jitted call."""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardviz.core.format import plural
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Request
from shardviz.core.program.program import Program
from shardviz.picture.blocks import MOST_TILES
from shardviz.widgets.function_source import (
    FunctionCode,
    Name,
    Unwritable,
    function_code,
    sharding_code,
    written,
)
from shardviz.widgets.menus import is_known, known_sources
from shardviz.widgets.session import DEVICE_PUT, Session

_BUILTIN = frozenset(vars(builtins))


class ArgumentCode(NamedTuple):
    """The code of the arguments of a call.

    Attributes:
        source: the lines that make the pytrees; `""` where every argument is an array.
        call: one expression per argument.
        imports: the modules that `source` needs.
    """

    source: str
    call: tuple[str, ...]
    imports: frozenset[str]


def variables(arrays: Iterable[ArraySpec], taken: Iterable[str]) -> list[str]:
    """A Python name for every array: its own name where that is an identifier and not taken.

    >>> variables([ArraySpec("params.w", (8,)), ArraySpec("class", (8,))], ["params_w"])
    ['params_w_2', 'a_class']
    """
    used = set(taken)
    return [_identifier(array.name, used) for array in arrays]


def _identifier(text: str, used: set[str]) -> str:
    """A name like `text` that is not in `used`; adds it there."""
    # Python normalizes identifiers, too.
    name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", text)).rstrip("_") or "_"
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"a_{name}"
    base, count = name, 2
    while name in used or name in _BUILTIN:
        name, count = f"{base}_{count}", count + 1
    used.add(name)
    return name


def arrays_code(requests: Sequence[Request], names: Sequence[str]) -> str:
    """One line per array: made with its sharding, or a comment why it cannot be laid out."""
    lines = []
    for name, request in zip(names, requests, strict=True):
        if request.layout is None or request.spec is None:
            lines.append(f"# {name}: {request.problem}\n")
        else:
            lines.append(f"{name} = {_array_code(request.array, request.spec)}\n")
    return "".join(lines)


def _array_code(array: ArraySpec, spec: Spec) -> str:
    # Unconstrained dimensions of an argument are not split, as in a run.
    constrained = Spec(spec.dims, frozenset(), spec.unreduced, spec.reduced)
    placed = sharding_code(constrained, array.memory_kind)
    if array.dtype.startswith("key<"):
        from shardviz.core.backend.bridge import key_implementation  # loads jax

        seed = f"jax.random.key(0, impl={key_implementation(array.dtype)!r})"
        keys = f"jax.random.split({seed}, {array.shape!r})" if array.shape else seed
        return f"jax.device_put({keys}, {placed})"
    return f"jnp.ones({array.shape!r}, {array.dtype!r}, device={placed})"


def argument_code(program: Program, names: Sequence[str], taken: Iterable[str]) -> ArgumentCode:
    """The arguments as the function takes them.

    Args:
        program: the function and its arrays.
        names: the variable of every array, in order.
        taken: further names that no argument may have.
    """
    if program.tree is None:
        return ArgumentCode("", tuple(names), frozenset())
    from shardviz.core.backend.arguments import parameter_names  # loads jax, as the tree did

    values = program.tree.unflatten([Name(n) for n in names])
    used, imports = {*names, *taken}, set()
    lines, call, begin = [], [], 0
    parameters = parameter_names(program.fn, len(values))
    for parameter, value, part in zip(parameters, values, program.tree.children(), strict=True):
        leaves = names[begin : begin + part.num_leaves]
        begin += part.num_leaves
        if isinstance(value, Name):
            call.append(value.text)
            continue
        call.append(_identifier(parameter, used))
        lines.append(_tree_code(call[-1], value, leaves, imports))
    return ArgumentCode("".join(lines), tuple(call), frozenset(imports))


def _tree_code(name: str, value: object, leaves: Sequence[str], imports: set[str]) -> str:
    found: set[str] = set()
    try:
        text = f"{name} = {written(value, imports=found)}\n"
    except Unwritable as error:
        kind = error.args[0].__name__
        return (
            f"# {name} holds a {kind}, which no short expression makes: set it above to the"
            " program's argument;\n# its arrays are replaced by those here.\n"
            f"{name} = jax.tree.unflatten(jax.tree.structure({name}), [{', '.join(leaves)}])\n"
        )
    imports |= found
    return text


_HEAD = """\
import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
"""
# Names in the code itself; no array takes them.
_OWN = frozenset(
    {"jax", "jnp", "np", "P", "AxisType", "Mesh", "NamedSharding", "mesh", "devices", "ids",
     "outputs", "output", "array", "out_shardings", "compiler_options"}
)  # fmt: skip
_WIDE = ("float64", "complex128", "int64", "uint64")
MOST_INLINE = 60  # characters of an option that is written inside the call
MOST_SIMULATED = 1 << 16  # larger ids are names from another machine
_DEFINED = re.compile(r"^(?:def|import) (\w+)", re.MULTILINE)


def code(session: Session) -> str:
    """The current state as plain JAX code that runs in a new cell.

    An array that cannot be laid out is a comment with the reason.
    """
    program = session.program
    function = _function(session)
    taken = _OWN | function.names
    names = variables(session.arrays, taken)
    arguments = argument_code(program, names, taken)
    options, above, more = _options(program)
    parts = [_HEAD + _imports(function.imports | arguments.imports | more)]
    if any(a.dtype in _WIDE for a in session.arrays):
        parts.append('jax.config.update("jax_enable_x64", True)  # for types of 64 bits\n')
    parts += [_mesh_code(session.mesh), function.source and f"{function.source.rstrip()}\n"]
    parts.append(arrays_code(program.requests, names))
    if program.problems:
        parts.append("# The program is not called: an array above cannot be laid out.\n")
    elif function.call:
        parts += [arguments.source, above]
        parts.append(_call_code(function.call, arguments.call, options))
    elif names:
        parts.append(_missing(session.missing_function) + _place_code(names))
    return "\n".join(filter(None, parts))


def _imports(modules: frozenset[str]) -> str:
    return "".join(f"import {module}\n" for module in sorted(modules))


def _mesh_code(mesh: MeshSpec) -> str:
    types = " ".join(f"AxisType.{t}," for t in mesh.axis_types)
    chosen = _first_devices(mesh) if mesh.ids_are_positions else _devices_by_id(mesh)
    return f"{chosen}mesh = Mesh(devices, {mesh.axis_names!r}, axis_types=({types}))\n"


def _first_devices(mesh: MeshSpec) -> str:
    return f"""\
{_simulated(mesh.size)}\
devices = jax.devices() if jax.device_count() >= {mesh.size} else jax.devices("cpu")
if len(devices) < {mesh.size}:
    {_refusal(f"This mesh has {plural(mesh.size, 'device')}")}
devices = np.array(devices[:{mesh.size}]).reshape({mesh.axis_sizes!r})
"""


def _devices_by_id(mesh: MeshSpec) -> str:
    """The devices of the mesh by their ids, in its order."""
    if mesh.size > MOST_TILES:
        return "# The mesh has too many device ids to be written here.\n" + _first_devices(mesh)
    ids = mesh.device_ids.ravel()
    top = int(ids.max()) + 1
    return f"""\
{_simulated(top if top <= MOST_SIMULATED else mesh.size)}\
ids = {_ids_text(ids)}  # the devices of the mesh, in its order
devices = {{d.id: d for d in jax.devices()}}
if not set(ids) <= set(devices):
    devices = {{d.id: d for d in jax.devices("cpu")}}
if not set(ids) <= set(devices):
    {_refusal("Some devices of this mesh are not here")}
devices = np.array([devices[i] for i in ids]).reshape({mesh.axis_sizes!r})
"""


def _simulated(count: int) -> str:
    return f"""\
try:  # simulated devices, where there are too few real ones
    jax.config.update("jax_num_cpu_devices", {count})
except RuntimeError:  # JAX has started; without accelerators it can start again
    if jax.default_backend() == "cpu" and jax.device_count() < {count}:
        jax.extend.backend.clear_backends()
        jax.config.update("jax_num_cpu_devices", {count})
"""


def _refusal(why: str) -> str:
    """The line that ends the code where JAX has too few devices."""
    return (
        f'raise RuntimeError("{why}, and JAX has"\n'
        '        f" {len(jax.devices())}. Restart the kernel and run this cell first.")'
    )


def _ids_text(ids: np.ndarray) -> str:
    steps = np.diff(ids)
    if len(ids) > 2 and steps[0] and (steps == steps[0]).all():
        step = int(steps[0])
        end = int(ids[-1]) + (1 if step > 0 else -1)
        return f"range({ids[0]}, {end}{'' if step == 1 else f', {step}'})"
    return repr(ids.tolist())


def _function(session: Session) -> FunctionCode:
    if session.entry == DEVICE_PUT:
        return FunctionCode("", "")
    if is_known(session.entry):
        source = _known_source(session.entry)
        names = frozenset(_DEFINED.findall(source))
        return FunctionCode(source, session.program.fn.__name__, frozenset(), names)
    return function_code(session.program.fn)


@lru_cache(maxsize=64)
def _known_source(name: str) -> str:
    return "\n\n".join(s.rstrip() for s in known_sources(name)) + "\n"


def _call_code(function: str, call: Sequence[str], options: str) -> str:
    return f"""\
with jax.set_mesh(mesh):
    outputs = jax.jit({function}{options})({", ".join(call)})
for output in jax.tree.leaves(outputs):
    print(output.shape, output.sharding)
"""


def _options(program: Program) -> tuple[str, str, set[str]]:
    """The options of `jax.jit`: its arguments, lines above the call, and imports."""
    rest = dict(program.options)
    donate = tuple(rest.pop("donate", ()))
    values = {
        "donate_argnums": donate or None,
        "out_shardings": program.out_specs,
        "compiler_options": rest or None,
    }
    options, lines, imports = "", "", set()
    for name, value in values.items():
        if value is None:
            continue
        try:
            text = written(value, imports=imports)
        except Unwritable as error:
            kind = error.args[0].__name__
            lines += f"# {name} is left out: it holds a {kind}, which no short expression makes.\n"
            continue
        if "\n" in text or len(text) > MOST_INLINE:
            lines += f"{name} = {text}\n"
            text = name
        options += f", {name}={text}"
    return options, lines, imports


def _missing(name: str) -> str:
    return f"# A saved state holds no functions: {name!a} is not called here.\n" if name else ""


def _place_code(names: Sequence[str]) -> str:
    shown = "array.sharding.spec, array.addressable_shards[0].index"
    return f"for array in ({', '.join(names)},):\n    print({shown})\n"
