"""inherited(): copies causes from one stage's collectives to the next stage's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardviz.base.cause import UNKNOWN
from shardviz.base.collective import Collective, Member
from shardviz.base.collective_matching import amount, comes_from, match


def inherited(
    before: Sequence[Collective], after: Sequence[Collective]
) -> tuple[Collective, ...]:
    """Adds facts from the earlier stage to the collectives of the later stage.

    The partitioner's module shows whether a gather rematerialises; the final module
    doesn't always. A later collective inherits the operand and cause of the earlier
    collective it came from, and the operation and source line if the compiler lost
    them. Each member of a combined collective inherits from the collective it came
    from.

    Args:
        before, after: the collectives of the `partitioned` and `compiled` stages.

    >>> gather = Collective("all-gather", ("data",), 1024, rematerialises=True)
    >>> (compiled,) = inherited([gather], [Collective("all-gather", ("data",), 1024)])
    >>> compiled.rematerialises
    True
    """
    result = list(after)
    for m in match(before, after):
        # When several collectives become several others, they cannot be paired.
        if m.kind == "changed" and len(m.before) > 1:
            continue
        for number in m.after:
            old = []
            for i in m.before:
                # All steps of a split collective share its cause, even if their
                # kinds differ.
                is_same = m.kind == "split" or before[i].kind == after[number].kind
                if is_same or _is_own_sum(before[i], after[number]):
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
        new = replace(
            new,
            members=ordered,
            op=first.op,
            source=first.source,
            stack=first.stack,
            operand=first.operand,
            cause=first.cause,
        )
    elif len(old) == 1 and comes_from(new, old[0]) and _is_all(new, old[0], kind):
        (origin,) = old
        new = replace(
            new, operand=origin.operand, cause=origin.cause, members=origin.members
        )
    for c in old:
        if c.rematerialises and not new.rematerialises:
            new = replace(new, rematerialises=True, cause=c.cause or new.cause)
        if c.source and not new.source:
            new = replace(new, source=c.source, stack=c.stack)
            # Names without a path come from the compiler.
            if "/" not in new.op:
                new = replace(new, op=c.op)
    return new


def _is_own_sum(old: Collective, new: Collective) -> bool:
    """Whether a sum is one that the program itself calls, in another form.

    A TPU compiler writes the reduce-scatter of a small array as an all-reduce.
    """
    if not (old.definition.sums and new.definition.sums):
        return False
    return getattr(old.cause, "code", "") in ("written", "gradient")


def _is_all(new: Collective, old: Collective, kind: str) -> bool:
    """Whether a collective moves no more than an earlier one, over the same axes."""
    if new.mesh_axes != old.mesh_axes:
        return False
    if new.kind != old.kind:
        return True
    return kind != "changed" or amount(new) <= amount(old)


def _explained(
    members: Sequence[Member], old: Sequence[Collective]
) -> tuple[Member, ...]:
    """Gives each member of a combined collective the cause of an earlier collective."""
    free = list(old)
    result: list[Member] = []
    for member in members:
        certain: list[Collective] = []
        for c in free:
            if amount(c) == amount(member) and comes_from(member, c):
                certain.append(c)
        exact = [c for c in certain if c.operand == member.operand]
        candidates = exact or certain
        # Candidates with the same operation, line and operand are interchangeable.
        if len({(c.op, c.source, c.operand) for c in candidates}) == 1:
            free.remove(candidates[0])
            member = _as_member(candidates[0], member.bytes_per_device, member.shape)
        result.append(member)
    return tuple(result)


def _members_by_size(new: Collective, old: Sequence[Collective]) -> tuple[Member, ...]:
    """Infers the members of a combined collective from sizes; `()` if no sizes fit.

    An array summed over one axis after another is a single member, and so are sums that
    were added together. A collective from a loop may now cover all iterations.
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
                # `c.shape` is the shape of one iteration, not of all iterations.
                shape = c.shape if size == amount(c) else ""
                members.append(_as_member(c, share, shape))
            return tuple(members)
    return ()


def _as_member(c: Collective, size: int, shape: str) -> Member:
    return Member(
        op=c.op,
        source=c.source,
        bytes_per_device=size,
        shape=shape,
        operand=c.operand or UNKNOWN,
        stack=c.stack,
        cause=c.cause,
    )
