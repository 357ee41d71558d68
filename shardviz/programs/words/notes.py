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
            " known yet. They are in the module after it (after_spmd-partitioning), and in"
            " the final one (after_optimizations)."
        ]
    elif note.devices > 1 and not note.names_mesh:
        sentences.append(
            f"It names no mesh axes, so its {note.devices:,} devices are one axis here."
            f" Name them, such as mesh='data={note.devices}'."
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
        f"{listed(names, 'and')} {verb} static here, since Python reads a number while it"
        f" traces; jax.jit needs static_argnames={list(names)!r}."
    )


def _changed_in_place(note: ChangedInPlace) -> str:
    return (
        f"{note.function} changes {listed(note.arguments, 'and')} in place. That counts as"
        " results here, as under nnx.jit; jax.jit would drop it."
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
        f"This jax does not say what {note.function} was given: shardings, static and"
        " donated arguments are not seen. Give in_specs, out_specs and donate to"
        " sv.program."
    )


def _jit_differs(note: JitDiffers) -> str:
    return (
        f"jax.jit and sv.program were given a different {joined(note.settings)}; that of"
        " sv.program is used."
    )


def _jit_stays(note: JitStays) -> str:
    return (
        f"The function is jitted with a different {joined(note.settings)}, which is used."
        " Change it there, or give the function without jax.jit."
    )


def _no_rules(note: NoRules) -> str:
    return (
        f"No rules were given, so logical names split nothing, such as {note.names} of"
        f" {note.array}. Give rules to sv.program."
    )


_IN_CONTEXT = "Traced with the program's mesh in context, as under jax.set_mesh:"


def _other_mesh(note: OtherMesh) -> str:
    return (
        f"{note.set_by} has the mesh {note.in_force} here; the program is traced with its"
        f" own, {note.program_mesh}, in its place."
    )


def _traced_before(note: TracedBefore) -> str:
    at = f" at {note.line}" if note.line else ""
    return (
        f"jax had traced a function{at} before any plan and does not call it again, so the"
        " constraints in it are not seen. jax.clear_caches() makes jax forget it."
    )


def _sum_of_gradient(note: SumOfGradient) -> str:
    return (
        f"grad put in the sum over {', '.join(note.axes)} at {note.line}: what is"
        " differentiated there is the same on all devices, so its gradient is the sum of"
        " theirs."
    )


def _sum_of_equals(note: SumOfEquals) -> str:
    count = note.devices
    return (
        f"The sum over {', '.join(note.axes)} at {note.line} adds values that are the same"
        f" on all {count} devices: it gives {count} times the value, and a mean there"
        " changes nothing. If these are gradients that grad has summed already, as where a"
        f" step was moved from jax.pmap, the step goes {count} times too far: take the mean"
        " of the loss before jax.grad, or jax.lax.pcast the parameters to='varying' before"
        " it."
    )


def _same_rows(note: SameRows) -> str:
    axis, operand, count = note.axis, f"in_specs[{note.operand}]", note.devices
    return (
        f"The shard_map at {note.line} is given the same rows of {operand}, {note.in_spec},"
        f" on all {count} devices along {axis}, and out_specs[{note.result}],"
        f" {note.out_spec}, puts what they return side by side: the result has {count}"
        " times as many rows. If each device should have rows of its own, name"
        f" {axis} in {operand}, too."
    )


def _no_collectives(note: NoCollectives) -> str:
    axes, lines = ", ".join(note.axes), joined(note.lines, limit=4)
    words = f"no_collectives is in force over {axes} at {lines}."
    if not note.planned:
        return f"{words} The plan has no collective over them there."
    planned = [f"{c.kind} at {c.source}" for c in note.planned]
    return (
        f"{words} jax checks it on Explicit axes and in a shard_map only, and the plan has"
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
        " kernel: jax refuses this one for TPUs, and on GPUs its operands are gathered. To"
        " call it on each device's own blocks: kernel = jax.shard_map(kernel, mesh=mesh,"
        f" in_specs={specs[0]}, out_specs={specs[1]}, check_vma=False)"
    )


