"""Plans a program that jax has lowered already: from its StableHLO, without a trace."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from shardviz.base.backend.jax_compat import stablehlo_module
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.attributes import (
    AttributeCache,
    named_attribute,
    parse_tensor,
    value_of,
)
from shardviz.plans.backend.before_propagation import functions_of, operations_in
from shardviz.plans.backend.build_plan import estimated, notes_on_values
from shardviz.plans.backend.lowering import choose_passes
from shardviz.plans.backend.mlir_names import (
    ARGUMENT_ATTRIBUTES,
    DEVICE_COUNTS,
    DONATED,
    FUNCTION_NAME,
    GSPMD_SHARDING,
    MEMORY_KIND,
    MESH,
    RESULT_ATTRIBUTES,
    RESULT_INFO,
    SHARDY_MESH,
)
from shardviz.plans.backend.reader import PlanReader, argument_names
from shardviz.plans.backend.shardy_passes import (
    PassSelection,
    is_accepted,
    pass_manager,
    settling_passes,
)
from shardviz.plans.backend.uneven import note_uneven
from shardviz.plans.plan import Plan
from shardviz.plans.plan_notes import FromStableHlo, PlanNote, UntriedPasses
from shardviz.programs.backend.arguments import name_of_path
from shardviz.programs.backend.failures import failure, in_words


def plan_lowered(lowered: jax.stages.Lowered) -> Plan:
    """Plans what `jax.jit(f).lower(...)` returned, without tracing `f` again.

    >>> plan = plan_lowered(jax.jit(lambda x: -x).lower(1.0))
    >>> [op.name for op in plan.ops]
    ['x', 'neg', 'output']
    """
    module = stablehlo_module(lowered)
    return plan_module(module, choose_passes(module, "unreduced" in _text(module)))


def plan_module(module: Any, selection: PassSelection | None = None) -> Plan:
    """Plans a module of StableHLO whose shardings are Shardy's.

    Args:
        module: the MLIR module. It is not changed.
        selection: the passes to run; None for the passes in `settling_passes`.

    Returns:
        A Plan, with an `.error` if propagation fails.

    Raises:
        ProgramError: if the module has no function `main`, or no single mesh.
    """
    if "main" not in functions_of(module.operation):
        raise ProgramError(
            "A program in StableHLO has a function main, and this module has none. Pass"
            " the text of jax.jit(f).lower(*args).as_text(), or its file."
        )
    name = "main"
    if FUNCTION_NAME in module.operation.attributes:
        name = value_of(module.operation, FUNCTION_NAME).removeprefix("jit_")
    notes: tuple[PlanNote, ...] = (FromStableHlo(),)
    selection = selection or settling_passes()
    if selection.untried or selection.left_out:
        notes += (UntriedPasses(selection.untried, selection.left_out),)
    plan = Plan(name, _mesh_of(module), notes=notes)
    begun = time.perf_counter()
    try:
        plan = _propagated(plan, module, selection)
    except Exception as error:  # noqa: BLE001  a pass may raise anything
        plan = replace(plan, error=failure("propagate", error))
    return replace(plan, propagate_s=time.perf_counter() - begun)


def _text(module: Any) -> str:
    # Large constants would take long to print.
    return module.operation.get_asm(large_elements_limit=16)


def _propagated(plan: Plan, module: Any, selection: PassSelection) -> Plan:
    copy, attributes = pipeline.propagate(module, selection), AttributeCache()
    with copy.context:
        main = functions_of(module.operation)["main"]
        arguments: list[str] = []
        types = main.attributes["function_type"].value
        for number, path in enumerate(argument_names(copy, attributes)):
            # The reader names the token of an effect.
            if path or parse_tensor(str(types.inputs[number])) is not None:
                path = name_of_path(path or f"argument[{number}]")
            arguments.append(path)
        results: list[str] = []
        for number, kind in enumerate(types.results):
            path = named_attribute(main, RESULT_ATTRIBUTES, number, RESULT_INFO)
            # Older versions of jax wrote only the path.
            text = path.value.removeprefix("result") if path is not None else ""
            text = text or (
                f"[{number}]" if len(types.results) > 1 and path is None else ""
            )
            if parse_tensor(str(kind)) is not None:
                results.append(name_of_path(f"output{text}"))
        reader = PlanReader(copy, module, arguments, results, plan.mesh, attributes)
        ops = list(reader.read())
        for number in range(len(arguments)):
            of_argument = partial(named_attribute, main, ARGUMENT_ATTRIBUTES, number)
            memory = of_argument(MEMORY_KIND)
            ops[number] = ops[number].changed(
                donated=any(map(of_argument, DONATED)),
                memory_kind=memory.value if memory else "",
            )
    values, collectives, notes = estimated(copy, reader, note_uneven(ops, plan.mesh))
    notes = (*plan.notes, *notes, *notes_on_values(values, plan.mesh))
    return replace(plan, ops=values, collectives=collectives, notes=notes)


def _mesh_of(module: Any) -> MeshSpec:
    """Returns the only mesh of a module; one axis over all devices if it names none.

    Raises:
        ProgramError: for several meshes, or for shardings in GSPMD's notation.
    """
    meshes: dict[str, dict[str, int]] = {}
    for op in operations_in(module.operation):
        if op.name == SHARDY_MESH:
            mesh = sdy.MeshAttr(op.attributes[MESH])
            axes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
            # Meshes may differ in their device ids only.
            meshes |= {str(mesh): axes} if axes else {}
    if len(meshes) == 1:
        return make_mesh(*meshes.values())
    if meshes:
        raise ProgramError(
            "Plans do not cover programs over two meshes, and this module has"
            f" {listed(meshes)}. sv.report(lowered.compile()) shows what XLA makes of it."
        )
    if GSPMD_SHARDING in _text(module):
        raise ProgramError(
            f"The shardings of this module are GSPMD's ({GSPMD_SHARDING}), and plans need"
            " Shardy's. Lower it with jax_use_shardy_partitioner=True."
        )
    attributes, devices = module.operation.attributes, 1
    for name in DEVICE_COUNTS:
        devices *= attributes[name].value if name in attributes else 1
    return make_mesh(device=devices)


def plan_data(data: bytes, name: str, folder: str) -> Plan:
    """Plans StableHLO in text, bytecode or a portable artifact, in a worker.

    Args:
        data: the contents of a file, which may end this process.
        name: the name of the program if the module has none.
        folder: the worker's folder for the files of a call; not used.

    Raises:
        ProgramError: if MLIR cannot parse the data, or as in `plan_module`.
    """
    # The context of any module from jax has all dialects.
    any_module: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")
    context = any_module.operation.context
    try:
        if b"StableHLO_v" in data[:64]:
            module = stablehlo.deserialize_portable_artifact(context, data)
        else:
            module = ir.Module.parse(data, context)
    except Exception as error:  # noqa: BLE001  MLIR raises several types
        raise ProgramError(
            f"MLIR cannot parse {name}. {in_words(error)} Pass the complete output of"
            " jax.jit(f).lower(*args).as_text(), from this or an older version of jax."
        ) from None
    with context:
        # A sharding may contain its mesh instead of the name of one.
        if is_accepted("sdy-lift-inlined-meshes"):
            pass_manager(("sdy-lift-inlined-meshes",)).run(module.operation)
        functions = [*functions_of(module.operation).values()]
        if len(functions) == 1:  # modules that are not from jax may have another name
            functions[0].attributes[FUNCTION_NAME] = ir.StringAttr.get("main")
    plan = plan_module(module)
    return plan if plan.program != "main" else replace(plan, program=name)
