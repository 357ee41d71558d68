"""inherited(): what the collectives of a later stage keep of those that they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardviz.base.cause import UNKNOWN
from shardviz.base.collective import Collective, Member
from shardviz.base.collective_matching import amount, comes_from, match


def inherited(
    before: Sequence[Collective], after: Sequence[Collective]
) -> tuple[Collective, ...]:
    """The collectives of a later stage, with what is known only of the earlier one.

    Whether a gather rematerialises can be seen in the partitioner's module, and in the
    final one not always. What a collective became inherits its operand and its cause,
    and its operation and source line where the compiler lost them. Of a combined one
    each member inherits from the collective that it was.

    Args:
        before, after: the collectives of two stages, `partitioned` and `compiled`.

    >>> gather = Collective("all-gather", ("data",), 1024, rematerialises=True)
    >>> (found,) = inherited([gather], [Collective("all-gather", ("data",), 1024)])
    >>> found.rematerialises
    True
    """
    result = list(after)
    for m in match(before, after):
        # Of several that became several nobody knows which each was.
        if m.kind == "changed" and len(m.before) > 1:
            continue
        for number in m.after:
            old = []
            for i in m.before:
                # Every step of what was split is for the same, whatever its kind.
                if m.kind == "split" or before[i].kind == after[number].kind:
                    old.append(before[i])
            result[number] = _with(after[number], old, m.kind)
    return tuple(result)


def _with(new: Collective, old: Sequence[Collective], kind: str) -> Collective:
    members: tuple[Member, ...] = ()
    if new.members:
        members = _explained(new.members, old)
    elif kind == "combined" and len(old) > 1 and new.operand in (None, UNKNOWN):
        members = _members_by_size(new, old)
    if members:
        ordered = tuple(sorted(members, key=lambda m: -m.bytes_per_device))
        first = ordered[0]
        own = {"op": first.op, "source": first.source, "stack": first.stack}
        about = {"operand": first.operand, "cause": first.cause}
        new = replace(new, members=ordered, **own, **about)
    elif len(old) == 1 and comes_from(new, old[0]) and _is_all(new, old[0], kind):
        (one,) = old
        new = replace(new, operand=one.operand, cause=one.cause, members=one.members)
    for c in old:
        if c.rematerialises and not new.rematerialises:
            new = replace(new, rematerialises=True, cause=c.cause or new.cause)
        if c.source and not new.source:
            new = replace(new, source=c.source, stack=c.stack)
            # A name without a path is the compiler's own.
            if "/" not in new.op:
                new = replace(new, op=c.op)
    return new


def _is_all(new: Collective, old: Collective, kind: str) -> bool:
    """Whether one is about nothing but what the other was about, over the same axes."""
    if new.mesh_axes != old.mesh_axes:
        return False
    return kind != "changed" or amount(new) <= amount(old)


def _explained(
    members: Sequence[Member], old: Sequence[Collective]
) -> tuple[Member, ...]:
    """The members of a combined collective, each with what is known of what it was."""
    free, result = list(old), []
    for member in members:
        certain = []
        for c in free:
            if amount(c) == amount(member) and comes_from(member, c):
                certain.append(c)
        exact = [c for c in certain if c.operand == member.operand]
        sure = exact or certain
        # Of several of one place and operand any will do, as they are alike.
        if len({(c.op, c.source, c.operand) for c in sure}) == 1:
            free.remove(sure[0])
            member = _as_member(sure[0], member.bytes_per_device, member.shape)
        result.append(member)
    return tuple(result)


def _members_by_size(new: Collective, old: Sequence[Collective]) -> tuple[Member, ...]:
    """The members of a packed collective that names none; `()` where no sizes fit.

    Of sums over one axis after the other each array is a member once, and so it is of
    sums that are added up. What was in a loop may be there for all iterations.
    """
    choices = [list(old)]
    for axis in new.mesh_axes:
        choices.append([c for c in old if axis in c.mesh_axes])
    added: dict[str | int, Collective] = {}
    for number, c in enumerate(old):
        added[c.added_in or number] = c
    choices.append(list(added.values()))
    for chosen in choices:
        once = [amount(c) for c in chosen]
        often = [amount(c) * c.execution_count for c in chosen]
        for sizes in (once, often):
            total = sum(sizes)
            if not 0 < total == amount(new):
                continue
            members: list[Member] = []
            for c, size in zip(chosen, sizes, strict=True):
                share = new.bytes_per_device * size // total
                # All iterations together have another shape than one.
                shape = c.shape if size == amount(c) else ""
                members.append(_as_member(c, share, shape))
            return tuple(members)
    return ()


def _as_member(c: Collective, size: int, shape: str) -> Member:
    operand = c.operand or UNKNOWN
    return Member(c.op, c.source, size, shape, operand, c.stack, c.cause)
