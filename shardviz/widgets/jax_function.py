"""The source of a user's own function, for the Explorer's code.

A function without a name becomes a placeholder to fill in. Nothing is executed here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import Any

from shardviz.widgets.jax_expression import Unwritable, written

NAMELESS = "function"  # the name of a function that has none


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
    names = code.names | {code.call.split(".")[0]} | names_read(fn)
    return replace(code, names=frozenset(names))


def _named(fn: Any) -> FunctionCode | None:
    """By its name in a module or notebook, or by the name in its definition."""
    owner = getattr(fn, "__self__", None)
    if inspect.ismethod(fn) and not isinstance(owner, type):
        code = _named(owner)
        return code and replace(code, call=f"{code.call}.{fn.__name__}")
    name, module = _import_path(fn)
    if not name.isidentifier():
        return None
    if module == "builtins":
        return FunctionCode("", name)
    if module in ("", "__main__"):
        return FunctionCode(f"# {name} is your own: define it above.", name)
    return FunctionCode(f"from {module} import {name}", name)


def _import_path(thing: Any) -> tuple[str, str]:
    """The name of a thing, and the module that has it under that name, or `""`."""
    own = getattr(thing, "__name__", "")
    # What a notebook has under a name is shorter than where it was defined.
    for module in ("__main__", getattr(thing, "__module__", None)):
        if module not in sys.modules:
            continue
        scope = dict(vars(sys.modules[module]))
        # Its own name first; then any that is not private.
        for name in (own, *(name for name in scope if not name.startswith("_"))):
            value = scope.get(name)
            # It may stand there under a decorator such as `jax.jit`.
            inner = getattr(value, "__wrapped__", None) if callable(value) else None
            if value is thing or inner is thing:
                return name, module
    return own, ""


def _partial(fn: Any) -> FunctionCode | None:
    """A partial of a function with a name, where expressions make its values."""
    if type(fn) is not functools.partial:
        return None
    inner = _named(fn.func)
    if inner is None:
        return None
    try:
        values = [written(value) for value in fn.args]
        values += [f"{name}={written(value)}" for name, value in fn.keywords.items()]
    except Unwritable:
        return None
    call = f"functools.partial({', '.join([inner.call, *values])})"
    names = frozenset({inner.call.split(".")[0]})
    return FunctionCode(inner.source, call, frozenset({"functools"}), names)


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


@functools.lru_cache(maxsize=64)  # every edit asks for the code, and files are long
def _lambda_text(code: CodeType) -> str:
    """The source of the lambda with this code; `""` where it is not found."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (OSError, TypeError, SyntaxError):
        # It was typed at a prompt, or its cell has magics.
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            text = ast.unparse(node)
            # Of several on one line, it is the one with the same code.
            again = compile(text, "", "eval").co_consts[0]
            if _signature(again) == _signature(code):
                return text
    return ""


def _signature(code: CodeType) -> tuple[Any, ...]:
    # Constants by repr, because 1, 1.0 and True are equal.
    return code.co_code, code.co_names, code.co_varnames, repr(code.co_consts)


def _placeholder(fn: Any) -> FunctionCode:
    """A function to be filled in, with a description of the program's own."""
    message = ascii(f"Put the program's own function here: {_described(fn)}.")
    source = f"def {NAMELESS}(*arguments):\n    raise NotImplementedError({message})\n"
    return FunctionCode(source, NAMELESS)


def _described(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"a functools.partial of {_described(fn.func)}"
    if isinstance(fn, FunctionType):
        name = fn.__name__
        if name == "<lambda>":
            name = "a lambda"
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
    """
    first = _plain(fn)
    names: set[str] = set()
    waiting = [] if first is None else [first]
    while waiting:
        function = waiting.pop()
        for name in (
            _names_in(function.__code__) & function.__globals__.keys()
        ) - names:
            names.add(name)
            called = _plain(function.__globals__[name])
            if called is not None and called.__module__ == function.__module__:
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
    for name in ("__wrapped__", "func", "__func__"):
        inner = getattr(thing, name, None)
        if inner is not None and inner is not thing:
            return _plain(inner)
    return thing if isinstance(thing, FunctionType) else None
