"""Sentences for the findings of a compile or run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from shardviz.base.display import sentence
from shardviz.base.format import (
    by_count,
    bytes_text,
    joined,
    listed,
    plural,
    told_apart,
)
from shardviz.compiled.checks import (
    Bounds,
    ChangeNotRun,
    DiffersFromOriginal,
    EffectsNotRepeated,
    ElementsDiffer,
    FewerShards,
    Finding,
    HiddenBlock,
    IdleProcesses,
    InProcesses,
    MeshOfOneDevice,
    NoStore,
    NotOnOneDevice,
    NotOnTorus,
    NotRepeatable,
    OriginalAmplifiesRounding,
    OtherType,
    OutputsStay,
    OwnShards,
    PartialResults,
    RoundingMoves,
    SameAsOriginal,
    ShardElsewhere,
    ShardOutsideMesh,
    ShardsInPlace,
    SpecCompared,
    TooBigForOneDevice,
    UndecidedInShardMap,
    UnevenBlocks,
    UnusedDonations,
    ValuesApart,
    ValuesEqual,
    ValuesOnSeveralProcesses,
)


def _in_place(fact: ShardsInPlace) -> str:
    shape = list(fact.shape)
    return f"Every shard is where the layout puts it; each is {fact.dtype}{shape}."


def _elsewhere(fact: ShardElsewhere) -> str:
    return (
        f"Device {fact.device} holds {_bounds(fact.bounds)} (shape {list(fact.shape)}), but"
        f" the layout puts {_bounds(fact.predicted_bounds)} (shape"
        f" {list(fact.predicted_shape)}) there."
    )


def _bounds(bounds: Bounds) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"


def _outside_mesh(fact: ShardOutsideMesh) -> str:
    return f"A shard is on {fact.device}, outside the mesh."


def _fewer_shards(fact: FewerShards) -> str:
    if fact.as_compiled:
        return (
            f"Only {fact.shards} of {fact.devices} devices hold it, as compiled: jax"
            " requested no others."
        )
    return f"Only {fact.shards} of {fact.devices} devices hold it."


def _partial_results(fact: PartialResults) -> str:
    return (
        f"Every device holds a partial result, unreduced over {listed(fact.axes)}; jax gives"
        " no shard indices or values for such an array."
    )


def _spec(fact: SpecCompared) -> str:
    compiled = fact.compiled or "other shard indices"
    return f"{fact.requested} was requested, and the compiler gives {compiled}."


def _uneven_blocks(fact: UnevenBlocks) -> str:
    return f"{fact.requested} was requested, but the compiler's blocks have different shapes."


def _other_type(fact: OtherType) -> str:
    return f"The result is {fact.result} here, and {fact.reference} on one device."


def _equal(fact: ValuesEqual) -> str:
    return "Equal to the unsharded function, element by element."


def _elements_differ(fact: ElementsDiffer) -> str:
    verb = by_count(fact.count, "differs", "differ")
    differ = f"{plural(fact.count, 'element')} {verb} from the unsharded function's."
    return differ + _reason(fact.reason)


def _apart(fact: ValuesApart) -> str:
    relative = math.inf if fact.worst else 0.0
    if fact.scale:
        relative = fact.worst / fact.scale
    text = (
        f"Largest difference from the unsharded function: {fact.worst:.2g}, which is"
        f" {relative:.2g} of the largest value, {fact.scale:.3g}; up to {fact.allowed:g} of"
        " that value is allowed."
    )
    # `worst` covers only finite elements, so we count the other elements separately.
    if fact.unlike:
        verb = by_count(fact.unlike, "is", "are")
        text += f" {plural(fact.unlike, 'element')} {verb} finite in only one of the two results."
    if fact.not_finite:
        verb = by_count(fact.not_finite, "is", "are")
        text += f" {plural(fact.not_finite, 'element')} {verb} NaN or infinite in both."
    return text + _reason(fact.reason)


def _reason(reason: HiddenBlock | RoundingMoves | None) -> str:
    """Explains what decided a check, if it was not the tolerance."""
    if reason is None:
        return ""
    if isinstance(reason, HiddenBlock):
        return (
            f" In one block the median difference is {reason.median:.2g}, as large as the"
            " values there."
        )
    change = f"changes by {reason.moves:.2g}" if reason.moves else "changes as well"
    if reason.unlike:
        change += f" (including {plural(reason.unlike, 'element')} for which no difference is allowed)"
    text = (
        f" The result of the unsharded function {change} when its arguments change by one"
        " rounding step"
    )
    if reason.conclusive:
        return f"{text}, so the difference is rounding."
    text += (
        ", so the check is inconclusive: the function amplifies rounding too much for"
        " these values."
    )
    return f"{text} Give your own values to sv.run." if reason.made_up else text


def _undecided_in_shard_map(fact: UndecidedInShardMap) -> str:
    return (
        f"{sentence(fact.difference)} The program has shard_map regions, whose results may"
        " depend on the number of devices, so the check is inconclusive."
    )


def _one_device(fact: MeshOfOneDevice) -> str:
    return "The mesh has one device, so the unsharded function itself ran."


def _not_repeatable(fact: NotRepeatable) -> str:
    return (
        "The unsharded function returns other values in a second call with the same"
        " arguments, so the check is inconclusive."
    )


def _effects(fact: EffectsNotRepeated) -> str:
    return (
        f"Not compared: the program has effects ({listed(fact.effects)}), and a second run"
        " would repeat them."
    )


def _too_big(fact: TooBigForOneDevice) -> str:
    needed, free = told_apart([fact.needed, fact.free])
    return (
        f"Not compared: on one device the function needs {needed}, and {free} is free."
    )


def _several_processes(fact: ValuesOnSeveralProcesses) -> str:
    return (
        "Not compared: the values are spread over several processes, and no process has all"
        " of them. If no values are given, sv.run makes some up that every process has."
    )


def _not_on_one_device(fact: NotOnOneDevice) -> str:
    return f"The function does not run on one device. {fact.error}"


def _same_as_original(fact: SameAsOriginal) -> str:
    return "All results equal those of the original, except for rounding."


def _differs_from_original(fact: DiffersFromOriginal) -> str:
    return f"{fact.result} differs from that of the original program."


def _amplifies_rounding(fact: OriginalAmplifiesRounding) -> str:
    return f"{fact.result} amplifies rounding too much for a comparison."


def _not_run(fact: ChangeNotRun) -> str:
    return f"Not compared: {fact.why}."


def _unused_donations(fact: UnusedDonations) -> str:
    arrays, count = "; ".join(fact.arrays), fact.count
    if count > len(fact.arrays):
        arrays += f"; and {count - len(fact.arrays)} more"
    was, its = ("was", "its") if count == 1 else ("were", "their")
    return (
        f"{plural(count, 'donated array')} {was} not usable: {arrays}. No output reuses {its}"
        " memory, because no remaining output has the same bytes on each device."
    )


def _not_on_torus(fact: NotOnTorus) -> str:
    return (
        f"jax does not lay a mesh of {fact.sizes} over the torus of {fact.target}:"
        f" {fact.error}. Devices keep their own order instead, so neighbours in the mesh"
        " may be far apart in the torus."
    )


def _own_shards(fact: OwnShards) -> str:
    return f"Process {fact.process} of {fact.processes}: each process checks its own shards."


def _no_store(fact: NoStore) -> str:
    return (
        "Several processes run this, but whether they run the same program was not checked:"
        " this version of jax has no key-value store where shardviz looks for it, or"
        " jax.distributed.initialize was not called."
    )


def _idle_processes(fact: IdleProcesses) -> str:
    processes = joined(f"process {rank}" for rank in fact.processes)
    take = "takes" if len(fact.processes) == 1 else "take"
    return f"The mesh has {plural(fact.devices, 'device')}; {processes} {take} no part in it."


def _in_processes(fact: InProcesses) -> str:
    return " ".join(f"Process {rank}: {finding}" for rank, finding in fact.findings)


def _outputs_stay(fact: OutputsStay) -> str:
    return (
        f"The outputs take more than {bytes_text(fact.most)} and stay on the processes:"
        " report.outputs has only their shapes."
    )


SENTENCES: Mapping[type[Finding], Callable[[Any], str]] = {
    ShardsInPlace: _in_place,
    ShardElsewhere: _elsewhere,
    ShardOutsideMesh: _outside_mesh,
    FewerShards: _fewer_shards,
    PartialResults: _partial_results,
    SpecCompared: _spec,
    UnevenBlocks: _uneven_blocks,
    OtherType: _other_type,
    ValuesEqual: _equal,
    ElementsDiffer: _elements_differ,
    ValuesApart: _apart,
    UndecidedInShardMap: _undecided_in_shard_map,
    MeshOfOneDevice: _one_device,
    EffectsNotRepeated: _effects,
    NotRepeatable: _not_repeatable,
    TooBigForOneDevice: _too_big,
    ValuesOnSeveralProcesses: _several_processes,
    NotOnOneDevice: _not_on_one_device,
    SameAsOriginal: _same_as_original,
    DiffersFromOriginal: _differs_from_original,
    OriginalAmplifiesRounding: _amplifies_rounding,
    ChangeNotRun: _not_run,
    UnusedDonations: _unused_donations,
    NotOnTorus: _not_on_torus,
    OwnShards: _own_shards,
    NoStore: _no_store,
    IdleProcesses: _idle_processes,
    InProcesses: _in_processes,
    OutputsStay: _outputs_stay,
}
