"""by_hand(): what to write so that a collective goes, where no edit can be tried."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from shardviz.advise.advice import UNSPLIT, Advice
from shardviz.advise.backend.proposals import Wanted
from shardviz.base.backend.jax_compat import scan_counts
from shardviz.base.cause import Cause
from shardviz.programs.backend.jaxprs import operations, users_line

_SLICES = ("slice", "dynamic_slice")
_RANDOM = {"random_bits", "random_split"}


def by_hand(wanted: Wanted) -> list[Advice]:
    """Advice on a collective and its members, by what each is for."""
    found = dict[Advice, None]()
    for part in wanted.collective.members or (wanted.collective,):
        if isinstance(part.cause, Cause):
            for kind, source in _kinds(wanted, part.cause):
                axes = () if kind in ("parts", "random") else wanted.axes
                names = wanted.trials.program.mesh.axis_names
                found[Advice(kind, source, axes, all_axes={*axes} == {*names})] = None
    return [*found]


def _kinds(wanted: Wanted, cause: Cause) -> Iterator[tuple[str, str]]:
    """Kinds of advice for one cause, and the line of each."""
    # With jax 0.12 the operation is the gather itself; what asked for it is the reader.
    reader, operand = cause.wanted_by or cause.operation or cause.operand, cause.operand
    if reader is None:
        return
    name, source = reader.name, reader.source
    if cause.vmapped_loop:
        yield "loop", source
    elif name in UNSPLIT:
        yield UNSPLIT[name], source
    elif _has_random(wanted, source):
        yield "random", source
    elif (name in _SLICES or reader.code == "carried") and operand is not None:
        is_reshaped = operand.name == "reshape" and operand.source not in ("", source)
        if is_reshaped:
            yield "parts", operand.source
        elif _is_map(wanted, source):
            yield "map", source
        elif _takes_rows(wanted, source):
            yield "parts", source


def _has_random(wanted: Wanted, source: str) -> bool:
    """Whether a line makes random numbers that jax is set not to partition."""
    if jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return False
    for one in operations(wanted.trials.traced.stage.jaxpr):
        if users_line(one.equation) == source:
            # Inside functions of jax's an operation has no line of the user's.
            inner = [op.name for body in one.inner for op in operations(body)]
            if not _RANDOM.isdisjoint([one.name, *inner]):
                return True
    return False


def _is_map(wanted: Wanted, source: str) -> bool:
    """Whether a line has a scan whose steps read nothing of each other."""
    for one in operations(wanted.trials.traced.stage.jaxpr):
        if one.name == "scan" and users_line(one.equation) == source:
            return scan_counts(one.equation)[1] == 0
    return False


def _takes_rows(wanted: Wanted, source: str) -> bool:
    """Whether a line takes a part of the rows of what is split along them."""
    values = wanted.plan.by_name
    for op in wanted.plan.ops:
        if op.opcode in _SLICES and op.source == source and op.operands[0] in values:
            whole = values[op.operands[0]]
            rows, split = whole.shape[:1], whole.spec.padded(len(whole.shape))[:1]
            if (1,) < op.shape[:1] < rows and {*wanted.axes} & {*sum(split, ())}:
                return True
    return False
