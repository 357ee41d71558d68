"""The source of a user's function and of values, for the Explorer's code.

A comment replaces anything that has no source. Nothing is executed here.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import pprint
import sys
from dataclasses import dataclass
from types import CodeType

from shardviz.base.partition_spec import Spec, memory_of
from shardviz.base.typing import PyTree, UserFunction

LINE = 80  # characters; a longer expression is written on several lines
NAMELESS = "function"  # the name of a function that has none


# --- values ---------------------------------------------------------------------------


class Unwritable(Exception):
    """Raised if a value has no short expression. Its argument is the value's type."""


class Name:
    """A piece of source in an expression, such as a variable.

    >>> written({"w": Name("w_in"), "layers": [Name("a"), None]}, set())
    "{'w': w_in, 'layers': [a, None]}"
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def sharding_code(spec: Spec, memory_kind: str | None = None) -> str:
    """The expression of a sharding over the variable `mesh`.

    >>> sharding_code(Spec.parse("data, None"))
    "NamedSharding(mesh, P('data', None))"
    """
    if memory_kind is None:
        return f"NamedSharding(mesh, {spec})"
    return f"NamedSharding(mesh, {spec}, memory_kind={memory_kind!r})"


def written(value: PyTree, imports: set[str]) -> str:
    """The expression that creates a value, on several lines if it is long.

    Args:
        value: names, specs, plain values, and containers of them: dicts, lists, tuples,
            named tuples and dataclasses.
        imports: modules that the expression uses are added to it.

    Raises:
        Unwritable: for any other value.
    """
    return pprint.pformat(_written(value, imports), width=LINE, sort_dicts=False)


def _written(value: PyTree, imports: set[str]) -> PyTree:
    """The value, with a Name in place of everything whose repr is not its source."""
    kind = type(value)
    if isinstance(value, Spec):
        return Name(sharding_code(value, memory_of(value)))
    if kind in (Name, type(None), bool, int, str, bytes):
        return value
    if kind in (float, complex) and math.isfinite(abs(value)):
        return value
    if kind is dict:
        return {_written(k, imports): _written(v, imports) for k, v in value.items()}
    if kind in (list, tuple):
        return kind(_written(part, imports) for part in value)
    names = getattr(value, "_fields", None)
    if names is None and dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
    if names is None:
        raise Unwritable(kind)
    call = kind.__qualname__
    if kind.__module__ != "__main__":
        if getattr(sys.modules.get(kind.__module__), call, None) is not kind:
            raise Unwritable(kind)
        imports.add(kind.__module__)
        call = f"{kind.__module__}.{call}"
    fields = [f"{n}={_written(getattr(value, n), imports)!r}" for n in names]
    return Name(f"{call}({', '.join(fields)})")


# --- functions ------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionCode:
    """The source of a function, and the expression that calls it.

    Attributes:
        source: source code or a comment, without a line end.
        call: the expression of the function.
        names: names that nothing else in the code may use.
    """

    source: str
    call: str
    names: frozenset[str] = frozenset()


def function_code(fn: UserFunction) -> FunctionCode:
    """The code of a user's function: its name, its source, or a placeholder.

    >>> import math
    >>> function_code(math.sqrt).source
    'from math import sqrt'
    >>> print(function_code(functools.partial(math.pow, 2.0)).call)
    functools.partial(pow, 2.0)
    """
    source, call = _named(fn) or _partial(fn) or _lambda(fn) or _placeholder(fn)
    names = {call.split(".")[0].split("(")[0], *_names_read(fn)}
    return FunctionCode(source, call, frozenset(names))


def _named(fn: object) -> tuple[str, str] | None:
    """A function by its name in a module or notebook, or in its definition."""
    if inspect.ismethod(fn) and not isinstance(fn.__self__, type):
        named = _named(fn.__self__)
        return named and (named[0], f"{named[1]}.{fn.__name__}")
    name, module = _import_path(fn)
    if not name.isidentifier():
        return None
    if module == "builtins":
        return "", name
    if module in ("", "__main__"):
        return f"# {name} is your own: define it above.", name
    return f"from {module} import {name}", name


def _import_path(target: object) -> tuple[str, str]:
    """The name of an object, and the module that has it under that name, or `""`."""
    defined_name = getattr(target, "__name__", "")
    # A name in the notebook is shorter than one in the module that defines it.
    for module in ("__main__", getattr(target, "__module__", None)):
        if module not in sys.modules:
            continue
        scope = dict(vars(sys.modules[module]))
        public = [name for name in scope if not name.startswith("_")]
        for name in (defined_name, *public):
            value = scope.get(name)
            # The module may have it wrapped by a decorator such as `jax.jit`.
            inner = getattr(value, "__wrapped__", None) if callable(value) else None
            if value is target or inner is target:
                return name, module
    return defined_name, ""


def _partial(fn: UserFunction) -> tuple[str, str] | None:
    """A partial of a named function, if all its values have an expression."""
    named = _named(fn.func) if type(fn) is functools.partial else None
    if named is None:
        return None
    imports = {"functools"}
    try:
        values = [written(value, imports) for value in fn.args]
        for name, value in fn.keywords.items():
            values.append(f"{name}={written(value, imports)}")
    except Unwritable:
        return None
    head = "".join(f"import {module}\n" for module in sorted(imports))
    return head + named[0], f"functools.partial({', '.join([named[1], *values])})"


def _lambda(fn: UserFunction) -> tuple[str, str] | None:
    """A lambda by its source, if that can be read and the lambda is no closure."""
    code = getattr(fn, "__code__", None)
    if code is None or code.co_freevars or fn.__defaults__ or fn.__kwdefaults__:
        return None
    text = _lambda_text(code)
    return (f"{NAMELESS} = {text}", NAMELESS) if text else None


@functools.lru_cache(maxsize=64)  # every edit needs the code, and files are long
def _lambda_text(code: CodeType) -> str:
    """The source of the lambda with this code; `""` if it is not found."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (OSError, TypeError, SyntaxError):
        # It was typed at a prompt, or its cell has magics.
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            text = ast.unparse(node)
            # Several lambdas may be on the line: their compiled code is compared.
            again = compile(text, "", "eval").co_consts[0]
            if _signature(again) == _signature(code):
                return text
    return ""


def _signature(code: CodeType) -> tuple[object, ...]:
    # Constants by repr, because 1, 1.0 and True are equal.
    return code.co_code, code.co_names, code.co_varnames, repr(code.co_consts)


def _placeholder(fn: UserFunction) -> tuple[str, str]:
    """A function that the user must fill in, with the name or type of the original."""
    description = getattr(fn, "__qualname__", "") or f"a {type(fn).__name__}"
    message = ascii(f"Put the program's own function here: {description}.")
    source = f"def {NAMELESS}(*arguments):\n    raise NotImplementedError({message})\n"
    return source, NAMELESS


def _names_read(fn: UserFunction) -> set[str]:
    """The global names read by a function and by others with the same globals.

    New code in the same notebook must not redefine them.
    """
    for name in ("__wrapped__", "func", "__func__"):
        inner = getattr(fn, name, None)
        if inner is not None and inner is not fn:
            return _names_read(inner)
    scope = getattr(fn, "__globals__", {})
    codes = [getattr(fn, "__code__", None)]
    for value in list(scope.values()):
        value = getattr(value, "__wrapped__", value)
        if getattr(value, "__globals__", None) is scope:
            codes.append(getattr(value, "__code__", None))
    names: set[str] = set()
    while codes:
        code = codes.pop()
        if isinstance(code, CodeType):
            names.update(code.co_names)
            codes.extend(code.co_consts)
    return names & scope.keys()
