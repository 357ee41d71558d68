"""read_collectives(): the collectives of a compiled module."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shardviz.base.axis_parts import parent_axis
from shardviz.base.cause import Cause
from shardviz.base.collective import Collective, Member
from shardviz.base.collective_kind import KINDS, SUMS
from shardviz.base.replica_groups import Groups, Replicas, replicas_of
from shardviz.compiled.causes import NOBODY, Causes, rematerialised
from shardviz.compiled.loops import Loops
from shardviz.compiled.module import (
    INSTRUCTION,
    Computation,
    Instruction,
    InstructionSource,
    Module,
    Shape,
)
from shardviz.compiled.read_groups import GroupReader, pairs_of, slices_of
from shardviz.compiled.rematerialization import rematerialized

_NOT_ASYNC = '"is_sync":true'
_MOST_ADDITIONS = 4096
# What may be done to a sum before it is added to others.
_UNCHANGED = ("convert", "copy", "bitcast", "reshape", "transpose")
# The hosts carry out what goes from slice to slice, by these attributes.
_TRANSFER = "_xla_megascale_transfer_type"
_TARGET = "_xla_megascale_target"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_CROSSINGS = {kind.megascale: name for name, kind in KINDS.items() if kind.megascale}
#: The name of a computation of TPUs that one slice alone runs.
_ONE_SLICE = "localizer"


def read_collectives(
    module: Module,
    axis_names: Sequence[str],
    axis_sizes: Sequence[int],
    device_ids: Sequence[int] = (),
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Collective, ...]:
    """Every collective of a compiled module, each counted once, in its order.

    Args:
        module: what XLA made of a program.
        axis_names, axis_sizes: the mesh the module was compiled for, in its order.
        device_ids: the devices of the mesh, in its order; needed for several slices of
            TPUs, whose final module is that of one slice.
        arguments: what the module calls an argument, to the program's name for it.
    """
    reader = _Reader(module, axis_names, axis_sizes, device_ids, arguments)
    collectives: list[Collective] = []
    for instruction in reader.each_once():
        if instruction.opcode == "recv":
            collectives.append(reader.crossing(instruction))
        else:
            collectives.append(reader.collective(instruction))
    return tuple(collectives)


class _Reader:
    """Reads the collectives of one module."""

    def __init__(
        self,
        module: Module,
        names: Sequence[str],
        sizes: Sequence[int],
        ids: Sequence[int],
        arguments: Mapping[str, str],
    ) -> None:
        self.module = module
        self.names, self.sizes = names, sizes
        self.arguments = arguments
        self.causes, self.loops = Causes(arguments), Loops()
        self.slices = slices_of(module, ids)
        self.groups = GroupReader(names, sizes, self.slices)
        # Of a permutation that slices do in their own way, what all of them move.
        self.by_slice: dict[Instruction, Groups] = {}

    def each_once(self) -> list[Instruction]:
        """The instructions with a collective, without repetitions."""
        chains: set[Hashable] = set()
        result: list[Instruction] = []
        for one in self.module.instructions():
            if one.opcode == "recv":
                if one.frontend.get(_TRANSFER) in _CROSSINGS:
                    result.append(one)
            elif one.kind and not one.opcode.endswith(("-done", "-update")):
                # TPU's compiler splits a collective into parts that share a channel
                # and a chain, and fuses each with other work. The first part counts.
                chain = _chain(one)
                if chain is None or chain not in chains:
                    result.append(one)
                chains.add(chain)
        if self.slices is not None:
            return self._of_all_slices(result)
        return result

    def _of_all_slices(self, given: list[Instruction]) -> list[Instruction]:
        """Joins permutations that the compiler wrote once for each slice.

        One that moves nothing inside a slice is dropped: the send between slices is all
        of it.
        """
        assert self.slices is not None
        result: list[Instruction] = []
        first: dict[Instruction, Instruction] = {}
        for one in given:
            branch = _branch_of(one.computation)
            if branch is None or not one.kind or not KINDS[one.kind].pairs:
                result.append(one)
                continue
            conditional, number = branch
            if conditional not in first:
                first[conditional] = one
                result.append(one)
            here = self.slices.spread(pairs_of(one), number)
            joint = first[conditional]
            self.by_slice[joint] = self.by_slice.get(joint, ()) + here
        # What sends to itself only moves nothing.
        for one, pairs in self.by_slice.items():
            if all(sender == receiver for sender, receiver in pairs):
                result.remove(one)
        return result

    def collective(self, own: Instruction) -> Collective:
        """What one instruction says."""
        kind, shapes = own.kind, _result_shapes(own)
        replicas = self._whole(self.groups.of(own))
        if own in self.by_slice:
            replicas = replicas_of(self.by_slice[own], True, self.names, self.sizes)
        size = sum(shape.bytes for shape in shapes)
        name = own.computation.name
        if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            # TPU's form of a reduce-scatter: an all-reduce fused with the slice that
            # each device keeps, so that its result has the shape of the operand.
            kind = "reduce-scatter"
        elif KINDS[kind].counts_operand:
            size *= replicas.size or math.prod(self.sizes)
        base = Cause(kind, replicas.axes, replicas.parts)
        remade = None
        if kind == "all-gather":
            remade = rematerialized(own, self.module)
        members = self._members(own, base, shapes, size)
        if members:
            first = members[0]
            source = InstructionSource(first.op, first.source, first.stack)
            operand, cause = first.operand, first.cause
        else:
            values = [self.causes.value(o, own, kind) for o in own.operands]
            # Of several that are not one value, none is the operand.
            value = NOBODY
            if len({other.name for other in values}) == 1:
                value = values[0]
            source = self.causes.source(value, own, kind)
            operand, cause = value.name, self.causes.cause(value, own, base)
        if remade is not None:
            cause = rematerialised(replace(cause, operand=operand), remade)
        added_in = ""
        if kind == "all-reduce" and not members:
            added_in = _added_in(own)
        made = self._made(own, source, cause, replicas)
        return replace(
            made,
            bytes_per_device=size,
            is_async=_is_async(own),
            shape=_text_of(shapes),
            rematerialises=remade is not None,
            operand=operand,
            members=members,
            added_in=added_in,
        )

    def _made(
        self,
        own: Instruction,
        source: InstructionSource,
        cause: Cause,
        replicas: Replicas,
    ) -> Collective:
        runs = self.loops.count(own.computation)
        return Collective(
            kind=cause.kind,
            mesh_axes=replicas.axes,
            bytes_per_device=0,
            op=self.arguments.get(source.op, source.op),
            source=source.source,
            groups=replicas.groups,
            in_loop=runs.in_loop,
            name=own.name,
            trips=runs.trips,
            stack=source.stack,
            group_size=replicas.size,
            cause=cause,
            parts=cause.parts,
        )

    def _members(
        self, own: Instruction, base: Cause, shapes: Sequence[Shape], size: int
    ) -> tuple[Member, ...]:
        """The arrays of a combined collective, the largest first; `()` for one array.

        Their bytes sum up to its `size`.
        """
        kind, reads = base.kind, own.operands
        one_array = KINDS[kind].tuple_is_one_array or len(reads) < 2
        if one_array or len(reads) != len(shapes):
            return ()
        # The bytes of a reduce-scatter are those of its operand.
        times = size // max(1, sum(shape.bytes for shape in shapes))
        members: list[Member] = []
        for number, (read, shape) in enumerate(zip(reads, shapes, strict=True)):
            value = self.causes.value(read, own, kind)
            source = self.causes.source_of_part(value, own, kind, number)
            members.append(
                Member(
                    self.arguments.get(source.op, source.op),
                    source.source,
                    shape.bytes * times,
                    str(shape),
                    value.name,
                    source.stack,
                    self.causes.cause(value, own, base, source, number),
                )
            )
        return tuple(sorted(members, key=lambda m: -m.bytes_per_device))

    def _whole(self, replicas: Replicas) -> Replicas:
        """Groups without parts of axes, if a step goes from slice to slice.

        A collective over an axis is a step within the slices and one between them.
        """
        if self.slices is None:
            return replicas
        axes = tuple(dict.fromkeys(map(parent_axis, replicas.axes)))
        return replicas._replace(axes=axes, parts=())

    def crossing(self, receive: Instruction) -> Collective:
        """A collective between slices, which the hosts execute."""
        kind = _CROSSINGS[receive.frontend[_TRANSFER]]
        groups: Groups = ()
        if self.slices is not None:
            groups = self.slices.crossing(receive.frontend.get(_TARGET, ""))
        paired = KINDS[kind].pairs
        replicas = self._whole(replicas_of(groups, paired, self.names, self.sizes))
        shape = receive.shapes[0]  # the others are its context and its token
        size = shape.bytes
        if KINDS[kind].counts_operand:
            size *= replicas.size or math.prod(self.sizes)
        send = _send_of(receive)
        value = NOBODY
        if send.operands:
            value = self.causes.value(send.operands[0], send, kind)
        # A sum is made before it is sent; a gather is for what reads it.
        own = send if kind in SUMS else receive
        base = Cause(kind, replicas.axes, replicas.parts)
        cause = self.causes.cause(value, own, base)
        source = self.causes.source(value, own, kind)
        made = self._made(receive, source, cause, replicas)
        return replace(
            made,
            bytes_per_device=size,
            is_async=True,
            shape=str(shape),
            between_slices=True,
            operand=value.name,
        )


def _chain(own: Instruction) -> Hashable:
    """What the parts of a split collective share; None for one that is not split."""
    number = own.frontend.get("chain_id")
    channel = own.attributes.number(INSTRUCTION["channel_id"])
    if number is None or not channel:
        return None
    # The computation that calls the fusion around a part.
    host = own.computation
    for _ in range(4):
        calls = [c for c in host.callers if c.opcode in ("fusion", "async-start")]
        if not calls:
            break
        host = calls[0].computation
    return own.kind, channel, number, host


def _branch_of(computation: Computation) -> tuple[Instruction, int] | None:
    """The conditional that runs a computation in one slice, and that slice's number."""
    if not computation.name.startswith(_ONE_SLICE):
        return None
    for call in computation.callers:
        if call.opcode == "conditional":
            return call, call.called.index(computation)
    return None


