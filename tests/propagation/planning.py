"""Programs for the tests of plans: a function and `shape, spec` for each argument."""

from __future__ import annotations

from typing import Any

from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program

MESH = make_mesh(data=4, model=2)
X = ((64, 32), "data, None")
W = ((32, 128), "None, model")
V = ((128, 32), "model, None")


def program(fn: Any, mesh: MeshSpec = MESH, **arguments: Any) -> Program:
    """A Program; each argument as shape, spec and, where it is not float32, dtype."""
    arrays = []
    for name, (shape, spec, *rest) in arguments.items():
        dtype = rest[0] if rest else "float32"
        arrays.append(ArraySpec(name, shape, None, dtype, Spec.parse(spec)))
    return Program(fn, tuple(arrays), mesh)


def plan(fn: Any, mesh: MeshSpec = MESH, **arguments: Any) -> Plan:
    """The Plan of such a program, which must have one."""
    made = plan_program(program(fn, mesh, **arguments))
    assert made.error is None, made.error
    return made


def spec(op: Any) -> str:
    """A value's spec as text."""
    return str(op.spec)
