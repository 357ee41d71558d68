"""The source of a user's own function, for the Explorer's code.

A function without a name becomes a placeholder to fill in. Nothing is executed here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import keyword
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from shardviz.widgets.jax_expression import Unwritable, written

NAMELESS = "function"  # the name of a function that has none
#: So many called functions are searched for the names that they read.
MOST_FUNCTIONS = 2000


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
    code = _named(fn) or _partial(fn) or _lambda(fn) or _placeholder(fn)
    taken = code.names | {code.call.split(".")[0]} | names_read(fn)
    return FunctionCode(code.source, code.call, code.imports, frozenset(taken))


def _named(fn: Any) -> FunctionCode | None:
    """By its name in a module or notebook, or by the name in its definition."""
    owner = getattr(fn, "__self__", None)
    if inspect.ismethod(fn) and owner is not None:
        code = None if isinstance(owner, type) else _named(owner)
        if code is None:
            return None
        return FunctionCode(code.source, f"{code.call}.{fn.__name__}")
    name, module = _import_path(fn)
    if not name:
        return None
    if module == "builtins":
        return FunctionCode("", name)
    if module in ("", "__main__"):
        return FunctionCode(f"# {name} is your own: define it above.", name)
    return FunctionCode(f"from {module} import {name}", name)


def _import_path(thing: Any) -> tuple[str, str]:
    """The name of a thing, and the module that has it under that name; `""` for
    neither.
    """
    name = getattr(thing, "__name__", "")
    usable = (
        isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    )
    # What a notebook has under a name is shorter than where it was defined.
    for module in ("__main__", getattr(thing, "__module__", None)):
        if module not in sys.modules:
            continue
        scope = vars(sys.modules[module])
        if usable and _is(scope.get(name), thing):
            return name, module
        for other, value in list(scope.items()):
            if _is(value, thing) and not other.startswith("_"):
                return other, module
    return (name, "") if usable else ("", "")


def _is(value: Any, thing: Any) -> bool:
    """Whether a value is the thing, or the thing under a decorator such as `jax.jit`."""
    if value is thing:
        return True
    return callable(value) and getattr(value, "__wrapped__", None) is thing


def _partial(fn: Any) -> FunctionCode | None:
    """A partial of a function with a name, where expressions make its values."""
    if type(fn) is not functools.partial:
        return None
    inner = _named(fn.func) or _partial(fn.func)
    if inner is None:
        return None
    try:
        values = [written(value) for value in fn.args]
        values += [f"{name}={written(value)}" for name, value in fn.keywords.items()]
    except Unwritable:
        return None
    call = f"functools.partial({', '.join([inner.call, *values])})"
    names = frozenset({inner.call.split(".")[0]})
    return FunctionCode(inner.source, call, inner.imports | {"functools"}, names)


# --- lambdas --------------------------------------------------------------------------


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
    except (OSError, TypeError, SyntaxError):
        # It was typed at a prompt, or its cell has magics.
        return ""
    positions = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    if not positions:
        return ""
    text = ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and _encloses(node.body, positions):
            again = ast.unparse(node)
            compiled = compile(again, "", "eval").co_consts[0]
            # The last is the innermost of nested lambdas.
            if _signature(compiled) == _signature(code):
                text = again
    return text


def _encloses(node: ast.expr, positions: list[Any]) -> bool:
    first = (node.lineno, node.col_offset)
    last = (node.end_lineno or 0, node.end_col_offset or 0)
    for line, end_line, begin, end in positions:
        if (line, begin) < first or (end_line, end) > last:
            return False
    return True


def _signature(code: Any) -> tuple[Any, ...]:
    """Names, arguments and constants of code: they differ where a file has changed."""
    # By repr, because 1, 1.0 and True are equal.
    values = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_names, code.co_varnames, code.co_argcount, values


# --- functions that cannot be written -------------------------------------------------


def _placeholder(fn: Any) -> FunctionCode:
    """A function to be filled in, with a description of the program's own."""
    message = ascii(f"Put the program's own function here: {_described(fn)}.")
    source = f"def {NAMELESS}(*arguments):\n    raise NotImplementedError({message})\n"
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
    names = code.co_filename.replace("\\", "/").rsplit("/", 1)[-1].splitlines()
    return f"line {code.co_firstlineno} of {names[0] if names else 'its file'}"


# --- names that a function reads ------------------------------------------------------


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
        for name in _names_in(waiting.pop().__code__) & scope.keys():
            names.add(name)
            called = _plain(scope[name])
            if called is None or called in seen or called.__globals__ is not scope:
                continue
            seen.add(called)
            waiting.append(called)
    return frozenset(names)


def _names_in(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _plain(thing: Any) -> FunctionType | None:
    """The Python function inside of partials, methods and wrappers such as `jax.jit`'s."""
    # Wrappers may wrap each other in a circle.
    for _ in range(20):
        inner = None
        for name in ("__wrapped__", "func", "__func__"):
            inner = inner or getattr(thing, name, None)
        if inner is None:
            return thing if isinstance(thing, FunctionType) else None
        thing = inner
    return None
