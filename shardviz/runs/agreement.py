"""What the processes of a run must agree on, and which of them differs.

Every process of `jax.distributed` runs the same script. Where one of them runs another
program, has another mesh or other values, the others wait for it in a collective, or
get wrong numbers: jax does not compare. Each process writes down what it is about to
do, field by field, and `difference` finds the first field that is not the same in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardviz.base.display import Fact


@dataclass(frozen=True)
class Account:
    """What one process is about to do.

    Attributes:
        process: its index.
        fields: what must be the same in all processes that have the field, in the order
            in which it is compared: what comes first explains what follows from it.
        line: the line of the user's script that called, where known.

    >>> Account.read(Account(1, {"mesh": "data=8"}).text).fields
    {'mesh': 'data=8'}
    """

    process: int
    fields: Mapping[str, str]
    line: str = ""

    @property
    def text(self) -> str:
        """The account as JSON, to be sent to the other processes."""
        return json.dumps([self.process, self.fields, self.line])

    @classmethod
    def read(cls, text: str) -> Account:
        """The account that another process sent."""
        return cls(*json.loads(text))


@dataclass(frozen=True)
class Difference(Fact):
    """The first field in which processes do not agree.

    Attributes:
        field: its name.
        odd: the processes that differ.
        others: those that they are compared with: most of them, or the first.
        here, there: what the first of either has.
        line, other_line: the line that called in each of these two.

    >>> accounts = [Account(i, {"mesh": "data=8"}) for i in range(3)]
    >>> found = difference([*accounts, Account(3, {"mesh": "data=4"})])
    >>> found.field, found.odd, found.here, found.there
    ('mesh', (3,), 'data=4', 'data=8')
    """

    field: str
    odd: tuple[int, ...]
    others: tuple[int, ...]
    here: str
    there: str
    line: str = ""
    other_line: str = ""


def difference(accounts: Sequence[Account]) -> Difference | None:
    """What the processes do not agree on first; None where they agree."""
    # In the order of the first account that has a field.
    names: dict[str, None] = {}
    for account in accounts:
        names.update(dict.fromkeys(account.fields))
    for name in names:
        groups: dict[str, list[Account]] = {}
        for account in accounts:
            # A shard that a process does not hold is nothing that it has otherwise.
            if name in account.fields:
                groups.setdefault(account.fields[name], []).append(account)
        if len(groups) > 1:
            # Of groups of equal size the one with the lowest process counts as most.
            most, odd, *_ = sorted(groups.values(), key=len, reverse=True)
            return Difference(
                name,
                tuple(account.process for account in odd),
                tuple(account.process for account in most),
                odd[0].fields[name],
                most[0].fields[name],
                odd[0].line,
                most[0].line,
            )
    return None


@dataclass(frozen=True)
class Missing(Fact):
    """Processes did not come to a call.

    Attributes:
        call: the call.
        absent: the processes that did not come.
        there: those that waited.
        seconds: how long they waited.
    """

    call: str
    absent: tuple[int, ...]
    there: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class OtherFailed(Fact):
    """Another process failed before the run was over."""

    process: int
    stage: str
    message: str
