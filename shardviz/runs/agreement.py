"""Finds the first difference between the processes of a run that must all do the same.

Every process of `jax.distributed` runs the same script. If one of them runs another
program, has another mesh or other values, the others wait for it in a collective, or
get wrong numbers: jax does not compare. So each process describes its call, field by
field, and `difference` finds the first field that is not the same in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardviz.base.display import Fact


@dataclass(frozen=True)
class Account:
    """The call that one process is about to make.

    Attributes:
        process: its index.
        fields: values that must be the same in all processes that have the field. They
            are compared in this order: earlier fields explain later ones.
        line: the line of the user's script that called; `""` if not known.

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
        process, fields, line = json.loads(text)
        return cls(process, fields, line)


@dataclass(frozen=True)
class Difference(Fact):
    """The first field in which processes differ.

    Attributes:
        field: its name.
        differing: the processes that differ from the reference.
        reference: the largest group of processes that agree; of groups of equal size,
            the one with the lowest process.
        value, reference_value: the field in the first process of each.
        line, reference_line: the line that called in these two processes.

    >>> accounts = [Account(i, {"mesh": "data=8"}) for i in range(3)]
    >>> different = difference([*accounts, Account(3, {"mesh": "data=4"})])
    >>> different.field, different.differing, different.value
    ('mesh', (3,), 'data=4')
    """

    field: str
    differing: tuple[int, ...]
    reference: tuple[int, ...]
    value: str
    reference_value: str
    line: str = ""
    reference_line: str = ""


def difference(accounts: Sequence[Account]) -> Difference | None:
    """The first difference between processes; None if they agree."""
    # In the order of the first account that has a field.
    names: dict[str, None] = {}
    for account in accounts:
        names.update(dict.fromkeys(account.fields))
    for name in names:
        by_value: dict[str, list[Account]] = {}
        for account in accounts:
            # A process without a shard does not differ in its values.
            if name in account.fields:
                by_value.setdefault(account.fields[name], []).append(account)
        if len(by_value) > 1:
            groups = sorted(by_value.values(), key=len, reverse=True)
            reference, differing = groups[0], groups[1]
            return Difference(
                name,
                differing=tuple(account.process for account in differing),
                reference=tuple(account.process for account in reference),
                value=differing[0].fields[name],
                reference_value=reference[0].fields[name],
                line=differing[0].line,
                reference_line=reference[0].line,
            )
    return None


@dataclass(frozen=True)
class Missing(Fact):
    """Processes that did not come to a call in time.

    Attributes:
        call: the call.
        absent: the processes that did not come.
        waiting: the processes that waited.
        seconds: how long they waited.
    """

    call: str
    absent: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class OtherFailed(Fact):
    """Another process failed before the run was over."""

    process: int
    stage: str
    message: str
