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
from shardviz.compiled.causes import UNKNOWN_VALUE, Causes, rematerialised
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
# Operations that a sum may pass through before it is added to others.
_UNCHANGED = ("convert", "copy", "bitcast", "reshape", "transpose")
# The hosts carry out transfers between slices, as these attributes describe.
_TRANSFER = "_xla_megascale_transfer_type"
_TARGET = "_xla_megascale_target"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_CROSSINGS = {kind.megascale: name for name, kind in KINDS.items() if kind.megascale}
#: The prefix of computations that only one slice of TPUs runs.
_ONE_SLICE = "localizer"


def read_collectives(
    module: Module,
    axis_names: Sequence[str],
    axis_sizes: Sequence[int],
    device_ids: Sequence[int] = (),
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Collective, ...]:
    """Every collective of a compiled module, each once, in the order of the module.

    Args:
        module: a module of XLA.
        axis_names, axis_sizes: the axes of the mesh it was compiled for, in order.
        device_ids: the devices of the mesh, in order; needed for several slices of
            TPUs, because their final module is that of one slice.
        arguments: the module's name for an argument, to the program's name for it.
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
        # The pairs of permutations that the compiler wrote separately for each slice.
        self.by_slice: dict[Instruction, Groups] = {}

    def each_once(self) -> list[Instruction]:
        """The instructions that are collectives, each collective once."""
        chains: set[Hashable] = set()
        collectives: list[Instruction] = []
        for instruction in self.module.instructions():
            if instruction.opcode == "recv":
                if instruction.frontend.get(_TRANSFER) in _CROSSINGS:
                    collectives.append(instruction)
            elif instruction.kind and not instruction.opcode.endswith(
                ("-done", "-update")
            ):
                # TPU's compiler splits a collective into parts that share a channel
                # and a chain, and fuses each with other work. The first part counts.
                chain = _chain(instruction)
                if chain is None or chain not in chains:
                    collectives.append(instruction)
                chains.add(chain)
        if self.slices is not None:
            return self._of_all_slices(collectives)
        return collectives

    def _of_all_slices(self, collectives: list[Instruction]) -> list[Instruction]:
        """Joins permutations that the compiler wrote separately for each slice.

        A permutation that moves nothing inside the slices is dropped, because the send
        between slices is all of it.
        """
        assert self.slices is not None
        result: list[Instruction] = []
        first: dict[Instruction, Instruction] = {}
        for collective in collectives:
            branch = _branch_of(collective.computation)
            if (
                branch is None
                or not collective.kind
                or not KINDS[collective.kind].pairs
            ):
                result.append(collective)
                continue
            conditional, number = branch
            if conditional not in first:
                first[conditional] = collective
                result.append(collective)
            slice_pairs = self.slices.spread(pairs_of(collective), number)
            first_of_branch = first[conditional]
            self.by_slice[first_of_branch] = (
                self.by_slice.get(first_of_branch, ()) + slice_pairs
            )
        # Devices that only send to themselves move nothing.
        for collective, pairs in self.by_slice.items():
            if all(sender == receiver for sender, receiver in pairs):
                result.remove(collective)
        return result

    def collective(self, instruction: Instruction) -> Collective:
        """The collective that an instruction runs or starts."""
        kind, shapes = instruction.kind, _result_shapes(instruction)
        replicas = self._whole(self.groups.of(instruction))
        if instruction in self.by_slice:
            replicas = replicas_of(
                self.by_slice[instruction], True, self.names, self.sizes
            )
        size = sum(shape.bytes for shape in shapes)
        name = instruction.computation.name
        if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            # TPU's compiler writes a reduce-scatter as an all-reduce fused with the
            # slice that each device keeps; the all-reduce has the operand's shape.
            kind = "reduce-scatter"
        elif KINDS[kind].counts_operand:
            size *= replicas.size or math.prod(self.sizes)
        base = Cause(kind, replicas.axes, replicas.parts)
        remade = None
        if kind == "all-gather":
            remade = rematerialized(instruction, self.module)
        members = self._members(instruction, base, shapes, size)
        if members:
            first = members[0]
            source = InstructionSource(first.op, first.source, first.stack)
            operand, cause = first.operand, first.cause
            assert isinstance(cause, Cause)
        else:
            values = [
                self.causes.value(o, instruction, kind) for o in instruction.operands
            ]
            # If the operands are different values, there is no single operand.
            value = UNKNOWN_VALUE
            if len({candidate.name for candidate in values}) == 1:
                value = values[0]
            source = self.causes.source(value, instruction, kind)
            operand, cause = value.name, self.causes.cause(value, instruction, base)
        if remade is not None:
            cause = rematerialised(replace(cause, operand=operand), remade)
        added_in = ""
        if kind == "all-reduce" and not members:
            added_in = _added_in(instruction)
        collective = self._without_size(instruction, source, cause, replicas)
        return replace(
            collective,
            bytes_per_device=size,
            is_async=_is_async(instruction),
            shape=_text_of(shapes),
            rematerialises=remade is not None,
            operand=operand,
            members=members,
            added_in=added_in,
        )

    def _without_size(
        self,
        instruction: Instruction,
        source: InstructionSource,
        cause: Cause,
        replicas: Replicas,
    ) -> Collective:
        runs = self.loops.count(instruction.computation)
        return Collective(
            kind=cause.kind,
            mesh_axes=replicas.axes,
            bytes_per_device=0,
            op=self.arguments.get(source.op, source.op),
            source=source.source,
            groups=replicas.groups,
            in_loop=runs.in_loop,
            name=instruction.name,
            trips=runs.trips,
            stack=source.stack,
            group_size=replicas.size,
            cause=cause,
            parts=cause.parts,
        )

    def _members(
        self, instruction: Instruction, base: Cause, shapes: Sequence[Shape], size: int
    ) -> tuple[Member, ...]:
        """The arrays of a combined collective, the largest first; `()` for one array.

        Their bytes sum up to its `size`.
        """
        kind, reads = base.kind, instruction.operands
        one_array = KINDS[kind].tuple_is_one_array or len(reads) < 2
        if one_array or len(reads) != len(shapes):
            return ()
        # The bytes of a reduce-scatter are those of its operand.
        times = size // max(1, sum(shape.bytes for shape in shapes))
        members: list[Member] = []
        for number, (read, shape) in enumerate(zip(reads, shapes, strict=True)):
            value = self.causes.value(read, instruction, kind)
            source = self.causes.source_of_part(value, instruction, kind, number)
            members.append(
                Member(
                    op=self.arguments.get(source.op, source.op),
                    source=source.source,
                    bytes_per_device=shape.bytes * times,
                    shape=str(shape),
                    operand=value.name,
                    stack=source.stack,
                    cause=self.causes.cause(value, instruction, base, source, number),
                )
            )
        return tuple(sorted(members, key=lambda m: -m.bytes_per_device))

    def _whole(self, replicas: Replicas) -> Replicas:
        """The groups of a program on several slices, with full axes instead of parts.

        There, a collective over an axis becomes a step within the slices and a step
        between them, each of which covers the axis partly.
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
        value = UNKNOWN_VALUE
        if send.operands:
            value = self.causes.value(send.operands[0], send, kind)
        # A sum completes the operation before it; a gather is for the one after it.
        instruction = send if kind in SUMS else receive
        base = Cause(kind, replicas.axes, replicas.parts)
        cause = self.causes.cause(value, instruction, base)
        source = self.causes.source(value, instruction, kind)
        collective = self._without_size(receive, source, cause, replicas)
        return replace(
            collective,
            bytes_per_device=size,
            is_async=True,
            shape=str(shape),
            between_slices=True,
            operand=value.name,
        )


