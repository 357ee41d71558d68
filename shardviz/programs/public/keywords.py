"""Divides keyword arguments between a public function and the user's function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from shardviz.base.errors import ProgramError
from shardviz.base.format import joined, plural, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.programs.notes import KeywordForFunction
from shardviz.programs.program import function_name

#: Keyword arguments of other public functions -> a function that has them.
_ELSEWHERE = {"target": "compile", "options": "compile", "goal": "changes"}
_ELSEWHERE |= {"over": "search", "under": "search", "measure": "run", "repeat": "run"}
P = ParamSpec("P")
T = TypeVar("T")


class FunctionWithKeywords(NamedTuple):
    """The user's function, with the keyword arguments that belong to it."""

    fn: Any
    keywords: dict[str, Any]
    notes: tuple[str, ...] = ()


def shares_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that also accepts the user's function's keywords.

    A keyword that names a parameter of the user's function is passed to that function.
    Otherwise it is passed to the public function if that has such a parameter, or to
    the user's function if it accepts `**keywords`. Any other keyword raises an error
    that lists the valid ones. If the call has `args=` or `kwargs=`, these hold the
    arguments of the user's function, and all other keywords are for the public
    function.
    """
    public_keywords, public = list(_named_parameters(function)), function.__name__

    @functools.wraps(function)
    def sharing(*args: P.args, **keywords: P.kwargs) -> T:
        first = args[0] if args else keywords.pop(public_keywords[0], None)
        arrays = args[1:]
        step_function = getattr(first, "fn", first)
        # The keywords of a Program are those of its function.
        named = _named_parameters(step_function)
        kinds = [parameter.kind for parameter in _parameters(step_function)]
        any_other = inspect.Parameter.VAR_KEYWORD in kinds
        is_mesh = bool(arrays) and hasattr(arrays[-1], "axis_names")
        any_count = inspect.Parameter.VAR_POSITIONAL in kinds
        if is_mesh and not any_count and 0 < len(kinds) < len(arrays):
            raise ProgramError(
                f"{function_name(first)} has {plural(len(kinds), 'parameter')}; got"
                f" {len(arrays)} arguments, the last of them a mesh. Give it as mesh=."
            )
        notes: list[str] = []
        user_keywords: dict[str, Any] = {}
        if any(name in keywords and name not in named for name in ("args", "kwargs")):
            arrays, user_keywords = _spelled_out(public, arrays, keywords)
            named, any_other = {}, False
        # Iterates over a copy, because the loop removes the user function's keywords.
        for name, value in list(keywords.items()):
            # jax functions cannot use a mesh given as text or as a MeshSpec.
            is_program_mesh = name == "mesh" and isinstance(value, (str, MeshSpec))
            if is_program_mesh and name in named:
                _check_mesh_parameter(first, named[name], len(arrays))
            elif name in named or (name not in public_keywords and any_other):
                user_keywords[name] = keywords.pop(name)
                if name in public_keywords and name != "mesh":
                    note = KeywordForFunction(function_name(first), name, public)
                    notes.append(str(note))
            elif name not in public_keywords:
                hint = suggestion(name, [*public_keywords, *named])
                if name in _ELSEWHERE:
                    hint = f" sv.{_ELSEWHERE[name]} takes {name}=."
                raise ProgramError(
                    f"sv.{public} takes no {name}=, and neither does the function."
                    f"{hint} sv.{public} takes"
                    f" {joined(public_keywords)}; the function takes"
                    f" {joined(named) or 'no keywords'}."
                )
        step: Any = FunctionWithKeywords(first, user_keywords, tuple(notes))
        return function(step, *arrays, **keywords)  # type: ignore[call-arg]

    return sharing


def _parameters(fn: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # not a function, or a builtin without a signature
        return []


def _named_parameters(fn: Any) -> dict[str, tuple[int, bool]]:
    """Maps parameters that can be passed by name to (position, required)."""
    named = {}
    for position, parameter in enumerate(_parameters(fn)):
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            required = parameter.default is parameter.empty
            named[parameter.name] = (position, required)
    return named


def required_parameters(fn: Any) -> list[str]:
    """Returns the names of the parameters that every call passes.

    >>> required_parameters(lambda x, scale=2: x)
    ['x']
    """
    named = _named_parameters(fn)
    return [name for name, (_, required) in named.items() if required]


def takes_by_name(fn: Any, name: str, positional: int) -> bool:
    """True if a call with this many positional arguments can pass `name` as a keyword.

    >>> takes_by_name(lambda x, target: x, "target", 1)
    True
    >>> takes_by_name(lambda x, target: x, "target", 2)
    False
    """
    parameter = _named_parameters(fn).get(name)
    return parameter is not None and parameter[0] >= positional


def _spelled_out(
    public: str, arrays: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Removes `args=` and `kwargs=` from `keywords` and returns their values."""
    args, kwargs = keywords.pop("args", None), keywords.pop("kwargs", None)
    # Positional arguments would conflict with args=.
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


def _check_mesh_parameter(
    fn: Any, parameter: tuple[int, bool], positional: int
) -> None:
    """Raises if the function needs a jax mesh argument that the call doesn't pass."""
    position, required = parameter
    if required and position >= positional:
        raise ProgramError(
            f"{function_name(fn)} has its own parameter mesh, which needs a jax mesh."
            " Give it one with mesh=jax.make_mesh(...), which is then the program's"
            " mesh too, or tell the two apart: sv.program(fn, args=(...),"
            " kwargs={'mesh': ...}, mesh=...)."
        )
