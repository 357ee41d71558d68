"""Public functions that show any value: `sv.plot` and `sv.text`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from shardviz.axis_rules.libraries import library_of, without_metadata
from shardviz.base.errors import MissingPackage, needed_by
from shardviz.base.public.adopt import (
    adopt,
    bridge,
    children_of,
    is_compiled,
    is_jax,
    is_jax_function,
    is_lowered,
)
from shardviz.base.public.layouts import layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Arguments of `sv.plan`, `sv.layout` and `sv.audit` that no picture or text has.
_ARGUMENTS = (
    "mesh",
    "rules",
    "spec",
    "dtype",
    "dialect",
    "in_specs",
    "out_specs",
    "in_shardings",
    "out_shardings",
)


def plot(thing: object, /, *arguments: Any, **options: Any) -> Figure:
    """Draws a value as a matplotlib Figure.

    Args:
        thing: any value that shardviz returns; a JAX mesh, spec, sharding or array; a
            tree of arrays or a model, drawn as its audit; or a function or a shape,
            followed by its arguments.
        *arguments: after a function, its arguments (the function is drawn as its plan);
            after a shape or an array, the arguments of `sv.layout`; after a tree, rules
            and a mesh, or only a mesh.
        **options: `theme="dark"`; options for the kind of value, such as `dims=(0, 2)`
            for a layout; and arguments of `sv.plan`, `sv.layout` or `sv.audit`, such as
            `mesh=`.

    Raises:
        ShardvizError: if the value has no picture or matplotlib is not installed.

    >>> import shardviz as sv
    >>> type(sv.plot(sv.mesh(data=4, model=2))).__name__
    'Figure'
    """
    with needed_by("sv.plot"):
        from shardviz import figures
    value = _value_of(thing, arguments, _arguments_among(options))
    return figures.figure(value, **options)


def text(thing: object, /, *arguments: Any, width: int = 80, **options: Any) -> str:
    """Draws a value as text, for terminals and screen readers.

    Args:
        thing: as in `sv.plot`.
        *arguments: as in `sv.plot`.
        width: the maximum number of characters per line.
        **options: `full=True` lists every row of a large plan, report or explanation;
            by default, only the largest rows are shown. Arguments such as `mesh=` are
            passed as in `sv.plot`.

    Raises:
        ShardvizError: if the value has no text.

    >>> import shardviz as sv
    >>> "model" in sv.text(sv.mesh(data=4, model=2))
    True
    """
    from shardviz.pictures import to_text

    # A number after a value is the width; after a function, it is an argument.
    if len(arguments) == 1 and isinstance(arguments[0], int) and not callable(thing):
        (width,), arguments = arguments, ()
    value = _value_of(thing, arguments, _arguments_among(options))
    return to_text(value, width, **options)


def _arguments_among(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the arguments of `sv.plan`, `sv.layout` and `sv.audit` out of the options."""
    return {name: options.pop(name) for name in list(options) if name in _ARGUMENTS}


def _value_of(thing: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Returns the value of shardviz that shows what a user holds.

    A function with arguments becomes its plan, a shape with a spec or an array in a
    parameter box its layout, a program that jax lowered or compiled its report, and a
    tree of arrays or a model its audit.
    """
    # Values of shardviz can be pytrees, too. They need none of the imports below.
    is_ours = type(thing).__module__.partition(".")[0] == "shardviz"
    if is_ours and not arguments and not keywords:
        # A watched function changes with each call; its table is a value.
        return thing.table() if type(thing).__name__ == "Watch" else thing
    from shardviz.axis_rules.public import audit
    from shardviz.compiled.public import report
    from shardviz.plans.public import plan
    from shardviz.programs.public.keywords import required_parameters

    has_arguments = bool(arguments or keywords)
    # A model that can be called needs an input; without one, it is a tree of arrays.
    model_alone = not arguments and children_of(thing) and required_parameters(thing)
    if keywords and model_alone:
        return audit(thing, **keywords)
    if has_arguments and callable(thing):
        return plan(thing, *arguments, **keywords)
    if has_arguments and (_is_shape(thing) or children_of(thing) is None):
        return layout(thing, *arguments, **keywords)
    if has_arguments:
        # A mesh may follow a tree without rules.
        rules = [()] if arguments and hasattr(arguments[0], "axis_names") else []
        return audit(thing, *rules, *arguments, **keywords)
    while (box := without_metadata(thing)) is not None:
        thing = box.value
    if is_compiled(thing) or is_lowered(thing):
        return report(thing)
    if isinstance(thing, np.ndarray):
        return bridge().adopt_array("array", thing)
    if is_jax(thing) and not is_jax_function(thing):
        return adopt(thing)
    if children_of(thing) is not None or library_of(type(thing)):
        return audit(thing)
    return thing


def _is_shape(thing: object) -> bool:
    sizes = (int, np.integer)
    return isinstance(thing, (tuple, list)) and all(isinstance(n, sizes) for n in thing)


def mimebundle(value: object) -> dict[str, str | bytes]:
    """Returns what a notebook displays: text, and HTML or a PNG.

    There is no PNG if matplotlib is not installed.
    """
    from shardviz.draw.terminal import styled
    from shardviz.pictures import to_html, to_text

    # IPython in a terminal prints the text; in a notebook, stdout is no terminal.
    text = styled(to_text(value), sys.stdout)
    bundle: dict[str, str | bytes] = {"text/plain": text}
    if (html := to_html(value)) is not None:
        return {**bundle, "text/html": html}
    with contextlib.suppress(MissingPackage):
        with needed_by("a picture"):
            from shardviz import figures
        bundle["image/png"] = figures.png(value)
    return bundle
