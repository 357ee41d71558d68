"""The report of `python -m shardviz doctor`: versions, and checks of private names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.base.format import plural

# The consequence if jax lacks one of these primitives, or changed its parameters.
_LOST_WITHOUT_OPERATIONS = (
    (
        "Constraints of traced programs are not seen.",
        ("sharding_constraint", "reshard"),
    ),
    (
        "Operations after one that jax refuses for its types are not checked.",
        (
            "while",
            "cond",
            "remat2",
            "custom_jvp_call",
            "custom_vjp_call",
            "select_n",
            "psum",
        ),
    ),
    (
        "sv.changes proposes no sums after a loop, and fewer refused operations are found.",
        ("scan", "shard_map", "pvary", "dot_general"),
    ),
    (
        "Plans have no notes on sums that jax.grad adds in a shard_map.",
        ("psum_invariant",),
    ),
    ("sv.changes does not look into functions under jax.jit.", ("jit",)),
    (
        "The edits that shardviz proposes for results of a shard_map are guesses.",
        (
            "ppermute",
            "all_gather",
            "all_to_all",
            "pmax",
            "pmin",
            "axis_index",
            "conv_general_dilated",
            "reshape",
            "transpose",
            "squeeze",
            "broadcast_in_dim",
            "iota",
            "concatenate",
            "gather",
            "reduce_sum",
            "add_any",
            "operations on blocks",
        ),
    ),
    (
        "A run may draw negative values for arguments that must be positive.",
        ("integer_pow", "name", "operations that keep a sign"),
    ),
    ("Plans have no note on random numbers that jax does not split.", ("random_bits",)),
    (
        "Plans without a target do not name functions that depend on the platform.",
        ("platform_index",),
    ),
    (
        "Programs that print are not compiled for described hardware.",
        ("debug_callback", "debug_print"),
    ),
)

# Private name -> the consequence if it is missing.
LOSSES: Mapping[str, str] = {
    **{
        f"jaxpr: {operation}": loss
        for loss, operations in _LOST_WITHOUT_OPERATIONS
        for operation in operations
    },
    "MLIR: Shardy passes": (
        "Plans run or leave out passes that they were not tested with, or have no estimate"
        " of collectives."
    ),
    "MLIR: operations": "Plans of programs with these operations lack values.",
    "MLIR: simplified operations": (
        "Plans may differ from XLA next to operations on constants."
    ),
    "MLIR: program attributes": ("Plans of programs with these operations fail."),
    "MLIR: Shardy attributes": "Plans lack origins, steps or collectives.",
    "jax._src.distributed.global_state": "Processes that disagree hang.",
    "jax._src.xla_bridge.backends_are_initialized": (
        "The number of simulated devices is not chosen before jax starts."
    ),
    "jax._src.mesh.get_concrete_mesh": "Only the axes of jax.set_mesh's mesh are known.",
    "jax._src.mesh.thread_resources": "Meshes of `with mesh:` are not shown.",
    "jax._src.core.trace_state_clean": (
        "sv.watch also counts calls that jax.jit and jax.grad make during tracing."
    ),
    "jax._src.config.trace_context": (
        "sv.watch does not name the settings that made a call compile again."
    ),
    "jax._src.config.explain_cache_misses": (
        "`with sv.watch():` lists compiles without jax's reasons."
    ),
    "jax._src.array.ArrayImpl": "Calls of a function that sv.watch wraps take longer.",
    "jax.jit._cache_size": "sv.watch may count a call in the row of another signature.",
    "jax._src.config.traceback_filtering": (
        "For operations that jax refuses on Explicit axes, only jax's message is shown."
    ),
    "jax._src.source_info_util": "Operations after a refused one have no source lines.",
    "jax._src.effects": "Ordered effects are recognised by their names only.",
    "jax._src.dispatch.runtime_tokens": (
        "With jax 0.10 and 0.11, the error of a callback is raised again at exit."
    ),
    "jax.jit._jit_info": (
        "The options of jax.jit are unknown: give in_specs, out_specs and donate to sv.program."
    ),
    "jax._src.pmap": (
        "The options of jax.pmap are unknown: give in_specs, out_specs and donate to sv.program."
    ),
    "jax._src.shard_map._shard_map": (
        "A plan binds a shard_map without a mesh to the mesh of the program."
    ),
    "jax.extend.core.JaxprEqn.params": "Only the first operation that jax refuses is shown.",
    "jax._src.pjit": "Plan.constraints is empty.",
    "jax._src.api.eval_shape": "Plan.constraints may list a call twice.",
    "jax.extend.core.JaxprEqn": "Operations are shown without their source lines.",
    "jax.stages.Compiled._executable": (
        "With jax 0.10 and 0.11, programs with arguments of fewer than 8 bits do not run."
    ),
    "jax.stages.Lowered._lowering": "Programs compile and run in this process only.",
    "jax._src.interpreters.mlir": (
        "The plan of an exported program shows symbols instead of sizes."
    ),
    "jax._src.interpreters.mlir._platform_specific_lowerings": (
        "Plans without a target do not name the operations whose lowering depends on the"
        " platform."
    ),
    "jaxlib._hlo.hlo_module_from_text": "sv.report does not read the text of HLO.",
    "jax.sharding.NamedSharding._to_xla_hlo_sharding": (
        "Plans for large meshes take more time and memory."
    ),
    "jaxlib.mlir.passmanager": "There are no plans; compile instead.",
    "messages of jax about meshes": (
        "Functions that name a mesh with another kind of device have no plan, and errors"
        " about a missing mesh may hide later ones."
    ),
    "ipykernel.comm.comm.BaseComm._reply_subshell_for": (
        "After a page is reloaded, the Explorer may not answer."
    ),
}


def doctor_text(versions: Mapping[str, str], rows: Sequence[tuple[str, str]]) -> str:
    """Formats the versions and the private names, with the consequence of each failure.

    Args:
        versions: package -> version, `""` if it is not installed.
        rows: (private name, error) pairs; the error is `""` if the name works.

    >>> row = ("jax._src.pjit", "KeyError: 'x'")
    >>> print(doctor_text({"jax": "9.9", "flax": ""}, [row]))
    jax   9.9
    flax  not installed
    <BLANKLINE>
    fails  jax._src.pjit
           KeyError: 'x'
           Plan.constraints is empty.
    <BLANKLINE>
    1 of 1 private name fails.
    """
    width = max(map(len, versions))
    lines = []
    for name, version in versions.items():
        lines.append(f"{name:<{width}}  {version or 'not installed'}")
    lines.append("")
    broken = 0
    for name, problem in rows:
        lines.append(f"{'fails' if problem else 'works'}  {name}")
        if problem:
            broken += 1
            lines += [f"       {problem}", f"       {LOSSES[name]}"]
    count = plural(len(rows), "private name")
    end = f"All {count} of jax and ipykernel work here."
    if broken:
        end = f"{broken} of {count} {'fails' if broken == 1 else 'fail'}."
    return "\n".join([*lines, "", end])
