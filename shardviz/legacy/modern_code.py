"""modern_code(): a call of `sharded_jit` as code over `jax.jit` that runs by itself.

The function's source is parsed with `ast` and written back; nothing is evaluated.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from shardviz.core.errors import ProgramError, SpecError
from shardviz.core.format import shown
from shardviz.legacy.call import PartitionedCall
from shardviz.legacy.partitions import Partition, Parts, is_partition

# Names that the code around the function defines, and the modules among them.
_TAKEN = {"jax", "np", "P", "NamedSharding", "AxisType", "Mesh", "mesh", "devices"}
_MODULES = {"jax": "jax", "np": "numpy"}


@dataclass(frozen=True)
class Source:
    """A function as code.

    Attributes:
        code: the definition.
        imports: the lines it needs before it.
    """

    code: str
    imports: str


def translated(fun: Callable[..., Any], sharding: Callable[[Partition], str]) -> Source | None:
    """The source of a plain function, with our constraints written as those of `jax.lax`.

    Args:
        fun: the function.
        sharding: from a Parts or None to the code of its sharding.

    Returns:
        The source; None where there is none, or where it needs more than imports.

    >>> translated(len, repr) is None
    True
    """
    tree = _definition(fun)
    if tree is None or getattr(fun, "__closure__", None):
        return None
    namespace = getattr(fun, "__globals__", {})
    try:
        tree = ast.fix_missing_locations(_Constraints(namespace, sharding).visit(tree))
    except _NoLiteral:
        return None
    imports = _imports(tree, namespace)
    return None if imports is None else Source(ast.unparse(tree), imports)


class _NoLiteral(Exception):
    """The parts of a constraint are no literal."""


def _definition(fun: Callable[..., Any]) -> ast.FunctionDef | None:
    if not inspect.isfunction(fun):
        return None
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(fun))).body
    except (OSError, TypeError, SyntaxError):  # typed into a shell, or an expression's part
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    definition = body[0]
    if any("sharded_jit" not in ast.unparse(d) for d in definition.decorator_list):
        return None
    definition.decorator_list = []
    return definition if definition.name == fun.__name__ else None


class _Constraints(ast.NodeTransformer):
    """Rewrites our constraints as those of jax."""

    def __init__(self, namespace: dict[str, Any], sharding: Callable[[Partition], str]) -> None:
        self.namespace, self.sharding = namespace, sharding

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not self._is_ours(node.func, "with_sharding_constraint"):
            return node
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg == "parts")]
        if len(arguments) != 2 or len(node.keywords) > 1:
            raise _NoLiteral
        written = ast.parse(self.sharding(self._parts(arguments[1])), mode="eval").body
        target = ast.parse("jax.lax.with_sharding_constraint", mode="eval").body
        return ast.Call(target, [arguments[0], written], [])

    def _parts(self, node: ast.expr) -> Partition:
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.Call) and self._is_ours(node.func, "Parts") and not node.keywords:
            numbers = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if len(numbers) == len(node.args):
                try:
                    return Parts(*numbers)  # type: ignore[arg-type]
                except SpecError:
                    raise _NoLiteral from None
        raise _NoLiteral

    def _is_ours(self, node: ast.expr, name: str) -> bool:
        if isinstance(node, ast.Attribute):
            module = self.namespace.get(getattr(node.value, "id", ""))
            return node.attr == name and _is_shardviz(str(getattr(module, "__name__", "")))
        found = self.namespace.get(getattr(node, "id", ""))
        home = str(getattr(found, "__module__", ""))
        return getattr(found, "__name__", "") == name and _is_shardviz(home)


def _is_shardviz(module: str) -> bool:
    return module.partition(".")[0] == "shardviz"


def _imports(tree: ast.FunctionDef, namespace: dict[str, Any]) -> str | None:
    """The imports that a definition needs; None where it needs something else."""
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    bound |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    if bound & _TAKEN:
        return None
    lines = []
    for name in sorted({n.id for n in names} - bound - {"mesh", "NamedSharding", "P"}):
        value = namespace.get(name)
        if isinstance(value, ModuleType) and not _is_shardviz(value.__name__):
            if _MODULES.get(name) != value.__name__:
                lines.append(f"import {value.__name__} as {name}")
        elif name != "jax" and (name in namespace or not hasattr(builtins, name)):
            return None
    return "\n".join(lines)


_LITERALS = (bool, int, float, complex, str, bytes, type(None))


def modern_code(call: PartitionedCall) -> str:
    """The code: a mesh, the shardings, `jax.jit`, and the call, whose value is `result`.

    It contains the function's source, its constraints translated, where that needs only imports;
    otherwise it takes the function by its name.

    Raises:
        ProgramError: for containers and static arguments that have no literal.
    """
    meshes, fun = _Meshes(call), call.request.fun
    # Only legacy.with_sharding_constraint goes from one partition to another by a detour.
    needs_ours = call.indirect and call.constraints
    source = None if needs_ours else translated(fun, meshes.named_sharding)
    name = _name(fun)
    arguments = _arguments(call, name)
    values = [arguments[i] for i in call.signature.positions]
    ins = call.request.in_parts
    every = (ins,) * len(values) if is_partition(ins) else ins
    ins = [_code(parts, meshes, "in_parts") for parts in every]
    outs = _code(call.request.out_parts, meshes, "out_parts")
    numbers = tuple(i for i, _ in call.signature.statics)
    definition = source.code if source else f"# {name} is your own function: define it above."
    jitted = name
    if call.indirect:
        definition += "\n\n\n" + _with_replicated(name, arguments, values)
        jitted, arguments, numbers = "with_replicated", values, ()
    lines = [_HEAD, *filter(None, [source and source.imports])]
    gap = ["", ""] if source or call.indirect else [""]
    lines += ["", _mesh_code(call.count, meshes.sizes), *gap, definition, *gap]
    lines += [f"in_shardings = {_tuple(ins)}", "jitted = jax.jit(", f"    {jitted},"]
    lines += ["    in_shardings=in_shardings,", f"    out_shardings={outs},"]
    lines += [f"    static_argnums={numbers!r},"] * bool(numbers) + [")"]
    if values:
        # Arrays on other devices are moved, as sharded_jit does.
        names = ", ".join(values) + "," * (len(values) == 1)
        lines += [f"{names} = jax.device_put({_tuple(values)}, in_shardings)"]
    last = f"result = jitted({', '.join(arguments)})"
    if call.constraints and not source:
        # legacy.with_sharding_constraint finds the mesh here.
        last = f"with jax.set_mesh(mesh):\n    {last}"
    return "\n".join([*lines, last]) + "\n"


def _with_replicated(name: str, arguments: Sequence[str], values: Sequence[str]) -> str:
    """A function around the function, for shardings between which XLA cannot reshard directly."""
    names = ", ".join(values) + "," * (len(values) == 1)
    take = f"    {names} = jax.tree.map(replicate, {_tuple(values)})\n" if values else ""
    return f"""\
def replicate(x):  # between two ways to split
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))


def with_replicated({", ".join(values)}):
{take}    return jax.tree.map(replicate, {name}({", ".join(arguments)}))"""


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
    if type(prefix) is tuple:
        return _tuple([_code(p, meshes, what) for p in prefix])
    if type(prefix) is list:
        return f"[{', '.join(_code(p, meshes, what) for p in prefix)}]"
    if type(prefix) is dict:
        inner = (f"{_literal(k)}: {_code(v, meshes, what)}" for k, v in prefix.items())
        return f"{{{', '.join(inner)}}}"
    raise ProgramError(
        f"{what} holds a {type(prefix).__name__}, which cannot be printed as code. Use tuples,"
        " lists and dicts, or one Parts for all arrays below it."
    )


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


def _arguments(call: PartitionedCall, name: str) -> list[str]:
    """What the call passes: the parameter's name, or the literal of a static argument."""
    from shardviz.core.backend.arguments import unique

    taken = {*_TAKEN, name, "in_shardings", "jitted", "result", "replicate", "with_replicated"}
    taken |= {_Meshes.name(i) for i in range(1, 8)}
    static, names = dict(call.signature.statics), iter(call.signature.parameters)
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
