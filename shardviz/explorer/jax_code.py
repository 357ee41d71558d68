"""Generates JAX code for the current state: mesh, function, arrays and call."""

from __future__ import annotations

import builtins
import itertools
import json
import keyword
import re
import unicodedata
from collections.abc import Sequence

from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.draw.blocks import MOST_TILES
from shardviz.explorer.document import DEVICE_PUT, Document
from shardviz.explorer.jax_function import (
    FunctionCode,
    Name,
    Unwritable,
    function_code,
    sharding_code,
    written,
)
from shardviz.explorer.session import Session
from shardviz.explorer.state import session_state
from shardviz.gallery.programs import is_known, known_source
from shardviz.programs.program import Program

_HEAD = """\
import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
"""
_CALL = """\
with jax.set_mesh(mesh):
    outputs = jax.jit({})({})
for output in jax.tree.leaves(outputs):
    print(output.shape, output.sharding)
"""
_PLACED = """\
for array in ({},):
    print(array.sharding.spec, array.addressable_shards[0].index)
"""
_HELD = """\
# {name} holds a {kind}, which no short expression makes: set it above to the program's
# argument; its arrays are replaced by those here.
{name} = jax.tree.unflatten(jax.tree.structure({name}), [{leaves}])
"""
#: Names that the generated code defines; its array variables get other names.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        "jax jnp np P AxisType Mesh NamedSharding mesh devices ids outputs output array"
        " out_shardings compiler_options",
    )
)
_BUILTIN = frozenset(vars(builtins))
_WIDE = ("float64", "complex128", "int64", "uint64")
# Limits for the line that restores the state: its characters and its model leaves.
LONGEST_LINE = 20_000
MOST_IN_LINE = 200
# Options longer than this, in characters, become variables above the call.
MOST_INLINE = 60
# Larger device ids come from another machine.
MOST_SIMULATED = 1 << 16
_DEFINED = re.compile(r"^(?:def|import) (\w+)", re.MULTILINE)


def code(document: Document) -> str:
    """Returns JAX code for the current state, to run in a new cell.

    An array that cannot be laid out becomes a comment with the reason.
    """
    program = document.program
    function = _function(document)
    used = {*_RESERVED, *function.names}
    names = [_identifier(array.name, used) for array in document.arrays]
    # Lines above the call, and the modules that these lines need.
    above: list[str] = []
    imports: set[str] = set()
    arguments = _argument_code(program, names, used, above, imports)
    options = _option_code(program, above, imports)
    parts = [_HEAD + "".join(f"import {module}\n" for module in sorted(imports))]
    if any(array.dtype in _WIDE for array in document.arrays):
        parts.append('jax.config.update("jax_enable_x64", True)\n')
    parts.append(_mesh_code(document.mesh))
    if function.source:
        parts.append(f"{function.source.rstrip()}\n")
    parts.append(_arrays_code(program.requests, names))
    if program.problems:
        parts.append("# It is not called: an array above cannot be laid out.\n")
    elif function.call:
        parts.append("".join(above))
        parts.append(
            _CALL.format(", ".join([function.call, *options]), ", ".join(arguments))
        )
    elif names:
        if document.missing_function:
            missing = ascii(document.missing_function)
            parts.append(
                f"# A saved state holds no functions: {missing} is not called."
            )
        parts.append(_PLACED.format(", ".join(names)))
    return "\n".join(part for part in parts if part)


# --- names ----------------------------------------------------------------------------


def _identifier(text: str, used: set[str]) -> str:
    """Turns `text` into an identifier that is not in `used`, and adds it to `used`."""
    # Python normalizes identifiers to NFKC, too.
    name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", text)).rstrip("_") or "_"
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"a_{name}"
    base, count = name, 2
    while name in used or name in _BUILTIN:
        name, count = f"{base}_{count}", count + 1
    used.add(name)
    return name


# --- the mesh -------------------------------------------------------------------------


def _mesh_code(mesh: MeshSpec) -> str:
    """Returns code that creates the mesh from the first devices, or from device ids."""
    types = " ".join(f"AxisType.{kind}," for kind in mesh.axis_types)
    needed, listed, note = mesh.size, f"devices[:{mesh.size}]", ""
    if not mesh.ids_are_positions and mesh.size > MOST_TILES:
        note = "# The mesh has too many device ids to be written here.\n"
    elif not mesh.ids_are_positions:
        ids = mesh.device_ids.ravel().tolist()
        needed = max(ids) + 1
        note = f"ids = {ids!r}  # the devices of the mesh, in its order\n"
        listed = "[{d.id: d for d in devices}[i] for i in ids]"
    simulated = min(needed, MOST_SIMULATED)
    return f"""\
try:  # simulated devices, where there are too few real ones
    jax.config.update("jax_num_cpu_devices", {simulated})
except RuntimeError:  # JAX has started; without accelerators it can start again
    if jax.default_backend() == "cpu" and jax.device_count() < {simulated}:
        jax.extend.backend.clear_backends()
        jax.config.update("jax_num_cpu_devices", {simulated})
devices = jax.devices() if jax.device_count() >= {needed} else jax.devices("cpu")
if len(devices) < {needed}:
    raise RuntimeError("This mesh needs {plural(needed, "device")}, and JAX has"
        f" {{len(jax.devices())}}. Restart the kernel and run this cell first.")
{note}devices = np.array({listed}).reshape({mesh.axis_sizes!r})
mesh = Mesh(devices, {mesh.axis_names!r}, axis_types=({types}))
"""