_OPERANDS = ("left", "right")


def _scales_apart(note: ScalesApart) -> str:
    split = ", ".join(note.axes) or "no axis"
    return (
        f"In the block-scaled product at {note.line}, dimension {note.dim} of the"
        f" {_OPERANDS[note.operand]} operand is split over {split} and that of its scales"
        f" over {', '.join(note.scale_axes)}. XLA moves the scales to their blocks in every"
        " call. Give both the same spec."
    )


def _straddled_blocks(note: StraddledBlocks) -> str:
    return (
        f"In the block-scaled product at {note.line}, dimension {note.dim} of the"
        f" {_OPERANDS[note.operand]} operand has {note.blocks} blocks, and"
        f" {', '.join(note.axes)} splits it into {note.shards} shards. jax splits the"
        " scales into as many, so devices multiply blocks with the scales of other blocks."
        " On CPUs the result is then wrong, without an error. Use a number of shards that"
        f" divides {note.blocks}."
    )


def _unknown_parameter(note: UnknownJaxprParameter) -> str:
    return (
        f"This version of jax has no parameter {note.parameter} of {note.primitive}, so"
        " notes that need it are left out. python -m shardviz doctor lists such names."
    )


def _without_prints(note: WithoutPrints) -> str:
    return (
        f"Compiled without jax.debug.print or jax.debug.callback ({', '.join(note.lines)}):"
        " described devices cannot call Python. On real ones XLA gathers all that is printed"
        " on one device, each time."
    )


def _no_dump_folder(note: NoDumpFolder) -> str:
    return (
        f"XLA's dump cannot be written to {note.folder} ({note.reason}), so what its"
        " partitioner made is unknown: free some space, or name another folder."
    )


def _buffers_not_read(note: BuffersNotRead) -> str:
    return (
        "What is alive at the peak is unknown: XLA wrote its buffers in a form that"
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
        f"{_IN_CONTEXT} it has no array arguments, so nothing else says on which devices"
        " it runs."
    ),
    MeshNeeded: lambda note: f"{_IN_CONTEXT} without it, {note.error}",
    OtherMesh: _other_mesh,
    CannotWatch: _sentence(
        "Calls cannot be watched: a profiler or a debugger uses what Python has for that."
        " End it."
    ),
    FunctionReplaced: lambda note: (
        f"Something else is in the place of {note.function}."
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
        "Random numbers are not partitionable here: where they are split, devices exchange"
        " what they need of them. jax.config.update('jax_threefry_partitionable', True) lets"
        " each device make its own; the numbers are others then."
    ),
    UnknownJaxprParameter: _unknown_parameter,
    WithoutPrints: _without_prints,
    OneDevice: _sentence(
        "The program is for one device, so there is nothing to partition."
    ),
    CompiledByJax: _sentence(
        "jax compiled this program itself. The collectives right after XLA's partitioner"
        " and the memory over time are in a dump that only sv.compile(fn, *args) asks for."
    ),
    NotCompiled: _sentence(
        "This program is lowered but not compiled, so only its requested and propagated"
        " stages are known. sv.report(lowered.compile()) shows the compiled program; for"
        " the partitioned stage, use sv.compile(fn, *args)."
    ),
    FileOfStages: _file_of_stages,
    OwnDump: _sentence(
        "XLA_FLAGS ask for a dump (xla_dump_to), so shardviz makes none of its own."
    ),
    NoDump: _sentence(
        "XLA left no module of its partitioner. This happens when the program comes"
        " from jax's cache on disk (jax_compilation_cache_dir)."
    ),
    NoDumpFolder: _no_dump_folder,
    DumpRefused: lambda note: f"XLA cannot dump this program: {note.reason}",
    BuffersNotRead: _buffers_not_read,
}
