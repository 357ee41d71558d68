"""report_of(): reads a `jax.stages.Compiled`, which jax compiled without shardviz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, Sharding

from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.compiled.checks import Check
from shardviz.compiled.module import Module
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.hardware.chips import chip_of_kind
from shardviz.hardware.targets import Target
from shardviz.plans.plan import Plan
from shardviz.programs.backend.arguments import name_of_path, path_name
from shardviz.programs.backend.bridge import adopt_mesh
from shardviz.programs.backend.devices import Device
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.trace import Output
from shardviz.programs.notes import CompiledByJax, NotCompiled, Note
from shardviz.runs.backend.checks import output_layouts
from shardviz.runs.backend.compile import final_module, read_cost, read_sizes


def report_of(compiled: jax.stages.Compiled) -> Report:
    """Reports on a program that jax has compiled, without compiling it again.

    The collectives right after XLA's partitioner and the memory over time are None,
    because only XLA's dump has them.

    Args:
        compiled: the result of `jax.jit(f).lower(...).compile()`, for attached or
            described devices.
    """
    module = final_module(compiled)
    runtime: Any = compiled.runtime_executable()
    name = runtime.hlo_modules()[0].name.removeprefix("jit_")
    inputs, in_shardings = _arguments(compiled, module)
    out_shardings = jax.tree.leaves(compiled.output_shardings)
    devices, mesh = _devices_and_mesh([*in_shardings, *out_shardings], runtime)
    ids = dict(zip(devices, mesh.device_ids.ravel().tolist(), strict=True))
    in_layouts, in_without = output_layouts(inputs, in_shardings, mesh, ids)
    try:
        outputs = _results(compiled)
        out_layouts, out_without = output_layouts(outputs, out_shardings, mesh, ids)
    # jax fails to describe the results of a program with ordered effects.
    except (AssertionError, ValueError) as error:
        check = Check("layout", None, in_words(error), array="output")
        out_layouts, out_without = {}, [check]
    names = {p.op: name_of_path(p.op) for p in module.entry.parameters.values()}
    collectives = read_collectives(
        module, mesh.axis_names, mesh.axis_sizes, list(ids.values()), names
    )
    kind = devices[0].device_kind
    chip = chip_of_kind(kind)
    memory = read_sizes(compiled, platform=devices[0].platform)
    if chip is not None:
        memory = memory.replace(capacity=chip.device_bytes)
    report = Report(
        name,
        f"{kind} × {len(devices):,}",
        in_layouts=in_layouts,
        out_layouts=out_layouts,
        collectives=collectives,
        memory=memory,
        cost=read_cost(compiled),
        loops=module.loops,
        mesh=mesh,
        on=Target("attached", devices[0].platform, len(devices)),
        checks=(*in_without, *out_without),
        notes=(CompiledByJax(),),
    )
    if chip is None:
        return report
    return report.replace(roofline=roofline(report, chip))


def report_of_plan(plan: Plan, note: Note | None = None) -> Report:
    """Reports on a program that is lowered and not compiled, from its plan.

    Args:
        plan: the plan.
        note: a note on where the program comes from; None for jax's `Lowered`.
    """
    layouts: dict[str, dict[str, Layout]] = {"argument": {}, "op": {}, "result": {}}
    without: list[Check] = []
    for op in plan.without_error.ops:
        if op.kind != "op" and op.dtype != "token":
            try:
                layout = lay_out(op.shape, op.spec, plan.mesh, op.dtype)
                layouts[op.kind][op.name] = layout
            except ShardvizError as error:
                without.append(Check("layout", None, str(error), array=op.name))
    return Report(
        plan.program,
        str(plan.mesh),
        in_layouts=layouts["argument"],
        out_layouts=layouts["result"],
        error=plan.error,
        mesh=plan.mesh,
        checks=tuple(without),
        notes=(note or NotCompiled(),),
        plan=plan,
    )


def _arguments(
    compiled: jax.stages.Compiled, module: Module
) -> tuple[list[Output], list[Sharding]]:
    """Returns the arguments that the program uses, with jax's names, and their shardings."""
    avals = jax.tree.leaves(compiled.in_avals)
    # The sharding of an unused argument is None; the module has no parameter for it.
    # An argument that is None has no sharding either, and isn't a leaf.
    every_sharding = compiled.in_tree.flatten_up_to(compiled.input_shardings)
    parameters = []
    for _, parameter in sorted(module.entry.parameters.items()):
        if parameter.shapes[0].dtype != "token":  # of an ordered effect
            parameters.append(parameter)
    arguments, shardings = [], []
    for aval, sharding in zip(avals, every_sharding, strict=True):
        if sharding is not None:
            path = parameters[len(arguments)].op or f"argument[{len(arguments)}]"
            name = name_of_path(path)
            arguments.append(Output(name, tuple(aval.shape), aval.dtype))
            shardings.append(sharding)
    return arguments, shardings


def _results(compiled: jax.stages.Compiled) -> list[Output]:
    """Returns the results, named as in the report of `sv.compile`."""
    results = []
    for path, info in jax.tree_util.tree_leaves_with_path(compiled.out_info):
        name = path_name("output", path)
        results.append(Output(name, tuple(info.shape), info.dtype))
    return results


def _devices_and_mesh(
    shardings: Sequence[Sharding], executable: Any
) -> tuple[list[Device], MeshSpec]:
    """Returns the devices in the order of the program's mesh, and that mesh.

    Without a NamedSharding there is no mesh, so its only axis is `device`.
    """
    for sharding in shardings:
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return list(sharding.mesh.devices.flat), adopt_mesh(sharding.mesh)
    if shardings:
        device_set = shardings[0].device_set
    elif hasattr(executable, "local_devices"):
        device_set = executable.local_devices()
    else:  # for described devices
        raise ProgramError(
            "The program has neither arguments nor results, so its devices are unknown."
        )
    devices: list[Device] = sorted(device_set, key=lambda d: d.id)
    ids = [device.id for device in devices]
    processes = [device.process_index for device in devices]
    return devices, make_mesh({"device": len(ids)}, device_ids=ids, processes=processes)