# --- function, arrays and arguments ---------------------------------------------------


def _function(document: Document) -> FunctionCode:
    if document.entry == DEVICE_PUT:
        return FunctionCode("", "")
    fn = document.program.fn
    if not is_known(document.entry):
        return function_code(fn)
    source = known_source(document.entry)
    return FunctionCode(source, fn.__name__, frozenset(_DEFINED.findall(source)))


def _arrays_code(requests: Sequence[Request], names: Sequence[str]) -> str:
    """Returns a line per array: code that creates it, or a comment with its problem."""
    lines = []
    for name, request in zip(names, requests, strict=True):
        if request.layout is None or request.spec is None:
            lines.append(f"# {name}: {request.problem}\n")
        else:
            lines.append(f"{name} = {_array_code(request.array, request.spec)}\n")
    return "".join(lines)


def _array_code(array: ArraySpec, spec: Spec) -> str:
    # As in a run, unconstrained dimensions of arguments are not split.
    placed = sharding_code(spec.with_dims(spec.dims), array.memory_kind)
    if not array.dtype.startswith("key<"):
        return f"jnp.ones({array.shape!r}, {array.dtype!r}, device={placed})"
    from shardviz.programs.backend.bridge import key_implementation  # loads jax

    keys = f"jax.random.key(0, impl={key_implementation(array.dtype)!r})"
    if array.shape:
        keys = f"jax.random.split({keys}, {array.shape!r})"
    return f"jax.device_put({keys}, {placed})"


def _argument_code(
    program: Program,
    names: Sequence[str],
    used: set[str],
    above: list[str],
    imports: set[str],
) -> list[str]:
    """Returns an expression for each argument of the function."""
    if program.tree is None:
        return list(names)
    # This imports jax, which was already imported to create the tree.
    from shardviz.programs.backend.arguments import parameter_names

    values = program.tree.unflatten([Name(name) for name in names])
    parameters = parameter_names(program.fn, len(values))
    leaves, call = iter(names), []
    for parameter, value, subtree in zip(
        parameters, values, program.tree.children(), strict=True
    ):
        leaf_names = list(itertools.islice(leaves, subtree.num_leaves))
        if isinstance(value, Name):
            call.append(value.text)
            continue
        name = _identifier(parameter, used)
        call.append(name)
        try:
            above.append(f"{name} = {written(value, imports)}\n")
        except Unwritable as error:
            kind = error.args[0].__name__
            above.append(
                _HELD.format(name=name, kind=kind, leaves=", ".join(leaf_names))
            )
    return call


# --- the call -------------------------------------------------------------------------


def _option_code(program: Program, above: list[str], imports: set[str]) -> list[str]:
    """Returns the keyword arguments of `jax.jit` as code."""
    compiler_options = dict(program.options)
    values = {
        "donate_argnums": tuple(compiler_options.pop("donate", ())) or None,
        "out_shardings": program.out_specs,
        "compiler_options": compiler_options or None,
    }
    options: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        try:
            text = written(value, imports)
        except Unwritable as error:
            kind = error.args[0].__name__
            above.append(f"# {name} is left out: no expression makes its {kind}.\n")
            continue
        if "\n" in text or len(text) > MOST_INLINE:
            above.append(f"{name} = {text}\n")
            text = name
        options.append(f"{name}={text}")
    return options


# --- the rules ------------------------------------------------------------------------


def rules_code(rules: Rules) -> dict[str, str]:
    """Returns a rule table as pairs in Python and as YAML, by title; {} without rules.

    `sv.rules`, flax and MaxText read both.

    >>> table = Rules.of(("batch", ("data", "fsdp")), ("seq", None))
    >>> print(*rules_code(table).values(), sep="\\n")
    rules = [
        ('batch', ('data', 'fsdp')),
        ('seq', None),
    ]
    <BLANKLINE>
    logical_axis_rules:
      - ["batch", ["data", "fsdp"]]
      - ["seq", null]
    <BLANKLINE>
    """
    python, yaml, head = "", "", ""
    for rule in rules:
        axes = rule.axes if len(rule.axes) > 1 else next(iter(rule.axes), None)
        target = repr(axes)
        line = f"- {json.dumps([rule.logical, axes])}"
        if rule.free:
            head = "from jax.sharding import PartitionSpec as P\n\n"
            target = "P.UNCONSTRAINED"
            line = (
                f"# {rule.logical!a} is left to the compiler: YAML has no such value."
            )
        python += f"    ({rule.logical!r}, {target}),\n"
        yaml += f"  {line}\n"
    if not python:
        return {}
    return {
        "Rules as Python": f"{head}rules = [\n{python}]\n",
        "Rules as YAML": f"logical_axis_rules:\n{yaml}",
    }


def line_to_restore(session: Session) -> str:
    """Returns a line that restores the state in another kernel; `""` if it is too long.

    >>> from shardviz.explorer.state import session_on
    >>> line_to_restore(session_on(None))[:33]
    'import shardviz as sv; sv.explore'
    """
    model = session.now.model
    if model is not None and len(model.arrays) > MOST_IN_LINE:
        return ""
    line = f"import shardviz as sv; sv.explore({json.dumps(session_state(session))!r})"
    return line if len(line) <= LONGEST_LINE else ""
