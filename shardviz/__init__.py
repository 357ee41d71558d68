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
    from shardviz.api import (
        array,
        audit,
        cache,
        compile,
        explore,
        layout,
        mesh,
        plot,
        program,
        resolve,
        rules,
        run,
        targets,
        text,
        to_jax,
    )
    from shardviz.api_calls import cached
    from shardviz.api_dialects import sharded_jit, with_sharding_constraint
    from shardviz.api_effects import effects, observed_order
    from shardviz.api_hardware import topology
    from shardviz.api_mesh import compare_meshes, mesh_context
    from shardviz.api_plans import plan, rungs
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
    "cached": "shardviz.api_calls",
    "sharded_jit": "shardviz.api_dialects",
    "with_sharding_constraint": "shardviz.api_dialects",
    "ShardvizError": "shardviz.core.errors",
    "ArraySpec": "shardviz.core.layout.array",
    "MeshSpec": "shardviz.core.layout.mesh",
    "Resolution": "shardviz.core.layout.resolution",
    "Dialect": "shardviz.core.layout.rules",
    "Rules": "shardviz.core.layout.rules",
    "Layout": "shardviz.core.layout.shards",
    "Spec": "shardviz.core.layout.spec",
    "Parts": "shardviz.core.layout.parts",
    "ShardingSpec": "shardviz.core.layout.sharding_spec",
    **dict.fromkeys(
        ("Chunked", "NoSharding", "Replicated", "ShardedAxis", "Unstacked"),
        "shardviz.core.layout.sharding_parts",
    ),
    "compare_meshes": "shardviz.api_mesh",
    "mesh_context": "shardviz.api_mesh",
    "topology": "shardviz.api_hardware",
    "plan": "shardviz.api_plans",
    "rungs": "shardviz.api_plans",
    "effects": "shardviz.api_effects",
    "observed_order": "shardviz.api_effects",
}

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
    if name not in __all__:
        raise AttributeError(f"module 'shardviz' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOMS.get(name, "shardviz.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _mimebundle(value: Any) -> dict[str, Any]:
    from shardviz.showing import mimebundle

    return mimebundle(value)


Displayed.renderer = staticmethod(_mimebundle)
