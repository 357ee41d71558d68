"""What processes of one run do not agree on, and which of them is missing or failed."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.core.format import by_count, clause, joined, processes
from shardviz.core.layout.transfer.process_rows import ranges_text
from shardviz.core.program.agreement import (
    BrokenBlocks,
    Difference,
    Missing,
    Operation,
    OtherFailed,
    Silent,
)

_SAME_SCRIPT = "Every process must run the same script"
_SAME_PROGRAM = (
    "Every process must run the same program, else they wait for one another or compute"
    " wrong numbers: look for what depends on jax.process_index(), on files of one"
    " process, or on random numbers without a fixed seed."
)


class _Sides:
    """The two sides of a difference, with verbs for one process or several."""

    def __init__(self, fact: Difference) -> None:
        self.odd, self.count = processes(fact.odd), len(fact.odd)
        self.others, self.others_have = "the others", "have"
        # A single one by its number: "the others" would be several.
        if len(fact.others) == 1:
            self.others, self.others_have = processes(fact.others).lower(), "has"

    def verb(self, one: str, several: str) -> str:
        """The odd processes with a verb: `Process 1 has`."""
        return f"{self.odd} {by_count(self.count, one, several)}"

    def differ(self, here: str, there: str, what: str = "") -> str:
        """`Process 1 has the mesh data=4, and the others have data=8.`"""
        return (
            f"{self.verb('has', 'have')} {what}{here}, and {self.others}"
            f" {self.others_have} {there}."
        )


def difference(fact: Difference) -> str:
    """Which process differs, how, and what to do.

    >>> from shardviz.core.program.agreement import Account, difference as compare
    >>> accounts = [Account(i, "sv.run('f')", mesh=f"x={4 - i}") for i in range(2)]
    >>> print(difference(compare(accounts)).partition(".")[0])
    Process 1 has the mesh x=3, and process 0 has x=4
    """
    return _DIFFERENCES[fact.what](_Sides(fact), fact)


def _call(sides: _Sides, fact: Difference) -> str:
    here, there = fact.here, fact.there
    at, other_at = clause(" ({})", here.line), clause(" ({})", there.line)
    are = by_count(len(fact.others), "is", "are")
    return (
        f"{sides.verb('is', 'are')} at {here.call}{at}, and {sides.others} {are} at"
        f" {there.call}{other_at}. {_SAME_SCRIPT}, with the same calls in the same"
        " order: look for a branch on jax.process_index() or on data that one process"
        " has."
    )


def _versions(sides: _Sides, fact: Difference) -> str:
    versions = sides.differ(fact.here.versions, fact.there.versions)
    return f"{versions} Install the same versions for every process."


def _platform(sides: _Sides, fact: Difference) -> str:
    devices = sides.differ(fact.here.platform, fact.there.platform, "devices of ")
    return f"{devices} One program runs on devices of one kind."


def _mesh(sides: _Sides, fact: Difference) -> str:
    meshes = sides.differ(fact.here.mesh, fact.there.mesh, "the mesh ")
    return f"{meshes} Make the same mesh in every process."


def _devices(sides: _Sides, fact: Difference) -> str:
    here = joined(fact.here.devices, limit=8)
    there = joined(fact.there.devices, limit=8)
    order = sides.differ(here, there, "the devices of the mesh in the order ")
    return (
        f"{order} Make the mesh from jax.devices() in the same order in every process;"
        " jax.make_mesh does."
    )


def _arguments(sides: _Sides, fact: Difference) -> str:
    mine, theirs = fact.here.arguments, fact.there.arguments
    for name in dict.fromkeys([*theirs, *mine]):
        here, there = mine.get(name), theirs.get(name)
        if here is None or there is None:
            which = "an argument"
            if here is None:
                which = "no argument"
            return (
                f"{sides.verb('has', 'have')} {which} {name}, unlike {sides.others}."
                f" {_SAME_SCRIPT}."
            )
        if here != there:
            return (
                f"{sides.differ(here, there, f'{name} as ')} Arrays must have the same"
                " shape, dtype and spec in every process."
                f" {_advice_on_argument(here, there)}"
            )
    # All arguments are alike: what differs is their order.
    order = f"{joined(mine)} instead of {joined(theirs)}"
    return (
        f"{sides.verb('has', 'have')} the arguments in another order than"
        f" {sides.others}: {order}. {_SAME_SCRIPT}."
    )


def _advice_on_argument(here: str, there: str) -> str:
    # An argument is described as "float32[8, 4] as P('data')".
    type_, _, spec = here.partition(" as ")
    other_type, _, other_spec = there.partition(" as ")
    if spec != other_spec:
        return "Look for a spec or rules that depend on the process."
    if type_.partition("[")[0] != other_type.partition("[")[0]:
        return (
            "Where jax.make_array_from_process_local_data made it, the local data has"
            " another dtype there: convert it with .astype."
        )
    return (
        "Where jax.make_array_from_process_local_data made it, the local batch has"
        " another size there: give every process as many rows as sv.process_rows says."
    )


def _options(sides: _Sides, fact: Difference) -> str:
    options = sides.differ(fact.here.options, fact.there.options)
    return f"{options} {_SAME_SCRIPT}, with the same options."


def _program(sides: _Sides, fact: Difference) -> str:
    runs = f"{sides.verb('runs', 'run')} another program than {sides.others}"
    if fact.operations is None:
        # The fingerprint covers more than the operations.
        return (
            f"{runs}: the same operations with other parameters, such as the spec of a"
            " constraint, or with other values that the function closes over."
            f" {_SAME_PROGRAM}"
        )
    here, there = (operation and _operation(operation) for operation in fact.operations)
    if here and there:
        return f"{runs}: {here} instead of {there}. {_SAME_PROGRAM}"
    if here:
        return f"{runs}: with {here} in addition. {_SAME_PROGRAM}"
    return f"{runs}: without {there}. {_SAME_PROGRAM}"


def _operation(operation: Operation) -> str:
    name, type_, line = operation
    return f"{name} ({type_}){clause(' at {}', line)}"


def _value_kinds(sides: _Sides, fact: Difference) -> str:
    here, there = "an array over several processes", "a value of its own"
    # Of a value of its own a process tells the fingerprint, a text.
    if isinstance(fact.here.values.get(fact.name, ""), str):
        here, there = there, here
    return (
        f"{sides.verb('gives', 'give')} {here} for {fact.name}, and {sides.others}"
        f" {there}. Give the same in every process."
    )


def _values(sides: _Sides, fact: Difference) -> str:
    return (
        f"{sides.verb('gives', 'give')} other values for {fact.name} than"
        f" {sides.others}. A numpy array, a number or an array on devices of one"
        f" process stands for all of {fact.name} and must be the same in every process."
        " Where each process has rows of its own, make the array with"
        " jax.make_array_from_process_local_data."
    )


def _shards(sides: _Sides, fact: Difference) -> str:
    # "The others" would be all processes, and not all hold this shard.
    others = processes(fact.others).lower()
    return (
        f"{sides.verb('holds', 'hold')} other values of {fact.name} than {others}, and"
        " all of them hold that shard. Processes with the same shards must give the"
        " same local data: sv.process_rows says which rows every process loads."
    )


_DIFFERENCES: dict[str, Callable[[_Sides, Difference], str]] = {
    "call": _call,
    "versions": _versions,
    "platform": _platform,
    "mesh": _mesh,
    "devices": _devices,
    "arguments": _arguments,
    "options": _options,
    "program": _program,
    "value kinds": _value_kinds,
    "values": _values,
    "shards": _shards,
}


def missing(fact: Missing) -> str:
    """Which processes did not come to a call.

    >>> print(missing(Missing("sv.run('step')", (3,), (0, 1), 30, ended=False)))
    Process 3 has not reached sv.run('step') within 30 s; the others wait for it.
    """
    count = len(fact.absent)
    others, wait = "the others", "wait"
    if len(fact.there) == 1:
        others, wait = processes(fact.there).lower(), "waits"
    absent, it = processes(fact.absent), by_count(count, "it", "them")
    within = f"{fact.call} within {fact.seconds:.3g} s; {others}"
    if not fact.ended:
        have = by_count(count, "has", "have")
        return f"{absent} {have} not reached {within} {wait} for {it}."
    they_are, their = (
        by_count(count, "It is", "They are"),
        by_count(count, "its", "their"),
    )
    return (
        f"{absent} did not reach {within} waited for {it}, and nothing ran. {they_are}"
        f" in another branch of the script, still busy, or ended: look at {their}"
        " output. Every process must make this call; the environment variable"
        " SHARDVIZ_WAIT says how many seconds to wait."
    )


def silent(fact: Silent) -> str:
    """That processes have given no sign of life for a while."""
    where = clause(", last in the stage {!r}", fact.stage)
    have, they, their, them = "have", "they", "their", "them"
    if len(fact.processes) == 1:
        have, they, their, them = "has", "it", "its", "it"
    return (
        f"{processes(fact.processes)} {have} given no sign for {fact.seconds:.3g} s"
        f"{where}: {they} died, or {their} machine stopped {them} or is overloaded."
    )


def other_failed(fact: OtherFailed) -> str:
    """That another process failed before the run was over."""
    return (
        f"Process {fact.process} failed in the stage {fact.stage!r}, so no process goes"
        f" on: {fact.message}"
    )


def broken_blocks(fact: BrokenBlocks) -> str:
    """A note on arrays of which a process holds no one block of rows."""
    rows = []
    for name, process, ranges in fact.arrays:
        rows.append(f"process {process} holds rows {ranges_text(ranges)} of {name}")
    return (
        "The order of the mesh's devices parts the rows of processes:"
        f" {joined(rows, limit=2)}. Each process loads its own rows in this order, as"
        " sv.process_rows says; a mesh in the order of jax.devices() gives every"
        " process one block."
    )


SENTENCES = {
    Difference: difference,
    Missing: missing,
    Silent: silent,
    OtherFailed: other_failed,
    BrokenBlocks: broken_blocks,
}
