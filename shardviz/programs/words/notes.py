"""Notes on how a program was made or traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardviz.base.format import listed
from shardviz.programs.notes import Note


def _static_numbers(names: tuple[str, ...]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{listed(names, 'and')} {verb} static here, since Python reads a number while it"
        f" traces; jax.jit needs static_argnames={list(names)!r}."
    )


def _without_prints(lines: tuple[str, ...]) -> str:
    return (
        f"Compiled without jax.debug.print or jax.debug.callback ({', '.join(lines)}):"
        " described devices cannot call Python. On real ones XLA gathers all that is printed"
        " on one device, each time."
    )


def _changed_in_place(names: tuple[str, ...]) -> str:
    function, *changed = names
    return (
        f"{function} changes {listed(changed, 'and')} in place. That counts as results here,"
        " as under nnx.jit; jax.jit would drop it."
    )


# The sentence of a code, with what it is about in place of {0}, {1} and so on.
# Braces that are to be written stand twice.
_TEMPLATES: Mapping[str, str] = {
    # Why it is not known what XLA's partitioner made of a program.
    "one device": "The program is for one device, so there is nothing to partition.",
    "no dump folder": (
        "XLA's dump cannot be written to {0} ({1}), so what its partitioner made is"
        " unknown: free some space, or name another folder."
    ),
    "own dump": (
        "XLA_FLAGS ask for a dump (xla_dump_to), so shardviz makes none of its own."
    ),
    "dump refused": "XLA cannot dump this program: {0}",
    "no dump": (
        "XLA left no module of its partitioner. This happens when the program comes"
        " from jax's cache on disk (jax_compilation_cache_dir)."
    ),
    "buffers not read": (
        "What is alive at the peak is unknown: XLA wrote its buffers in a form that"
        " shardviz does not know ({0})."
    ),
    "keyword": (
        "{1}= was given to {0}, which has a parameter of that name, and not to sv.{2}. To"
        " give both, write sv.{2}(fn, args=(...), kwargs={{'{1}': ...}}, {1}=...)."
    ),
    "no array arguments": (
        "Traced with the program's mesh in context, as under jax.set_mesh: it has no array"
        " arguments, so nothing else says on which devices it runs."
    ),
    "mesh needed": (
        "Traced with the program's mesh in context, as under jax.set_mesh: without it, {0}"
    ),
    "other mesh": (
        "{0} has the mesh {1} here; the program is traced with its own, {2}, in its place."
    ),
    "jit unreadable": (
        "This jax does not say what {0} was given: shardings, static and donated arguments"
        " are not seen. Give in_specs, out_specs and donate to sv.program."
    ),
    "jit differs": (
        "jax.jit and sv.program were given a different {0}; that of sv.program is used."
    ),
    "no rules": (
        "No rules were given, so logical names split nothing, such as {1} of {0}. Give rules"
        " to sv.program."
    ),
    "sum of grad": (
        "grad put in the sum over {0} at {1}: what is differentiated there is the same on"
        " all devices, so its gradient is the sum of theirs."
    ),
    "sum of equals": (
        "The sum over {0} at {1} adds values that are the same on all {2} devices: it gives"
        " {2} times the value, and a mean there changes nothing. If these are gradients"
        " that grad has summed already, as where a step was moved from jax.pmap, the step"
        " goes {2} times too far: take the mean of the loss before jax.grad, or"
        " jax.lax.pcast the parameters to='varying' before it."
    ),
    "same rows": (
        "The shard_map at {1} is given the same rows of in_specs[{2}], {3}, on all {6}"
        " devices along {0}, and out_specs[{4}], {5}, puts what they return side by side:"
        " the result has {6} times as many rows. If each device should have rows of its own,"
        " name {0} in in_specs[{2}], too."
    ),
    "unknown parameter": (
        "This version of jax has no parameter {1} of {0}, so notes that need it are left out."
        " python -m shardviz doctor lists such names."
    ),
    "random numbers": (
        "Random numbers are not partitionable here: where they are split, devices exchange"
        " what they need of them. jax.config.update('jax_threefry_partitionable', True) lets"
        " each device make its own; the numbers are others then."
    ),
    "cannot be watched": (
        "Calls cannot be watched: a profiler or a debugger uses what Python has for that."
        " End it."
    ),
    "function replaced": "Something else is in the place of {0}.",
    "recording failed": "They could not be recorded: {0}",
    "traced before": (
        "jax had traced a function{0} before any plan and does not call it again, so the"
        " constraints in it are not seen. jax.clear_caches() makes jax forget it."
    ),
}
_FUNCTIONS: Mapping[str, Callable[[tuple[str, ...]], str]] = {
    "static numbers": _static_numbers,
    "without prints": _without_prints,
    "changed in place": _changed_in_place,
}


def note(fact: Note) -> str:
    """A note in a sentence or two.

    >>> note(Note("static numbers", ("train",)))[:24]
    "'train' is static here, "
    """
    if fact.code in _FUNCTIONS:
        return _FUNCTIONS[fact.code](fact.about)
    return _TEMPLATES[fact.code].format(*fact.about)


SENTENCES = {Note: note}
