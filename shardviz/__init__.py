"""shardviz: how is my array, my model, my program laid out over these devices, and why?

The public names, and nothing else. Importing this imports numpy and nothing heavier: each name
imports its room when it is first used (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shardviz._version import __version__
from shardviz.core.display import Displayed

if TYPE_CHECKING:
    from shardviz.api.calls import cached
    from shardviz.api.contexts import compare_meshes, mesh_context
    from shardviz.api.dialects import sharded_jit, with_sharding_constraint
    from shardviz.api.effects import effects, observed_order
    from shardviz.api.hardware import targets, topology
    from shardviz.api.layouts import array, audit, layout, mesh, resolve, rules, to_jax
    from shardviz.api.pictures import explore, plot, text
    from shardviz.api.programs import cache, compile, plan, program, run, rungs
    from shardviz.core.errors import ShardvizError
    from shardviz.core.layout.array import ArraySpec
    from shardviz.core.layout.mesh import MeshSpec
    from shardviz.core.layout.parts import Parts
    from shardviz.core.layout.resolution import Resolution
    from shardviz.core.layout.rules import Dialect, Rules
    from shardviz.core.layout.sharding_parts import (
        Chunked,
        NoSharding,
        Replicated,
        ShardedAxis,
        Unstacked,
    )
    from shardviz.core.layout.sharding_spec import ShardingSpec
    from shardviz.core.layout.shards import Layout
    from shardviz.core.layout.spec import Spec

_ROOMS = {
    "shardviz.api.calls": ("cached",),
    "shardviz.api.contexts": ("compare_meshes", "mesh_context"),
    "shardviz.api.dialects": ("sharded_jit", "with_sharding_constraint"),
    "shardviz.api.effects": ("effects", "observed_order"),
    "shardviz.api.hardware": ("targets", "topology"),
    "shardviz.api.layouts": ("array", "audit", "layout", "mesh", "resolve", "rules", "to_jax"),
    "shardviz.api.pictures": ("explore", "plot", "text"),
    "shardviz.api.programs": ("cache", "compile", "plan", "program", "run", "rungs"),
    "shardviz.core.errors": ("ShardvizError",),
    "shardviz.core.layout.array": ("ArraySpec",),
    "shardviz.core.layout.mesh": ("MeshSpec",),
    "shardviz.core.layout.parts": ("Parts",),
    "shardviz.core.layout.resolution": ("Resolution",),
    "shardviz.core.layout.rules": ("Dialect", "Rules"),
    "shardviz.core.layout.sharding_parts": (
        "Chunked",
        "NoSharding",
        "Replicated",
        "ShardedAxis",
        "Unstacked",
    ),
    "shardviz.core.layout.sharding_spec": ("ShardingSpec",),
    "shardviz.core.layout.shards": ("Layout",),
    "shardviz.core.layout.spec": ("Spec",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "ArraySpec",
    "Chunked",
    "Dialect",
    "Layout",
    "MeshSpec",
    "NoSharding",
    "Parts",
    "Replicated",
    "Resolution",
    "Rules",
    "ShardedAxis",
    "ShardingSpec",
    "ShardvizError",
    "Spec",
    "Unstacked",
    "__version__",
    "array",
    "audit",
    "cache",
    "cached",
    "compare_meshes",
    "compile",
    "effects",
    "explore",
    "layout",
    "mesh",
    "mesh_context",
    "observed_order",
    "plan",
    "plot",
    "program",
    "resolve",
    "rules",
    "run",
    "rungs",
    "sharded_jit",
    "targets",
    "text",
    "to_jax",
    "topology",
    "with_sharding_constraint",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'shardviz' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _mimebundle(value: Any) -> dict[str, Any]:
    from shardviz.api.showing import mimebundle

    return mimebundle(value)


Displayed.renderer = staticmethod(_mimebundle)
