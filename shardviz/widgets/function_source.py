"""The source code of a function and of values in pasted code: source, an import, or a name.

Nothing is executed here. A function without a name becomes a placeholder to fill in.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import keyword
import math
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from shardviz.core.layout.partition_spec import Spec

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
        return sharding_code(value)
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) in (float, complex):
        if not math.isfinite(abs(value)):
            raise Unwritable(float)
        return repr(value)
    inner = indent + 4
    if type(value) is dict:
        return _joined("{", _pairs(value, inner, imports), "}", indent)
    if type(value) is OrderedDict:
        imports.add("collections")
        return f"collections.OrderedDict({written(dict(value), indent, imports)})"
    if type(value) in (list, tuple):
        ends = "[]" if type(value) is list else "()"
        items = [written(v, inner, imports) for v in value]
        only = type(value) is tuple and len(items) == 1
        return _joined(ends[0], items, ends[1], indent, "," if only else "")
    return _joined(f"{_class(value, imports)}(", _fields(value, inner, imports), ")", indent)


def _pairs(value: dict[Any, Any], indent: int, imports: set[str]) -> list[str]:
    return [
        f"{written(key, indent, imports)}: {written(v, indent, imports)}"
        for key, v in value.items()
    ]


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
