"""How is my array, my model, my program laid out over these devices, and why?

    import shardviz as sv
    sv.plot((512, 2048), "data, model", sv.mesh(data=4, model=2))   # where the shards are
    sv.plan(step, state, batch)       # how the compiler shards every value, and why
    sv.explore(step, state, batch)    # the same, interactive

Meshes and arrays    mesh, topology, array, layout, to_jax, mesh_context
Axis rules           rules, resolve, remedies, audit
Programs             program, plan, compile, run, stages, report, effects
Better shardings     changes, search
Tests and CI         expect, lock
Moving data          reshard, restore, process_rows, movement
Pictures and text    plot, text, explore, treescope_leaf
Running programs     watch, cache, compare_meshes, targets, hosts

The functions accept jax's meshes, specs, shardings, arrays and functions unchanged.
Exercises are in `shardviz.exercises`, examples in `shardviz.gallery`.

PYTEST_DONT_REWRITE: the package contains a pytest plugin, and pytest would otherwise
warn if shardviz is imported before the plugin.
"""

# The public names are listed in `__init__.pyi`. Importing shardviz imports nothing
# heavier than numpy: a name imports its module when it is first used (PEP 562).

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from shardviz.base.display import Displayed, Words

__version__ = "0.1.0"


def _modules_of_names() -> dict[str, str]:
    """Reads the module of each public name from `__init__.pyi`."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = re.findall(r"^from (\S+) import (\w+) as \w+$", stub, re.MULTILINE)
    return {name: module for module, name in imports}


_MODULE_OF = _modules_of_names()
_MODULES = ("exercises", "gallery", "legacy", "types")
# The name of a function -> words for its task that are unlike this name.
_OTHER_WORDS = {
    "audit": ("analyze", "summary"),
    "changes": ("constrain",),
    "compare_meshes": ("diff",),
    "compile": ("collectives", "memory"),
    "expect": ("check",),
    "explore": ("view",),
    "layout": ("shard", "sharding"),
    "plan": ("estimate", "lower", "trace", "why"),
    "plot": ("show", "visualize"),
    "run": ("profile", "simulate"),
    "search": ("optimize", "tune"),
    "text": ("explain", "inspect", "print"),
}
__all__ = sorted([*_MODULE_OF, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"shardviz.{name}")
    if name not in _MODULE_OF:
        _refuse(name)
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    # Later lookups find this global and don't call __getattr__.
    globals()[name] = value
    return value


def _refuse(name: str) -> NoReturn:
    """Raises an error that names the nearest public name."""
    # Python and IPython look up many special names.
    if name.startswith("_"):
        raise AttributeError(f"module 'shardviz' has no attribute {name!r}")
    from shardviz.base.format import nearest

    # The public name for each word in a name such as `make_mesh` or `DeviceMesh`.
    named = []
    for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name):
        word = word.lower()
        named += [function for function, words in _OTHER_WORDS.items() if word in words]
        named += [word] if word in _MODULE_OF else []
    public = next(iter(named), None) or nearest(name, __all__)
    if public is not None:
        raise AttributeError(f"There is no sv.{name}. Did you mean sv.{public}?")
    jax = sys.modules.get("jax")
    if callable(getattr(jax, name, None)):
        raise AttributeError(f"There is no sv.{name}. Use jax.{name}.")
    raise AttributeError(f"There is no sv.{name}; help(sv) lists what there is.")


def __dir__() -> list[str]:
    return __all__


def _mimebundle(value: Any) -> dict[str, Any]:
    from shardviz.draw.public.show import mimebundle

    return mimebundle(value)


def _sentence(fact: Any) -> str:
    from shardviz.wording import sentence

    return sentence(fact)


def _explanation(value: Any) -> str:
    from shardviz.wording import explanation

    return explanation(value)


Displayed.renderer = staticmethod(_mimebundle)
Words.sentence = staticmethod(_sentence)
Words.explanation = staticmethod(_explanation)
