"""The current state as plain JAX code: mesh, function, arrays, pytrees of arguments, and the call.

Nothing is executed here. A function without a name becomes a placeholder to fill in.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import keyword
import math
import re
import sys
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.format import plural
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec, memory_of
from shardviz.core.layout.resolution import Request
from shardviz.core.program.program import Program
from shardviz.gallery.programs import is_known, known_source
from shardviz.picture.blocks import MOST_TILES
from shardviz.widgets.session import DEVICE_PUT, Session

LINE = 96


class Unwritable(Exception):
    """No short expression makes a value; the argument is its type."""


class Name:
    """A variable in an expression.

    >>> written({"w": Name("w_in"), "layers": [Name("a"), None]})
    "{'w': w_in, 'layers': [a, None]}"
    """

    def __init__(self, text: str) -> None:
        self.text = text


def sharding_code(spec: Spec, memory_kind: str | None = None) -> str:
    """The expression of a sharding over the variable `mesh`.

    >>> sharding_code(Spec.parse("data, None"))
    "NamedSharding(mesh, P('data', None))"
    """
    kind = "" if memory_kind is None else f", memory_kind={memory_kind!r}"
    return f"NamedSharding(mesh, {spec}{kind})"


def written(value: Any, indent: int = 0, imports: set[str] | None = None) -> str:
    """The expression that makes a value, on several lines where it is long.

    Args:
        value: names, specs, plain values, and containers of them: dicts, lists, tuples, named
            tuples and dataclasses.
        indent: of the line with the expression, in spaces.
        imports: the modules that the expression names are added to it.

    Raises:
        Unwritable: for anything else.
    """
    imports = set() if imports is None else imports
    if isinstance(value, Name):
        return value.text
    if isinstance(value, Spec):
        return sharding_code(value, memory_of(value))
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) in (float, complex):
        if not math.isfinite(abs(value)):
            raise Unwritable(float)
        return repr(value)
    inner = indent + 4
    if type(value) is dict:
        both = [[written(part, inner, imports) for part in pair] for pair in value.items()]
        return _joined("{", [f"{key}: {v}" for key, v in both], "}", indent)
    if type(value) is OrderedDict:
        imports.add("collections")
        return f"collections.OrderedDict({written(dict(value), indent, imports)})"
    if type(value) in (list, tuple):
        ends = "[]" if type(value) is list else "()"
        items = [written(v, inner, imports) for v in value]
        only = type(value) is tuple and len(items) == 1
        return _joined(ends[0], items, ends[1], indent, "," if only else "")
    return _joined(f"{_class(value, imports)}(", _fields(value, inner, imports), ")", indent)


def _fields(value: Any, indent: int, imports: set[str]) -> list[str]:
    """The keyword arguments that make a named tuple or a dataclass."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names: Iterable[str] = value._fields  # type: ignore[attr-defined]
    elif dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        if not all(f.init for f in fields):
            raise Unwritable(type(value))
        names = [f.name for f in fields]
    else:
        raise Unwritable(type(value))
    return [f"{n}={written(getattr(value, n), indent, imports)}" for n in names]


def _class(value: Any, imports: set[str]) -> str:
    """The name of a value's class in new code."""
    kind = type(value)
    module, name = kind.__module__, kind.__qualname__
    if module == "__main__":
        return name
    if getattr(sys.modules.get(module), name, None) is not kind:
        raise Unwritable(kind)
    imports.add(module)
    return f"{module}.{name}"


def _joined(opening: str, items: list[str], closing: str, indent: int, last: str = "") -> str:
    line = f"{opening}{', '.join(items)}{last}{closing}"
    if "\n" not in line and indent + len(line) <= LINE:
        return line
    inside = "".join(f"{' ' * (indent + 4)}{item},\n" for item in items)
    return f"{opening}\n{inside}{' ' * indent}{closing}"


NAMELESS = "function"  # the name of a function that has none
MOST_FUNCTIONS = 2000  # so many called functions are searched for the names that they read
_BUILTIN = frozenset(vars(builtins))


@dataclass(frozen=True)
class FunctionCode:
    """The source of a function, and the expression that calls it.

    Attributes:
        source: source code or a comment, without a line end.
        call: the expression that is the function.
        imports: the modules that the expression needs.
        names: the names that nothing else in the code may take.
    """

    source: str
    call: str
    imports: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


def function_code(fn: Any) -> FunctionCode:
    """The code of a user's own function.

    >>> import math
    >>> function_code(math.sqrt).source
    'from math import sqrt'
    >>> print(function_code(functools.partial(math.pow, 2.0)).call)
    functools.partial(pow, 2.0)
    """
    found = _named(fn) or _partial(fn) or _lambda(fn) or _placeholder(fn)
    taken = found.names | {found.call.split(".")[0]} | names_read(fn)
    return FunctionCode(found.source, found.call, found.imports, frozenset(taken))


def _named(fn: Any) -> FunctionCode | None:
    """By its name in a module or notebook, or by the name in its definition."""
    owner = getattr(fn, "__self__", None)
    if inspect.ismethod(fn) and owner is not None:
        found = _named(owner) if not isinstance(owner, type) else None
        return found and FunctionCode(found.source, f"{found.call}.{fn.__name__}")
    name, module = _import_path(fn)
    if not name:
        return None
    if module == "builtins":
        return FunctionCode("", name)
    if module in ("", "__main__"):
        return FunctionCode(f"# {name} is your own: define it above.", name)
    return FunctionCode(f"from {module} import {name}", name)


