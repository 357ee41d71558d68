from __future__ import annotations

from functools import partial

import jax

import shardviz as sv
from shardviz.base.backend.jax_compat_checks import check_names
from shardviz.programs.backend import jaxpr_checks, jaxpr_names
from shardviz.programs.notes import UnknownJaxprParameter


def test_a_renamed_parameter_costs_one_note(monkeypatch, eight_devices):
    renamed = jaxpr_names.Parameter("shard_map", "no_such_name")
    monkeypatch.setattr(jaxpr_names, "IN_SPECS", renamed)
    mapped = jax.shard_map(lambda x: x * 2, in_specs=jax.P("data"), out_specs=jax.P("data"))
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        plan = sv.plan(mapped, sv.array("x", (8, 4), spec="data"))
    assert plan.error is None
    assert UnknownJaxprParameter("shard_map", "no_such_name") in plan.notes


def test_a_renamed_operation_or_parameter_is_reported(monkeypatch):
    renamed = jaxpr_names.Parameter("scan", "no_such_name")
    monkeypatch.setattr(jaxpr_names, "PARAMETERS", (*jaxpr_names.PARAMETERS, renamed))
    monkeypatch.setitem(jaxpr_checks._EXAMPLES, "no_such_operation", jaxpr_checks._EXAMPLES["scan"])
    checks = {
        "parameter": partial(jaxpr_checks._has_names, "scan"),
        "operation": partial(jaxpr_checks._has_names, "no_such_operation"),
        "table": partial(jaxpr_checks._are_primitives, ["sin", "neither"]),
    }
    assert check_names(checks) == [
        ("parameter", "LookupError: no_such_name"),
        ("operation", "other result"),
        ("table", "LookupError: neither"),
    ]
