"""Finds the first difference between the calls of several processes.

All processes of `jax.distributed` must run the same program on the same mesh with
consistent values. jax does not check this: if one process differs, the others wait for
it in a collective, or all compute wrong numbers. Each process therefore describes its
call field by field, and `difference` finds the first field that differs.
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
        process: index of the process.
        fields: field name -> text that must be the same in all processes that have the
            field. Fields are compared in this order, because a difference in an earlier
            field explains the differences in later fields.
        line: source line of the call in the user's script; `""` if unknown.

    >>> Account.read(Account(1, {"mesh": "data=8"}).text).fields
    {'mesh': 'data=8'}
    """

    process: int
    fields: Mapping[str, str]
    line: str = ""

    @property
    def text(self) -> str:
        """The account as JSON, to send to the other processes."""
        return json.dumps([self.process, self.fields, self.line])

    @classmethod
    def read(cls, text: str) -> Account:
        """Parses an account that another process sent."""
        process, fields, line = json.loads(text)
        return cls(process, fields, line)


@dataclass(frozen=True)
class Difference(Fact):
    """The first field in which processes differ.

    Attributes:
        field: name of the field.
        reference: the largest group of processes that agree; if several groups are
            equally large, the group with the lowest process.
        differing: the largest group that agrees on another value.
        value, reference_value: the field's text in `differing` and in `reference`.
        line, reference_line: source line of the call in the first process of each
            group; `""` if unknown.

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
    """Returns the first difference between processes; None if they agree."""
    # Field names of all accounts, in order of first appearance.
    names: dict[str, None] = {}
    for account in accounts:
        names.update(dict.fromkeys(account.fields))
    for name in names:
        by_value: dict[str, list[Account]] = {}
        for account in accounts:
            # A process without a shard has no field for it and is not compared.
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
    """Processes that did not reach a call in time.

    Attributes:
        call: the call.
        absent: the processes that did not reach it.
        waiting: the processes that waited.
        seconds: how long these processes waited.
    """

    call: str
    absent: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class OtherFailed(Fact):
    """Another process failed before the run ended."""

    process: int
    stage: str
    message: str
