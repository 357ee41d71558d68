"""What was found when a program was compiled and run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardviz.base.format import bytes_text, joined, listed, plural
from shardviz.compiled.checks import Finding


def _partial_sums(axes: Sequence[str]) -> str:
    return (
        f"Every device holds a partial sum, unreduced over {listed(axes)}; jax gives no"
        " shard indices or values of such an array."
    )


def _elsewhere(
    device: int,
    held: Sequence[tuple[int, int]],
    held_shape: list[int],
    predicted: Sequence[tuple[int, int]],
    predicted_shape: list[int],
) -> str:
    return (
        f"Device {device} holds {_bounds(held)} as {held_shape}; the layout puts"
        f" {_bounds(predicted)} there, {predicted_shape}."
    )


def _bounds(bounds: Sequence[tuple[int, int]]) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"


def _unequal(count: int, why: str = "", **more: Any) -> str:
    words = f"{plural(count, 'element')} differ from the unsharded function's."
    return words + _why_judged(why, **more)


def _apart(
    worst: float,
    scale: float,
    allowed: float,
    unlike: int,
    not_finite: int,
    why: str = "",
    **more: Any,
) -> str:
    relative = math.inf if worst else 0.0
    if scale:
        relative = worst / scale
    words = (
        f"Largest difference from the unsharded function: {worst:.2g}, which is"
        f" {relative:.2g} of the largest value {scale:.3g}; allowed is {allowed:g} of it."
    )
    # These count beside the difference, which is of finite elements.
    if unlike:
        words += f" {plural(unlike, 'element')} finite in one of the two only."
    if not_finite:
        words += f" {plural(not_finite, 'element')} NaN or infinite in both."
    return words + _why_judged(why, **more)


def _why_judged(
    why: str,
    median: float = 0.0,
    moves: float = 0.0,
    moved_unlike: int = 0,
    made_up: bool = False,
) -> str:
    """What decided on a difference, if it was not the tolerance."""
    if why == "hidden block":
        return (
            f" In one block the median difference is {median:.2g}, as large as the values"
            " there."
        )
    if not why:
        return ""
    moved = f"moves by {moves:.2g}" if moves else "changes as well"
    if moved_unlike:
        moved += f", and {plural(moved_unlike, 'element')} otherwise,"
    words = (
        f" The unsharded function itself {moved} when its arguments move by one rounding"
        " step"
    )
    if why == "rounding":
        return f"{words}: this is rounding."
    words += (
        ", so this decides nothing: it amplifies rounding too much for these values."
    )
    # Whoever gave values needn't be told to.
    return f"{words} Give values of your own to sv.run." if made_up else words


_SHARD_MAP = (
    " The program has shard_map regions, whose results may depend on the number of"
    " devices, so this decides nothing."
)


def _spec(wanted: str, given: str | None) -> str:
    return f"{wanted} was requested and the compiler gives {given or 'other shard indices'}."


def _effects(effects: Sequence[str]) -> str:
    return (
        f"Not compared: the program has effects ({listed(effects)}), and a second run would"
        " repeat them."
    )


def _too_big(needed: int, free: int) -> str:
    return (
        f"Not compared: on one device it needs {bytes_text(needed)}, and"
        f" {bytes_text(free)} are free."
    )


def _unused_donations(arrays: Sequence[str], count: int) -> str:
    some = "; ".join(arrays)
    if count > len(arrays):
        some += f"; and {count - len(arrays)} more"
    was, its, it = ("was", "its", "it") if count == 1 else ("were", "their", "them")
    return (
        f"{plural(count, 'donated array')} {was} not usable: {some}. No output takes {its}"
        f" memory: none of the same bytes on each device is left for {it}."
    )


def _not_on_torus(sizes: str, target: str, said: str) -> str:
    return (
        f"jax does not lay a mesh of {sizes} over the torus of {target}: {said}. Devices"
        " keep their own order instead, so neighbours in the mesh may be far apart in the"
        " torus."
    )


def _idle_processes(devices: int, processes: Sequence[int]) -> str:
    some = joined(f"process {rank}" for rank in processes)
    take = "takes" if len(processes) == 1 else "take"
    return f"The mesh has {plural(devices, 'device')}; {some} {take} no part in it."


def _outputs_stay(most: int) -> str:
    return (
        f"The outputs take more than {bytes_text(most)} and stay on the processes:"
        " report.outputs has their shapes."
    )


# Text with the fields in braces, or what makes it of them.
_WORDS: Mapping[str, str | Callable[..., str]] = {
    # Shards and specs.
    "in place": "Every shard is where the layout puts it, {dtype}{shape} each.",
    "elsewhere": _elsewhere,
    "outside the mesh": "A shard is on {device}, outside the mesh.",
    "on some as compiled": (
        "On {shards} devices of {devices}, as compiled: jax asked for no others."
    ),
    "on some": "Only {shards} devices of {devices} hold it.",
    "partial sums": _partial_sums,
    "spec": _spec,
    "shapes differ": "{wanted} was requested and the blocks differ in shape.",
    # Values.
    "other type": "{here} here, {there} on one device.",
    "equal": "Equal to the unsharded function, element by element.",
    "unequal": _unequal,
    "apart": _apart,
    "one device": "The mesh has one device: what ran is the unsharded function.",
    "effects": _effects,
    "too big for one": _too_big,
    "spread": (
        "Not compared: the values are spread over several processes, and none has all of"
        " them. Without values, sv.run makes up some that each process has."
    ),
    "not on one device": "It does not run on one device. {said}",
    # Values of a changed program, next to the original's.
    "as the original": "All results are the original's, except for rounding.",
    "value differs": "{name} is not what the original returns.",
    "other results": "It returns another number of results.",
    "undecided": "{name} amplifies rounding too much to compare it.",
    "not run": "Not compared: {said}.",
    "original failed": "Not compared: the original did not run. {said}",
    "candidate failed": "Not compared: it did not run on simulated devices. {said}",
    # Notes on a compile.
    "unused donations": _unused_donations,
    "not on torus": _not_on_torus,
    # Notes on several processes.
    "own shards": "Process {process} of {processes}: each checks its own shards.",
    "no store": (
        "Several processes run this, and what they run was not compared: this version of"
        " jax has no key-value store where shardviz looks for it, or"
        " jax.distributed.initialize was not called."
    ),
    "idle processes": _idle_processes,
    "outputs stay": _outputs_stay,
}


def finding(fact: Finding) -> str:
    """What was found, in one sentence or a few.

    >>> finding(Finding("unequal", {"count": 3}))
    "3 elements differ from the unsharded function's."
    """
    words, fields = _WORDS[fact.code], dict(fact.fields)
    undecided = _SHARD_MAP if fields.pop("shard_map", False) else ""
    if isinstance(words, str):
        return words.format(**fields) + undecided
    return words(**fields) + undecided


SENTENCES = {Finding: finding}
