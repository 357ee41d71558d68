"""Source code of a user's function and of argument values, for the generated code.

A function whose source is unknown becomes a placeholder. No user code is executed.
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

# Expressions longer than this, in characters, are wrapped.
LINE = 80
# The name given to functions that have none.
NAMELESS = "function"


# --- values ---------------------------------------------------------------------------


class Unwritable(Exception):
    """Raised for a value that no short expression creates; `args[0]` is its type."""


class Name:
    """Source code inside an expression, such as a variable; its repr is the code.

    >>> written({"w": Name("w_in"), "layers": [Name("a"), None]}, set())
    "{'w': w_in, 'layers': [a, None]}"
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def sharding_code(spec: Spec, memory_kind: str | None = None) -> str:
    """Returns the expression of a NamedSharding on the variable `mesh`.

    >>> sharding_code(Spec.parse("data, None"))
    "NamedSharding(mesh, P('data', None))"
    """
    if memory_kind is None:
        return f"NamedSharding(mesh, {spec})"
    return f"NamedSharding(mesh, {spec}, memory_kind={memory_kind!r})"


def written(value: PyTree, imports: set[str]) -> str:
    """Returns an expression that creates a value, wrapped if it is long.

    Args:
        value: names, specs, plain values, and containers of them: dicts, lists, tuples,
            named tuples and dataclasses.
        imports: this set receives the modules that the expression uses.

    Raises:
        Unwritable: for any other value.
    """
    return pprint.pformat(_written(value, imports), width=LINE, sort_dicts=False)


def _written(value: PyTree, imports: set[str]) -> PyTree:
    """Copies a value, with a Name for each element whose repr is not valid code."""
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
        return kind(_written(item, imports) for item in value)
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
    """The source of a function, and an expression that refers to it.

    Attributes:
        source: the import or definition of the function, or a comment; can be empty.
        call: the expression that refers to the function.
        names: names that the rest of the code must not define.
    """

    source: str
    call: str
    names: frozenset[str] = frozenset()


def function_code(fn: UserFunction) -> FunctionCode:
    """Returns code for a user's function: an import, its source, or a placeholder.

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
    """Refers to a function by its name; None if its name is not an identifier."""
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
    """Returns an object's name, and the module in which to find it (or `""`)."""
    defined_name = getattr(target, "__name__", "")
    # Prefer a name in the notebook, which needs no import.
    for module in ("__main__", getattr(target, "__module__", None)):
        if module not in sys.modules:
            continue
        scope = dict(vars(sys.modules[module]))
        public = [name for name in scope if not name.startswith("_")]
        for name in (defined_name, *public):
            value = scope.get(name)
            # The name may refer to a decorated function, such as one under `jax.jit`.
            inner = getattr(value, "__wrapped__", None) if callable(value) else None
            if value is target or inner is target:
                return name, module
    return defined_name, ""


def _partial(fn: UserFunction) -> tuple[str, str] | None:
    """Returns code for a partial of a named function; None if a value is unwritable."""
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
    """Returns the source of a lambda; None for closures and unknown source."""
    code = getattr(fn, "__code__", None)
    if code is None or code.co_freevars or fn.__defaults__ or fn.__kwdefaults__:
        return None
    text = _lambda_text(code)
    return (f"{NAMELESS} = {text}", NAMELESS) if text else None


@functools.lru_cache(maxsize=64)  # called on every edit; parsing a file is slow
def _lambda_text(code: CodeType) -> str:
    """Returns the source of the lambda with this code; `""` if it is not found."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (OSError, TypeError, SyntaxError):
        # The lambda was typed at a prompt, or its cell has IPython magics.
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            text = ast.unparse(node)
            # A line may have several lambdas, so compare their compiled code.
            again = compile(text, "", "eval").co_consts[0]
            if _signature(again) == _signature(code):
                return text
    return ""


def _signature(code: CodeType) -> tuple[object, ...]:
    # Constants are compared by repr, because 1, 1.0 and True are equal.
    return code.co_code, code.co_names, code.co_varnames, repr(code.co_consts)


def _placeholder(fn: UserFunction) -> tuple[str, str]:
    """Returns a function to fill in, whose error names the user's function."""
    description = getattr(fn, "__qualname__", "") or f"a {type(fn).__name__}"
    message = ascii(f"Put the program's own function here: {description}.")
    source = f"def {NAMELESS}(*arguments):\n    raise NotImplementedError({message})\n"
    return source, NAMELESS


def _names_read(fn: UserFunction) -> set[str]:
    """Returns all globals read by a function or by other functions of its module.

    The generated code must not redefine them.
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
