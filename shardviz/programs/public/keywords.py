"""Which keywords of a call are the public function's, and which the user's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from shardviz.base.errors import ProgramError
from shardviz.base.format import joined, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.programs.notes import Note
from shardviz.programs.program import function_name

P = ParamSpec("P")
T = TypeVar("T")


class FunctionWithKeywords(NamedTuple):
    """A function with those keywords of a call that are its own."""

    fn: Any
    keywords: dict[str, Any]
    notes: tuple[str, ...] = ()


def shares_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """The public function, with the user's function's own keywords kept for that.

    A keyword that the user's function names is its own. Of the others, those of the
    public function are its own, and the rest belong to a user's function with
    `**keywords`; without that they are refused with a sentence that lists the known
    ones. With `args=` or `kwargs=` the call of the user's function is spelled out, and
    every other keyword is the public function's.
    """
    known, public = list(_named_parameters(function)), function.__name__

    @functools.wraps(function)
    def sharing(*args: P.args, **keywords: P.kwargs) -> T:
        first = args[0] if args else keywords.pop(known[0], None)
        arrays = args[1:]
        step_function = getattr(first, "fn", first)
        # Of a program, its function's parameters count.
        named = _named_parameters(step_function)
        kinds = [parameter.kind for parameter in _parameters(step_function)]
        any_other = inspect.Parameter.VAR_KEYWORD in kinds
        notes: list[str] = []
        theirs: dict[str, Any] = {}
        if any(name in keywords and name not in named for name in ("args", "kwargs")):
            arrays, theirs = _spelled_out(public, arrays, keywords)
            named, any_other = {}, False
        # A copy, since what is the function's own is taken out on the way.
        for name, value in list(keywords.items()):
            # No function can use the text or the MeshSpec of a program's mesh.
            ours = name == "mesh" and isinstance(value, (str, MeshSpec))
            if ours and name in named:
                _check_mesh_parameter(first, named[name], len(arrays))
            elif name in named or (name not in known and any_other):
                theirs[name] = keywords.pop(name)
                if name in known and name != "mesh":
                    about = (function_name(first), name, public)
                    notes.append(str(Note("keyword", about)))
            elif name not in known:
                raise ProgramError(
                    f"sv.{public} takes no {name}=, and neither does the function."
                    f"{suggestion(name, [*known, *named])} sv.{public} takes"
                    f" {joined(known)}; the function takes"
                    f" {joined(named) or 'no keywords'}."
                )
        step: Any = FunctionWithKeywords(first, theirs, tuple(notes))
        return function(step, *arrays, **keywords)  # type: ignore[call-arg]

    return sharing


def _parameters(fn: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # no function, or a builtin without a signature
        return []


def _named_parameters(fn: Any) -> dict[str, tuple[int, bool]]:
    """The parameters that a call may give by name: position, and whether it must."""
    named = {}
    for position, parameter in enumerate(_parameters(fn)):
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            required = parameter.default is parameter.empty
            named[parameter.name] = (position, required)
    return named


def takes_by_name(fn: Any, name: str, given: int) -> bool:
    """Whether a call with so many positional arguments may give this one by name.

    >>> takes_by_name(lambda x, target: x, "target", 1)
    True
    >>> takes_by_name(lambda x, target: x, "target", 2)
    False
    """
    parameter = _named_parameters(fn).get(name)
    return parameter is not None and parameter[0] >= given


def _spelled_out(
    public: str, arrays: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that `args=` and `kwargs=` spell out, taken from the keywords."""
    args, kwargs = keywords.pop("args", None), keywords.pop("kwargs", None)
    # Both would be two calls of one function.
    if args is not None and arrays:
        raise ProgramError(
            f"sv.{public} got arguments both one by one and as args=. Give all of them"
            " as args=."
        )
    if not isinstance(args, (tuple, list, type(None))):
        raise ProgramError(
            f"args= is a tuple of the function's arguments; got {shown(args)}."
        )
    if not isinstance(kwargs, (dict, type(None))):
        raise ProgramError(
            f"kwargs= is a dict of the function's arguments; got {shown(kwargs)}."
        )
    return arrays if args is None else tuple(args), dict(kwargs or {})


def _check_mesh_parameter(fn: Any, parameter: tuple[int, bool], given: int) -> None:
    """Refuses a function that needs a mesh of its own, which the call does not give."""
    position, required = parameter
    if required and position >= given:
        raise ProgramError(
            f"{function_name(fn)} has a parameter mesh of its own, which needs a mesh"
            " of jax. Give it one, mesh=jax.make_mesh(...): it is the program's mesh as"
            " well. Or tell the two apart:"
            " sv.program(fn, args=(...), kwargs={'mesh': ...}, mesh=...)."
        )
