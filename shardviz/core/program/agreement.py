"""What the processes of a run must agree on, and which of them differs.

Every process of `jax.distributed` runs the same script. Where one of them runs another
program, has another mesh or other values, the others wait for it in a collective, or
get wrong numbers: jax does not compare. Each process describes what it is about to do
(`Account`), and `difference` finds the first thing that is not the same in all.
`wording/agreement.py` says what is found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardviz.core.display import Fact
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.transfer.process_rows import process_rows

#: Name, type of the result and source line.
Operation = tuple[str, str, str]

# What is compared, in this order: what comes first explains what follows from it.
COMPARED = (
    "call",
    "versions",
    "platform",
    "mesh",
    "devices",
    "arguments",
    "options",
    "program",
)


@dataclass(frozen=True)
class Account:
    """What one process is about to do.

    Attributes:
        process: its index.
        call: the call, `"sv.run('step')"`.
        versions: of jax and jaxlib.
        platform: the kind of its devices, and their driver.
        mesh: the axes of the mesh.
        devices: the device ids, in mesh order.
        arguments: name to type, shape and spec.
        options: compiler options, donation, and how often to run.
        program: the fingerprint of the lowered program.
        values: name to a digest of a value that all processes must give alike; of an
            array over several processes, the digest of every shard that another process
            holds too, by its indices.
        line: the line of the user's script that called, where known.

    >>> Account.read(Account(1, "sv.run('step')").text).process
    1
    """

    process: int
    call: str
    versions: str = ""
    platform: str = ""
    mesh: str = ""
    devices: tuple[int, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    options: str = ""
    program: str = ""
    values: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    line: str = ""

    @property
    def text(self) -> str:
        """The account as JSON, to be sent to the other processes."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Account:
        """The account that another process sent."""
        fields = json.loads(text)
        return cls(**{**fields, "devices": tuple(fields["devices"])})


@dataclass(frozen=True)
class Difference(Fact):
    """The first thing that processes do not agree on.

    Attributes:
        what: the field of Account that differs; of values `"values"` (other numbers),
            `"shards"` (other numbers in a shard that both hold) or `"value kinds"` (an
            array over several processes, and a value of one).
        odd: the processes that differ.
        others: those that they are compared with: most of them, or the first.
        here, there: the accounts of the first of either.
        name: of values, whose; of shards with the indices of the shard.
        operations: of programs, the first operation that differs, here and there; None
            where their operations are the same.

    >>> accounts = [Account(i, "sv.run('step')", mesh="data=8") for i in range(3)]
    >>> found = difference([*accounts, Account(3, "sv.run('step')", mesh="data=4")])
    >>> found.what, found.odd, found.there.mesh
    ('mesh', (3,), 'data=8')
    """

    what: str
    odd: tuple[int, ...]
    others: tuple[int, ...]
    here: Account
    there: Account
    name: str = ""
    operations: tuple[Operation | None, Operation | None] | None = None


def difference(accounts: Sequence[Account]) -> Difference | None:
    """What the processes do not agree on first; None where they agree."""
    for what in COMPARED:
        values = {a.process: getattr(a, what) for a in accounts}
        if found := _difference(what, values, accounts):
            return found
    names: set[str] = set()
    for account in accounts:
        names.update(account.values)
    for name in sorted(names):
        if found := _value_difference(name, accounts):
            return found
    return None


def _difference(
    what: str, values: Mapping[int, Any], accounts: Sequence[Account], name: str = ""
) -> Difference | None:
    """The processes of the first value that is not that of most, and those of most."""
    groups: dict[str, list[int]] = {}
    for process in sorted(values):
        groups.setdefault(json.dumps(values[process]), []).append(process)
    if len(groups) < 2:
        return None
    # Of groups of equal size the one with the lowest process counts as most.
    most, odd, *_ = sorted(groups.values(), key=len, reverse=True)
    by_process = {account.process: account for account in accounts}
    here, there = by_process[odd[0]], by_process[most[0]]
    return Difference(what, tuple(odd), tuple(most), here, there, name)


