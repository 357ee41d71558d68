"""What `python -m shardviz doctor` prints: versions, and the private names of jax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.core.format import plural

# A private name, what it is for, and what one loses without it.
USES: Mapping[str, tuple[str, str]] = {
    "jax._src.distributed.global_state": (
        "comparing what several processes do",
        "Processes that disagree hang in place of saying so.",
    ),
    "jax._src.xla_bridge.backends_are_initialized": (
        "asking whether jax has started its devices",
        "The number of simulated devices is not chosen before jax starts.",
    ),
    "jax._src.mesh.get_concrete_mesh": (
        "the devices of jax.set_mesh inside a traced function",
        "Only the axes of that mesh are known.",
    ),
    "jax._src.mesh.thread_resources": (
        "the meshes that `with mesh:` has entered",
        "sv.mesh_context does not show them.",
    ),
    "jax._src.core.trace_state_clean": (
        "whether a function is being traced here",
        "A function of sv.cached must not be called inside jax.jit or jax.grad.",
    ),
    "jax._src.config.trace_context": (
        "the settings that jax compiles again for",
        "sv.cached looks at the settings that are known to matter, and at no others.",
    ),
    "jax._src.config.traceback_filtering": (
        "the operation that jax refused on Explicit axes",
        "Only what jax says of it is shown.",
    ),
    "jax.extend.core.Primitive.bind": (
        "the operation that jax refused on Explicit axes",
        "Only what jax says of it is shown.",
    ),
    "jax._src.effects": (
        "which effects are ordered, and where they are allowed",
        "What is ordered is known by name only.",
    ),
    "jax._src.effects.Effect": (
        "the names of effects",
        "Effects are shown by jax's own names for them.",
    ),
    "jax._src.dispatch.runtime_tokens": (
        "forgetting a callback that failed",
        "With jax 0.10 and 0.11 its error comes back at the end of the process.",
    ),
    "jax._src.callback": (
        "ending a run as soon as a callback fails",
        "Such a run ends when XLA gives up.",
    ),
    "jax._src.callback.callback_func": (
        "the names of callbacks",
        "The events of sv.observed_order do not name the function.",
    ),
    "jax.jit._jit_info": (
        "what jax.jit was given: shardings, static and donated arguments",
        "Give in_specs, out_specs and donate to sv.program.",
    ),
    "jax._src.pmap": (
        "what jax.pmap was given",
        "Give in_specs, out_specs and donate to sv.program.",
    ),
    "jax._src.shard_map._shard_map": (
        "a shard_map without a mesh",
        "A plan binds it to the mesh of the program, and a call on another one fails.",
    ),
    "jax._src.pjit": (
        "seeing the calls of with_sharding_constraint",
        "Plan.constraints is empty.",
    ),
    "jax._src.api.eval_shape": (
        "telling a call that is made for shapes alone",
        "Plan.constraints may list a call twice.",
    ),
    "jax.extend.core.JaxprEqn": (
        "the source lines of operations",
        "Operations of a program are shown without their lines.",
    ),
    "jax.stages.Lowered._lowering": (
        "sending a lowered program to a worker",
        "Programs compile and run in this process only.",
    ),
    "jax._src.interpreters.mlir": (
        "programs exported with symbolic sizes",
        "A plan of one shows symbols in place of sizes.",
    ),
    "jax.stages.Compiled._executable": (
        "running with arrays of less than 8 bits",
        "With jax 0.10 and 0.11 jax refuses such arrays.",
    ),
    "jax.sharding.NamedSharding._to_xla_hlo_sharding": (
        "shardings over millions of devices",
        "Plans for large meshes take more time and memory.",
    ),
    "jaxlib.mlir.passmanager": (
        "Shardy's passes, which make a plan",
        "There are no plans; compile in place of them.",
    ),
    "ipykernel.comm.comm.BaseComm._reply_subshell_for": (
        "edits of an Explorer in a notebook",
        "After a page is loaded anew the Explorer may not answer.",
    ),
}


def doctor_text(
    versions: Mapping[str, str], rows: Sequence[tuple[str, str, str]]
) -> str:
    """The versions, a row for each private name, and what does not work.

    Args:
        versions: by name, `""` for what is not installed.
        rows: the name, `works`, `missing` or `wrong`, and what its check raised.

    >>> row = ("jax._src.pmap", "missing", "LookupError: jax._src.pmap")
    >>> print(doctor_text({"jax": "9.9", "flax": ""}, [row]))
    jax   9.9
    flax  not installed
    <BLANKLINE>
    missing  jax._src.pmap  what jax.pmap was given
             LookupError: jax._src.pmap
             Give in_specs, out_specs and donate to sv.program.
    <BLANKLINE>
    1 of 1 private name does not work here.
    """
    width = max(map(len, versions))
    lines = []
    for name, version in versions.items():
        lines.append(f"{name:<{width}}  {version or 'not installed'}")
    lines.append("")
    width = max(len(name) for name, _, _ in rows)
    broken = 0
    for name, state, detail in rows:
        use, loss = USES[name]
        lines.append(f"{state:<7}  {name:<{width}}  {use}")
        if state != "works":
            broken += 1
            lines += [f"         {line}" for line in (detail, loss) if line]
    count = plural(len(rows), "private name")
    if broken:
        verb = "does" if broken == 1 else "do"
        end = f"{broken} of {count} {verb} not work here."
    else:
        end = f"All {count} of jax and ipykernel work here."
    return "\n".join([*lines, "", end])
