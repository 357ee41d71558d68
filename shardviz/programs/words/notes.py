"""The sentences of notes on how a program was built, traced or compiled."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.base.format import joined, listed
from shardviz.programs.notes import (
    BuffersNotRead,
    CannotWatch,
    ChangedInPlace,
    CompiledByJax,
    DumpRefused,
    FileOfStages,
    FunctionReplaced,
    JitDiffers,
    JitStays,
    JitUnreadable,
    KernelNotMapped,
    KeywordForFunction,
    MeshNeeded,
    NoArrayArguments,
    NoCollectives,
    NoDump,
    NoDumpFolder,
    NoRules,
    NotCompiled,
    Note,
    OneDevice,
    OtherMesh,
    OwnDump,
    RandomNumbers,
    RecordingFailed,
    SameRows,
    ScalesApart,
    StaticNumbers,
    StraddledBlocks,
    SumOfEquals,
    SumOfGradient,
    TracedBefore,
    UnknownJaxprParameter,
    WithoutPrints,
)


def _sentence(text: str) -> Callable[[Note], str]:
    """Returns a formatter for notes without fields, which have a fixed text."""
    return lambda note: text


def _file_of_stages(note: FileOfStages) -> str:
    stages = ("requested", "propagated", "partitioned", "compiled")
    missing = joined([stage for stage in stages if stage not in note.stages])
    sentences = [
        f"{note.file} has these stages: {joined(note.stages)}. Unknown: {missing}."
    ]
    if not note.stages:
        sentences = [
            f"{note.file} is HLO from before XLA's partitioner, so its collectives are not"
            " known yet. They are in the module dumped after the partitioner"
            " (after_spmd-partitioning), and in the final one (after_optimizations)."
        ]
    elif note.devices > 1 and not note.names_mesh:
        sentences.append(
            f"It names no mesh axes, so its {note.devices:,} devices are one axis here."
            " Give its mesh, such as mesh='data=4, model=2'."
        )
    if note.programs > 1:
        sentences.append(f"This is the largest of {note.programs:,} programs.")
    return " ".join(sentences)


def _static_numbers(note: StaticNumbers) -> str:
    """
    >>> str(StaticNumbers(("train",)))[:24]
    "'train' is static here, "
    """
    names = note.arguments
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{listed(names, 'and')} {verb} static here, because Python code needs the value"
        f" during tracing; jax.jit needs static_argnames={list(names)!r}."
    )


def _changed_in_place(note: ChangedInPlace) -> str:
    return (
        f"{note.function} changes {listed(note.arguments, 'and')} in place. The changed"
        " arrays are results here, as under nnx.jit; jax.jit would drop the change."
    )


def _keyword(note: KeywordForFunction) -> str:
    keyword, public = note.keyword, f"sv.{note.public}"
    return (
        f"{keyword}= was given to {note.function}, which has a parameter of that name, and"
        f" not to {public}. To give both, write {public}(fn, args=(...),"
        f" kwargs={{'{keyword}': ...}}, {keyword}=...)."
    )


def _jit_unreadable(note: JitUnreadable) -> str:
    return (
        f"This version of jax does not report the options of {note.function}: its shardings,"
        " static arguments and donated arguments are unknown. Give in_specs, out_specs and"
        " donate to sv.program."
    )


def _jit_differs(note: JitDiffers) -> str:
    return (
        f"jax.jit and sv.program were given different {joined(note.settings)}; those of"
        " sv.program are used."
    )


def _jit_stays(note: JitStays) -> str:
    return (
        f"jax.jit and sv.program were given different {joined(note.settings)}; those of"
        " jax.jit are used. Change them there, or give the function without jax.jit."
    )


def _no_rules(note: NoRules) -> str:
    return (
        f"No rules were given, so logical names such as {note.names} of {note.array} split"
        " nothing. Give rules to sv.program."
    )


_IN_CONTEXT = "Traced with the program's mesh in context, as under jax.set_mesh:"


def _other_mesh(note: OtherMesh) -> str:
    return (
        f"{note.set_by} has set the mesh {note.in_force} here, but the program is traced"
        f" with its own mesh, {note.program_mesh}."
    )


def _traced_before(note: TracedBefore) -> str:
    at = f" at {note.line}" if note.line else ""
    return (
        f"jax traced a function{at} before the first plan and does not trace it again, so its"
        " constraints are not seen. jax.clear_caches() makes jax trace it again."
    )


def _sum_of_gradient(note: SumOfGradient) -> str:
    return (
        f"jax.grad added the sum over {', '.join(note.axes)} at {note.line}: it differentiates"
        " with respect to a value that is the same on all devices, so the gradient is the sum"
        " of the devices' gradients."
    )


def _sum_of_equals(note: SumOfEquals) -> str:
    count = note.devices
    return (
        f"The sum over {', '.join(note.axes)} at {note.line} adds values that are the same"
        f" on all {count} devices: the result is {count} times the value, and a mean would"
        " leave it unchanged. If the values are gradients that jax.grad has already summed,"
        f" as in a step written for jax.pmap, the update is {count} times too large: take"
        " the mean of the loss before jax.grad, or apply jax.lax.pcast(..., to='varying') to"
        " the parameters before jax.grad."
    )


def _same_rows(note: SameRows) -> str:
    axis, operand, count = note.axis, note.operand, note.devices
    return (
        f"With in_specs {note.in_spec} for {operand}, the shard_map at {note.line} gives all"
        f" {count} devices along {axis} the same rows, and out_specs[{note.result}] ="
        f" {note.out_spec} concatenates their results: the result has {count} times as many"
        f" rows. If each device should have its own rows, also name {axis} in the spec of"
        f" {operand}."
    )


def _no_collectives(note: NoCollectives) -> str:
    axes, lines = ", ".join(note.axes), joined(note.lines, limit=4)
    words = f"no_collectives is in force over {axes} at {lines}."
    if not note.planned:
        return f"{words} The plan has no collective over {axes} there."
    planned = [f"{c.kind} at {c.source}" for c in note.planned]
    return (
        f"{words} jax checks this only on Explicit axes and in a shard_map, and the plan has"
        f" collectives over {axes} there: {joined(planned)}."
    )


def _kernel_not_mapped(note: KernelNotMapped) -> str:
    specs = []
    for group in (note.in_specs, note.out_specs):
        # `...` stands for a spec that only propagation would find.
        words = ["..." if spec is None else str(spec) for spec in group]
        specs.append(words[0] if len(words) == 1 else f"({', '.join(words)})")
    return (
        f"The Pallas kernel at {note.line} is outside of a shard_map. XLA cannot split a"
        " kernel: unless it is interpreted, jax refuses it for TPUs, and on GPUs its operands"
        " are gathered. To call it on each device's own blocks: kernel ="
        f" jax.shard_map(kernel, mesh=mesh, in_specs={specs[0]}, out_specs={specs[1]},"
        " check_vma=False)"
    )


_OPERANDS = ("left", "right")


def _scales_apart(note: ScalesApart) -> str:
    split = ", ".join(note.axes) or "no axis"
    return (
        f"In the block-scaled product at {note.line}, dimension {note.dim} of the"
        f" {_OPERANDS[note.operand]} operand is split over {split}, and dimension"
        f" {note.dim} of its scales over {', '.join(note.scale_axes)}. XLA moves the scales to"
        " their blocks in every call. Give both arrays the same spec."
    )


def _straddled_blocks(note: StraddledBlocks) -> str:
    return (
        f"In the block-scaled product at {note.line}, dimension {note.dim} of the"
        f" {_OPERANDS[note.operand]} operand has {note.blocks} blocks, and"
        f" {', '.join(note.axes)} splits that dimension into {note.shards} shards. jax also"
        f" splits the scales into {note.shards} shards, so devices multiply blocks with the scales"
        " of other blocks. On CPUs the result is then wrong, without an error. Use a number"
        f" of shards that divides {note.blocks}."
    )


def _unknown_parameter(note: UnknownJaxprParameter) -> str:
    return (
        f"In this version of jax, {note.primitive} has no parameter {note.parameter}, so"
        " notes that need it are left out. python -m shardviz doctor lists such names."
    )


def _without_prints(note: WithoutPrints) -> str:
    return (
        f"Compiled without jax.debug.print or jax.debug.callback ({', '.join(note.lines)}):"
        " described devices cannot call Python. On real devices, each call gathers all"
        " printed values on one device."
    )


def _no_dump_folder(note: NoDumpFolder) -> str:
    return (
        f"XLA's dump cannot be written to {note.folder} ({note.reason}), so the result of its"
        " partitioner is unknown: free some space, or name another folder."
    )


def _buffers_not_read(note: BuffersNotRead) -> str:
    return (
        "The values alive at the peak are unknown: XLA wrote its buffers in a form that"
        f" shardviz does not know ({note.reason})."
    )


SENTENCES = {
    KeywordForFunction: _keyword,
    JitUnreadable: _jit_unreadable,
    JitDiffers: _jit_differs,
    JitStays: _jit_stays,
    NoRules: _no_rules,
    StaticNumbers: _static_numbers,
    ChangedInPlace: _changed_in_place,
    NoArrayArguments: _sentence(
        f"{_IN_CONTEXT} the program has no array arguments, so nothing else determines its"
        " devices."
    ),
    MeshNeeded: lambda note: (
        f"{_IN_CONTEXT} without a mesh in context, jax raises {note.error}"
    ),
    OtherMesh: _other_mesh,
    CannotWatch: _sentence(
        "Calls cannot be watched: a profiler or debugger is using Python's hook for that."
        " Stop it."
    ),
    FunctionReplaced: lambda note: (
        f"{note.function} has been replaced, perhaps by another library."
    ),
    RecordingFailed: lambda note: f"They could not be recorded: {note.error}",
    TracedBefore: _traced_before,
    SumOfGradient: _sum_of_gradient,
    SumOfEquals: _sum_of_equals,
    SameRows: _same_rows,
    NoCollectives: _no_collectives,
    KernelNotMapped: _kernel_not_mapped,
    ScalesApart: _scales_apart,
    StraddledBlocks: _straddled_blocks,
    RandomNumbers: _sentence(
        "Random numbers are not partitionable here: if they are split, devices exchange the"
        " numbers that they need. jax.config.update('jax_threefry_partitionable', True) lets"
        " each device generate its own numbers; it changes the numbers."
    ),
    UnknownJaxprParameter: _unknown_parameter,
    WithoutPrints: _without_prints,
    OneDevice: _sentence(
        "The program is for one device, so there is nothing to partition."
    ),
    CompiledByJax: _sentence(
        "jax compiled this program without a dump of XLA, so the collectives right after"
        " the partitioner and the memory over time are unknown. sv.compile(fn, *args)"
        " compiles with a dump."
    ),
    NotCompiled: _sentence(
        "This program is lowered but not compiled, so only its requested and propagated"
        " stages are known. sv.report(lowered.compile()) shows the compiled program; for"
        " the partitioned stage, use sv.compile(fn, *args)."
    ),
    FileOfStages: _file_of_stages,
    OwnDump: _sentence(
        "XLA_FLAGS requests a dump (xla_dump_to), so shardviz does not request its own."
    ),
    NoDump: _sentence(
        "XLA's dump has no module from its partitioner. This happens when the program comes"
        " from jax's cache on disk (jax_compilation_cache_dir), or computes nothing."
    ),
    NoDumpFolder: _no_dump_folder,
    DumpRefused: lambda note: f"XLA cannot dump this program: {note.reason}",
    BuffersNotRead: _buffers_not_read,
}