def _import_path(thing: Any) -> tuple[str, str]:
    """The name of a thing, and the module that has it under that name; `""` for neither."""
    name = getattr(thing, "__name__", "")
    callable_name = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    for module in dict.fromkeys(("__main__", getattr(thing, "__module__", None))):
        scope = vars(sys.modules[module]) if module in sys.modules else {}
        if callable_name and _is(scope.get(name), thing):
            return name, str(module)
        for other, value in list(scope.items()):
            if _is(value, thing) and not other.startswith("_"):
                return other, str(module)
    return (name, "") if callable_name else ("", "")


def _is(value: Any, thing: Any) -> bool:
    """Whether a value is the thing, or the thing under a decorator such as `jax.jit`."""
    return value is thing or (callable(value) and getattr(value, "__wrapped__", None) is thing)


def _partial(fn: Any) -> FunctionCode | None:
    """A partial of a function with a name, where expressions make its values."""
    if type(fn) is not functools.partial:
        return None
    inner = _named(fn.func) or _partial(fn.func)
    try:
        values = [written(v) for v in fn.args]
        values += [f"{k}={written(v)}" for k, v in fn.keywords.items()]
    except Unwritable:
        return None
    if inner is None:
        return None
    call = f"functools.partial({', '.join([inner.call, *values])})"
    names = frozenset({inner.call.split(".")[0]})
    return FunctionCode(inner.source, call, inner.imports | {"functools"}, names)


def _lambda(fn: Any) -> FunctionCode | None:
    """A lambda by its source, where that can be read and is no closure."""
    code = getattr(fn, "__code__", None)
    if code is None or code.co_freevars or fn.__defaults__ or fn.__kwdefaults__:
        return None
    text = _lambda_text(code)
    if not text:
        return None
    where = f"# The program's function, from {_line(fn)}:\n"
    return FunctionCode(f"{where}{NAMELESS} = {text}", NAMELESS)


@lru_cache(maxsize=64)  # every edit asks for the code, and files are long
def _lambda_text(code: CodeType) -> str:
    """The source of the lambda with this code; `""` where it is not found."""
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or a cell with magics
        return ""
    positions = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    fitting = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and all(_inside(p, node.body) for p in positions)
        and _signature(compile(ast.unparse(node), "", "eval").co_consts[0]) == _signature(code)
    ]
    # The last is the innermost of nested lambdas.
    return ast.unparse(fitting[-1]) if positions and fitting else ""


def _inside(position: Any, node: ast.expr) -> bool:
    line, last, begin, end = position
    first = (node.lineno, node.col_offset)
    return first <= (line, begin) and (last, end) <= (
        node.end_lineno or 0,
        node.end_col_offset or 0,
    )


def _signature(code: Any) -> tuple[Any, ...]:
    """Names, arguments and constants of code: they differ where a file has changed."""
    # By repr, because 1, 1.0 and True are equal.
    values = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_names, code.co_varnames, code.co_argcount, values


def _placeholder(fn: Any) -> FunctionCode:
    """A function to be filled in, with a description of the program's own."""
    said = ascii(f"Put the program's own function here: {_described(fn)}.")
    source = f"def {NAMELESS}(*arguments):\n    raise NotImplementedError({said})\n"
    return FunctionCode(source, NAMELESS)


def _described(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"a functools.partial of {_described(fn.func)}"
    if inspect.ismethod(fn):
        return f"the method {fn.__name__} of a {type(fn.__self__).__name__}"
    if isinstance(fn, FunctionType):
        name = "a lambda" if fn.__name__ == "<lambda>" else fn.__name__
        return f"{name} from {_line(fn)}"
    return getattr(fn, "__name__", "") or f"a {type(fn).__name__}"


def _line(fn: Any) -> str:
    code = fn.__code__
    file = code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"line {code.co_firstlineno} of {file.splitlines()[0] if file else 'its file'}"


def names_read(fn: Any) -> frozenset[str]:
    """The global names that a function and the functions it calls read.

    New code in the same notebook must not give them another meaning.

    >>> "MOST_FUNCTIONS" in names_read(names_read)
    True
    """
    first = _plain(fn)
    if first is None:
        return frozenset()
    scope: Mapping[str, Any] = first.__globals__
    seen, waiting, names = {first}, [first], set()
    while waiting and len(seen) < MOST_FUNCTIONS:
        for name in _names_in(waiting.pop().__code__):
            if name in scope:
                names.add(name)
                called = _plain(scope[name])
                if called is not None and called.__globals__ is scope and called not in seen:
                    seen.add(called)
                    waiting.append(called)
    return frozenset(names)


def _names_in(code: CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return set(code.co_names).union(*(_names_in(c) for c in inner))


def _plain(thing: Any) -> FunctionType | None:
    """The Python function inside of partials, methods and wrappers such as `jax.jit`'s."""
    for _ in range(20):
        if isinstance(thing, FunctionType) and not hasattr(thing, "__wrapped__"):
            return thing
        inner = getattr(thing, "__wrapped__", None) or getattr(thing, "func", None)
        inner = inner or getattr(thing, "__func__", None)
        if inner is None:
            return thing if isinstance(thing, FunctionType) else None
        thing = inner
    return None


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
    imports = sorted(function.imports | arguments.imports | more)
    parts = [_HEAD + "".join(f"import {module}\n" for module in imports)]
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
        lost = session.missing_function
        said = f"# A saved state holds no functions: {lost!a} is not called here.\n" if lost else ""
        parts.append(said + _place_code(names))
    return "\n".join(filter(None, parts))


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
        source = known_source(session.entry)
        names = frozenset(_DEFINED.findall(source))
        return FunctionCode(source, session.program.fn.__name__, frozenset(), names)
    return function_code(session.program.fn)


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


def _place_code(names: Sequence[str]) -> str:
    shown = "array.sharding.spec, array.addressable_shards[0].index"
    return f"for array in ({', '.join(names)},):\n    print({shown})\n"