def _send_of(receive: Instruction) -> Instruction:
    """The `send` of a `recv`: the one with the same rendezvous name."""
    name = receive.frontend.get(_RENDEZVOUS)
    for one in receive.computation.module.instructions():
        if one.opcode == "send" and name and one.frontend.get(_RENDEZVOUS) == name:
            return one
    return receive


def _is_async(own: Instruction) -> bool:
    """Whether other work can run meanwhile.

    GPU's compiler makes every collective a start and a done, and marks those that it
    waits for at once.
    """
    if own.opcode.endswith("-start"):
        return _NOT_ASYNC not in own.backend_config
    for call in own.computation.callers:
        if call.opcode == "async-start":
            return _NOT_ASYNC not in call.backend_config
    return "chain_id" in own.frontend


def _result_shapes(own: Instruction) -> tuple[Shape, ...]:
    """The arrays of the result. A start's own tuple holds operands and contexts, too."""
    if not own.opcode.endswith("-start"):
        return own.shapes
    for user in own.users:
        if user.opcode.endswith("-done"):
            return user.shapes
    if own.kind and not KINDS[own.kind].start_holds_operands:
        return own.shapes
    arrays = [shape for shape in own.shapes if str(shape) != "u32[]"]
    return tuple(arrays[len(arrays) // 2 :])


def _text_of(shapes: Sequence[Shape]) -> str:
    """The type of the result as XLA prints it; a tuple stands in parentheses."""
    text = ", ".join(map(str, shapes))
    if len(shapes) > 1:
        return f"({text})"
    return text


def _added_in(own: Instruction) -> str:
    """The last of the additions that alone use a sum; `""` where others use it."""
    if own.reducer != "add":
        return ""
    last = ""
    for _ in range(_MOST_ADDITIONS):
        if len(own.users) != 1:
            break
        (user,) = own.users
        if user.opcode == "add":
            last = user.name
        elif user.opcode not in _UNCHANGED:
            break
        own = user
    return last