def _value_difference(name: str, accounts: Sequence[Account]) -> Difference | None:
    values = {account.process: account.values.get(name, "") for account in accounts}
    # A digest is text; an array over several processes has one for each shard.
    local = {process: isinstance(value, str) for process, value in values.items()}
    if found := _difference("value kinds", local, accounts, name):
        return found
    if all(local.values()):
        return _difference("values", values, accounts, name)
    indices: set[str] = set()
    for shards in values.values():
        indices.update(shards)
    for index in sorted(indices):
        holders: dict[int, str] = {}
        for process, shards in values.items():
            if not isinstance(shards, str) and index in shards:
                holders[process] = shards[index]
        if found := _difference("shards", holders, accounts, f"{name}[{index}]"):
            return found
    return None


def first_other_operation(
    here: Sequence[Operation], there: Sequence[Operation]
) -> tuple[Operation | None, Operation | None] | None:
    """The first operation that differs between two programs, as it is in each.

    None stands for an operation that the other program has in addition; None for both
    where the operations are the same, and their parameters or constants differ.

    >>> here, there = ("mul", "f32[8]", "f.py:3"), ("reduce_sum", "f32[]", "f.py:3")
    >>> first_other_operation([here, there], [there])
    (('mul', 'f32[8]', 'f.py:3'), None)
    """
    here, there = list(here), list(there)
    # What is the same at both ends says nothing of the difference.
    while here and there and here[-1] == there[-1]:
        del here[-1], there[-1]
    while here and there and here[0] == there[0]:
        del here[0], there[0]
    if not here and not there:
        return None
    return next(iter(here), None), next(iter(there), None)


@dataclass(frozen=True)
class Missing(Fact):
    """Processes did not come to a call.

    Attributes:
        call: the call.
        absent: the processes that did not come.
        there: those that wait.
        seconds: how long they have waited.
        ended: whether they wait no longer.
    """

    call: str
    absent: tuple[int, ...]
    there: tuple[int, ...]
    seconds: float
    ended: bool = True


@dataclass(frozen=True)
class Silent(Fact):
    """Processes have given no sign of life for a while.

    Attributes:
        processes: which.
        stage: the stage that the first of them was in last; `""` where not known.
        seconds: for how long.
    """

    processes: tuple[int, ...]
    stage: str
    seconds: float


@dataclass(frozen=True)
class OtherFailed(Fact):
    """Another process failed before the run was over."""

    process: int
    stage: str
    message: str


@dataclass(frozen=True)
class BrokenBlocks(Fact):
    """Arrays of which a process holds no one block of rows, or not its own in order.

    A loader that reads as many rows as process 0 needs, from where its number says,
    then puts rows where others belong.

    Attributes:
        arrays: of each its name, the first such process, and the ranges of rows that it
            holds.
    """

    arrays: tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...]


def broken_blocks(layouts: Mapping[str, Layout]) -> BrokenBlocks | None:
    """Which arguments have rows of processes that are apart; None where none have.

    Args:
        layouts: the arguments of a run by name, on a mesh with the processes of its
            devices.
    """
    arrays = []
    for name, layout in layouts.items():
        parts = process_rows(layout).parts if layout.rank else ()
        if len({part.rows for part in parts}) < 2:
            continue  # every process has all rows
        starts = [part.rows[0][0] for part in parts]
        gaps = any(len(part.rows) > 1 for part in parts)
        for part, start, own in zip(parts, sorted(starts), starts, strict=True):
            # Several ranges; or where all have one, a block that belongs to another.
            if len(part.rows) > 1 or (own != start and not gaps):
                arrays.append((name, part.process, part.rows))
                break
    return BrokenBlocks(tuple(arrays)) if arrays else None