def _chain(instruction: Instruction) -> Hashable:
    """A key that the parts of a split collective share; None if it is not split."""
    number = instruction.frontend.get("chain_id")
    channel = instruction.attributes.number(INSTRUCTION["channel_id"])
    if number is None or not channel:
        return None
    # The computation that calls the fusion around a part.
    host = instruction.computation
    for _ in range(4):
        calls = [c for c in host.callers if c.opcode in ("fusion", "async-start")]
        if not calls:
            break
        host = calls[0].computation
    return instruction.kind, channel, number, host


def _branch_of(computation: Computation) -> tuple[Instruction, int] | None:
    """The conditional that runs a computation on one slice, and the slice's number."""
    if not computation.name.startswith(_ONE_SLICE):
        return None
    for call in computation.callers:
        if call.opcode == "conditional":
            return call, call.called.index(computation)
    return None


def _send_of(receive: Instruction) -> Instruction:
    """The `send` that belongs to a `recv`: the one with the same rendezvous name."""
    name = receive.frontend.get(_RENDEZVOUS)
    for instruction in receive.computation.module.instructions():
        if (
            instruction.opcode == "send"
            and name
            and instruction.frontend.get(_RENDEZVOUS) == name
        ):
            return instruction
    return receive


def _is_async(instruction: Instruction) -> bool:
    """Whether other work can run meanwhile.

    GPU's compiler writes every collective as a start and a done, and marks those that it
    waits for immediately.
    """
    if instruction.opcode.endswith("-start"):
        return _NOT_ASYNC not in instruction.backend_config
    for call in instruction.computation.callers:
        if call.opcode == "async-start":
            return _NOT_ASYNC not in call.backend_config
    return "chain_id" in instruction.frontend


def _result_shapes(instruction: Instruction) -> tuple[Shape, ...]:
    """The arrays of the result. The tuple of a start also has operands and contexts."""
    if not instruction.opcode.endswith("-start"):
        return instruction.shapes
    for user in instruction.users:
        if user.opcode.endswith("-done"):
            return user.shapes
    if instruction.kind and not KINDS[instruction.kind].start_holds_operands:
        return instruction.shapes
    arrays = [shape for shape in instruction.shapes if str(shape) != "u32[]"]
    return tuple(arrays[len(arrays) // 2 :])


def _text_of(shapes: Sequence[Shape]) -> str:
    """The type of the result as XLA prints it, a tuple in parentheses."""
    text = ", ".join(map(str, shapes))
    if len(shapes) > 1:
        return f"({text})"
    return text


def _added_in(instruction: Instruction) -> str:
    """The last of the additions that are the only users of a sum; else `""`."""
    if instruction.reducer != "add":
        return ""
    last = ""
    for _ in range(_MOST_ADDITIONS):
        if len(instruction.users) != 1:
            break
        (user,) = instruction.users
        if user.opcode == "add":
            last = user.name
        elif user.opcode not in _UNCHANGED:
            break
        instruction = user
    return last
