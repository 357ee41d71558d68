"""by_hand(): code that removes a collective when no edit can be tried for it."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from shardviz.advise.advice import UNSPLIT, Advice
from shardviz.advise.backend.proposals import UnwantedCollective
from shardviz.base.backend.jax_compat import scan_counts
from shardviz.base.cause import Cause, Reduced
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.jaxprs import operations, users_line

_SLICES = ("slice", "dynamic_slice")
_RANDOM = {"random_bits", "random_split"}


def by_hand(unwanted: UnwantedCollective) -> list[Advice]:
    """Returns advice for removing a collective, based on the causes of its members."""
    # A dict removes duplicates: several members may have the same advice.
    advice = dict[Advice, None]()
    mesh_axes = {*unwanted.trials.program.mesh.axis_names}
    for member in unwanted.collective.members or (unwanted.collective,):
        if isinstance(member.cause, Cause):
            for kind, source in _kinds(unwanted, member.cause):
                axes = () if kind in ("parts", "random") else unwanted.axes
                advice[Advice(kind, source, axes, all_axes={*axes} == mesh_axes)] = None
    return [*advice]


def _kinds(unwanted: UnwantedCollective, cause: Cause) -> Iterator[tuple[str, str]]:
    """Yields (kind of advice, source line) pairs for one cause."""
    reader, operand = cause.reader, cause.operand
    name, source = reader.name, reader.source
    if isinstance(cause, Reduced) and cause.vmapped_loop:
        yield "loop", source
    elif name in UNSPLIT:
        yield UNSPLIT[name], source
    elif _has_random(unwanted, source):
        yield "random", source
    elif name in _SLICES or reader.code == "carried":
        is_reshaped = operand.name == "reshape" and operand.source not in ("", source)
        if is_reshaped:
            yield "parts", operand.source
        elif _is_map(unwanted, source):
            yield "map", source
        elif _slices_split_rows(unwanted, source):
            yield "parts", source


def _has_random(unwanted: UnwantedCollective, source: str) -> bool:
    """Whether a source line generates random numbers that jax does not partition."""
    if jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return False
    for operation in operations(unwanted.trials.traced.stage.jaxpr):
        if users_line(operation.equation) != source:
            continue
        # Operations inside jax's own functions have no source line in user code.
        names = {operation.name}
        for body in operation.inner:
            names |= {inner.name for inner in operations(body)}
        if names & _RANDOM:
            return True
    return False


def _is_map(unwanted: UnwantedCollective, source: str) -> bool:
    """Whether a source line has a scan without a carry, such as `jax.lax.map`."""
    for operation in operations(unwanted.trials.traced.stage.jaxpr):
        if operation.name == names.SCAN and users_line(operation.equation) == source:
            return scan_counts(operation.equation)[1] == 0
    return False


def _slices_split_rows(unwanted: UnwantedCollective, source: str) -> bool:
    """Whether a source line slices a value along rows that are split over the axes."""
    values = unwanted.plan.by_name
    for op in unwanted.plan.ops:
        if op.opcode in _SLICES and op.source == source and op.operands[0] in values:
            operand = values[op.operands[0]]
            rows = operand.shape[:1]
            split = operand.spec.padded(len(operand.shape))[:1]
            if (1,) < op.shape[:1] < rows and {*unwanted.axes} & {*sum(split, ())}:
                return True
    return False
