"""shardviz: how is my array, my model, my program laid out over these devices, and why?

The public names, and nothing else. Importing this imports numpy and nothing heavier: each name
imports the module that defines it when it is first used (PEP 562). PYTEST_DONT_REWRITE: the package
brings a plugin of pytest, which else warns where shardviz was imported before it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shardviz.core.display import Displayed

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardviz.api.layouts import (
        array,
        audit,
        compare_meshes,
        layout,
        mesh,
        mesh_context,
        process_rows,
        remedies,
        reshard,
        resolve,
        restore,
        rules,
        to_jax,
    )
    from shardviz.api.programs import (
        cached,
        compile,
        effects,
        expect,
        hosts,
        lock,
        movement,
        observed_order,
        plan,
        program,
        run,
        stages,
        targets,
        topology,
    )
    from shardviz.api.values import explore, plot, text
    from shardviz.core.errors import ContractError, ShardvizError
    from shardviz.core.hardware.topology import Topology
    from shardviz.core.layout.array_spec import ArraySpec
    from shardviz.core.layout.audit import Audit
    from shardviz.core.layout.checkpoint import Restore
    from shardviz.core.layout.layout import Layout
    from shardviz.core.layout.mesh import MeshSpec
    from shardviz.core.layout.mesh_context import MeshContext
    from shardviz.core.layout.partition_spec import Spec
    from shardviz.core.layout.path_rules import PathResolution
    from shardviz.core.layout.process_rows import ProcessRows
    from shardviz.core.layout.remedies import Remedies, Remedy
    from shardviz.core.layout.reshard import Reshard
    from shardviz.core.layout.resolution import Decision, Resolution
    from shardviz.core.layout.rule_uses import AuditDiff
    from shardviz.core.layout.rules import Dialect, PathRules, Rules
    from shardviz.core.layout.verdicts import Verdict
    from shardviz.core.program.cache import cache
    from shardviz.core.program.constraints import Constraint
    from shardviz.core.program.contracts import Expectation
    from shardviz.core.program.effects import Effects
    from shardviz.core.program.explanation import Explanation
    from shardviz.core.program.lock import Lock
    from shardviz.core.program.movement import Movement
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.program import Program, Target
    from shardviz.core.program.report import Collective, Report
    from shardviz.core.program.roofline import Roofline
    from shardviz.core.program.stages import Stages
    from shardviz.picture.picture import Picture

_NAMES = {
    "shardviz.api.layouts": (
        "array",
        "audit",
        "compare_meshes",
        "layout",
        "mesh",
        "mesh_context",
        "process_rows",
        "remedies",
        "reshard",
        "resolve",
        "restore",
        "rules",
        "to_jax",
    ),
    "shardviz.api.programs": (
        "cached",
        "compile",
        "effects",
        "expect",
        "hosts",
        "lock",
        "movement",
        "observed_order",
        "plan",
        "program",
        "run",
        "stages",
        "targets",
        "topology",
    ),
    "shardviz.api.values": (
        "explore",
        "plot",
        "text",
    ),
    "shardviz.core.errors": (
        "ContractError",
        "ShardvizError",
    ),
    "shardviz.core.hardware.topology": ("Topology",),
    "shardviz.core.layout.array_spec": ("ArraySpec",),
    "shardviz.core.layout.audit": ("Audit",),
    "shardviz.core.layout.checkpoint": ("Restore",),
    "shardviz.core.layout.layout": ("Layout",),
    "shardviz.core.layout.mesh": ("MeshSpec",),
    "shardviz.core.layout.mesh_context": ("MeshContext",),
    "shardviz.core.layout.partition_spec": ("Spec",),
    "shardviz.core.layout.process_rows": ("ProcessRows",),
    "shardviz.core.layout.remedies": (
        "Remedies",
        "Remedy",
    ),
    "shardviz.core.layout.path_rules": ("PathResolution",),
    "shardviz.core.layout.reshard": ("Reshard",),
    "shardviz.core.layout.resolution": (
        "Decision",
        "Resolution",
    ),
    "shardviz.core.layout.rule_uses": ("AuditDiff",),
    "shardviz.core.layout.rules": (
        "Dialect",
        "PathRules",
        "Rules",
    ),
    "shardviz.core.layout.verdicts": ("Verdict",),
    "shardviz.core.program.cache": ("cache",),
    "shardviz.core.program.constraints": ("Constraint",),
    "shardviz.core.program.contracts": ("Expectation",),
    "shardviz.core.program.effects": ("Effects",),
    "shardviz.core.program.explanation": ("Explanation",),
    "shardviz.core.program.lock": ("Lock",),
    "shardviz.core.program.movement": ("Movement",),
    "shardviz.core.program.plan": ("Plan",),
    "shardviz.core.program.program": (
        "Program",
        "Target",
    ),
    "shardviz.core.program.report": (
        "Collective",
        "Report",
    ),
    "shardviz.core.program.roofline": ("Roofline",),
    "shardviz.core.program.stages": ("Stages",),
    "shardviz.picture.picture": ("Picture",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ArraySpec",
    "Audit",
    "AuditDiff",
    "Collective",
    "Constraint",
    "ContractError",
    "Decision",
    "Dialect",
    "Effects",
    "Expectation",
    "Explanation",
    "Layout",
    "Lock",
    "MeshContext",
    "MeshSpec",
    "Movement",
    "PathResolution",
    "PathRules",
    "Picture",
    "Plan",
    "ProcessRows",
    "Program",
    "Remedies",
    "Remedy",
    "Report",
    "Reshard",
    "Resolution",
    "Restore",
    "Roofline",
    "Rules",
    "ShardvizError",
    "Spec",
    "Stages",
    "Target",
    "Topology",
    "Verdict",
    "__version__",
    "array",
    "audit",
    "cache",
    "cached",
    "compare_meshes",
    "compile",
    "effects",
    "expect",
    "explore",
    "hosts",
    "layout",
    "lock",
    "mesh",
    "mesh_context",
    "movement",
    "observed_order",
    "plan",
    "plot",
    "process_rows",
    "program",
    "remedies",
    "reshard",
    "resolve",
    "restore",
    "rules",
    "run",
    "stages",
    "targets",
    "text",
    "to_jax",
    "topology",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'shardviz' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _mimebundle(value: Any) -> dict[str, Any]:
    from shardviz.api.values import mimebundle

    return mimebundle(value)


Displayed.renderer = staticmethod(_mimebundle)
