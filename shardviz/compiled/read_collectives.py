"""read_collectives(): lists the collectives of a compiled module."""

from __future__ import annotations

import math
import re
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
# Opcodes that may come between a sum and its addition to another sum.
_UNCHANGED = ("convert", "copy", "bitcast", "reshape", "transpose")
# Frontend attributes of transfers between TPU slices, which the hosts carry out.
_TRANSFER = "_xla_megascale_transfer_type"
_TARGET = "_xla_megascale_target"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_CROSSINGS = {kind.megascale: name for name, kind in KINDS.items() if kind.megascale}
# The GPU compiler splits a permutation into a send and a recv, which have its pairs.
_SENT_PAIRS = "_xla_send_recv_source_target_pairs"
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
#: The name prefix of computations that run on only one TPU slice.
_ONE_SLICE = "localizer"


def read_collectives(
    module: Module,
    axis_names: Sequence[str],
    axis_sizes: Sequence[int],
    device_ids: Sequence[int] = (),
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Collective, ...]:
    """Returns every collective of a compiled module once, in module order.

    Args:
        module: an XLA module.
        axis_names, axis_sizes: the mesh axes the module was compiled for, in order.
        device_ids: device ids in mesh order; needed for several TPU slices, because
            their final module covers only one slice.
        arguments: an argument's name in the module -> its name in the program.
    """
    reader = _Reader(module, axis_names, axis_sizes, device_ids, arguments)
    collectives: list[Collective] = []
    for instruction in reader.each_once():
        if instruction.opcode == "recv":
            collectives.append(reader.crossing(instruction))
        elif instruction.opcode == "send":
            collectives.append(reader.sent(instruction))
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
        # Source-target pairs of permutations that the compiler wrote once per slice.
        self.by_slice: dict[Instruction, Groups] = {}

    def each_once(self) -> list[Instruction]:
        """Returns the instructions that run or start a collective."""
        chains: set[Hashable] = set()
        collectives: list[Instruction] = []
        for instruction in self.module.instructions():
            if instruction.opcode == "recv":
                if instruction.frontend.get(_TRANSFER) in _CROSSINGS:
                    collectives.append(instruction)
            elif instruction.opcode == "send":
                if _SENT_PAIRS in instruction.frontend:
                    collectives.append(instruction)
            elif instruction.kind and not instruction.opcode.endswith(
                ("-done", "-update")
            ):
                # The TPU compiler splits a collective into parts that share a channel
                # and a chain, and fuses each part with other work. We count only the
                # first part.
                chain = _chain(instruction)
                if chain is None or chain not in chains:
                    collectives.append(instruction)
                chains.add(chain)
        if self.slices is not None:
            return self._of_all_slices(collectives)
        return collectives

    def _of_all_slices(self, collectives: list[Instruction]) -> list[Instruction]:
        """Merges permutations that the compiler wrote separately for each slice.

        Drops a merged permutation if every device sends only to itself. All its data
        crosses slices, and the send between TPU slices is a collective already.
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
        # If devices only send to themselves, the permutation moves nothing.
        for collective, pairs in self.by_slice.items():
            if all(sender == receiver for sender, receiver in pairs):
                result.remove(collective)
        return result

    def collective(self, instruction: Instruction) -> Collective:
        """Reads the collective that an instruction runs or starts."""
        kind, shapes = instruction.kind, _result_shapes(instruction)
        replicas = self._whole(self.groups.of(instruction))
        if instruction in self.by_slice:
            replicas = replicas_of(
                self.by_slice[instruction], True, self.names, self.sizes
            )
        size = sum(shape.bytes for shape in shapes)
        name = instruction.computation.name
        if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            # The TPU compiler writes a reduce-scatter as an all-reduce fused with the
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
            # With several different operands, the collective has no single operand.
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
        """Returns the arrays of a combined collective, largest first; else `()`.

        The members' bytes add up to `size`.
        """
        kind, reads = base.kind, instruction.operands
        one_array = KINDS[kind].tuple_is_one_array or len(reads) < 2
        if one_array or len(reads) != len(shapes):
            return ()
        # The size of a reduce-scatter is that of its operand, `times` that of its result.
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
        """Replaces parts of axes with full axes if the program runs on several slices.

        XLA then splits a collective over one axis into one collective within the slices
        and one between them. Each covers only a part of the axis.
        """
        if self.slices is None:
            return replicas
        axes = tuple(dict.fromkeys(map(parent_axis, replicas.axes)))
        return replicas._replace(axes=axes, parts=())

    def sent(self, send: Instruction) -> Collective:
        """Reads a permutation that the compiler wrote as a send and a recv."""
        kind = "collective-permute"
        pairs = _PAIR.findall(send.frontend[_SENT_PAIRS])
        groups = tuple((int(sender), int(receiver)) for sender, receiver in pairs)
        replicas = replicas_of(groups, True, self.names, self.sizes)
        value = self.causes.value(send.operands[0], send, kind)
        base = Cause(kind, replicas.axes, replicas.parts)
        collective = self._without_size(
            send,
            self.causes.source(value, send, kind),
            self.causes.cause(value, send, base),
            replicas,
        )
        shape = send.shapes[0]  # the other results are a context and a token
        return replace(
            collective,
            bytes_per_device=shape.bytes,
            is_async=True,
            shape=str(shape),
            operand=value.name,
        )

    def crossing(self, receive: Instruction) -> Collective:
        """Reads a collective between slices, which the hosts execute."""
        kind = _CROSSINGS[receive.frontend[_TRANSFER]]
        groups: Groups = ()
        if self.slices is not None:
            groups = self.slices.crossing(receive.frontend.get(_TARGET, ""))
        paired = KINDS[kind].pairs
        replicas = self._whole(replicas_of(groups, paired, self.names, self.sizes))
        shape = receive.shapes[0]  # the other results are a context and a token
        size = shape.bytes
        if KINDS[kind].counts_operand:
            size *= replicas.size or math.prod(self.sizes)
        send = _send_of(receive)
        value = self.causes.value(send.operands[0], send, kind)
        # A sum belongs to the operation before it, a gather to the one after it.
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
    """Returns a key that all parts of a split collective share; None if not split."""
    number = instruction.frontend.get("chain_id")
    channel = instruction.attributes.number(INSTRUCTION["channel_id"])
    if number is None or not channel:
        return None
    # The parts share the computation that calls their fusions.
    host = instruction.computation
    for _ in range(4):
        calls = [c for c in host.callers if c.opcode in ("fusion", "async-start")]
        if not calls:
            break
        host = calls[0].computation
    return instruction.kind, channel, number, host


def _branch_of(computation: Computation) -> tuple[Instruction, int] | None:
    """Returns the conditional of a one-slice computation, and the slice's number."""
    if not computation.name.startswith(_ONE_SLICE):
        return None
    for call in computation.callers:
        if call.opcode == "conditional":
            return call, call.called.index(computation)
    return None


def _send_of(receive: Instruction) -> Instruction:
    """Returns the `send` with the same rendezvous name as a `recv`."""
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
    """Whether other work can run during a collective.

    The GPU compiler writes every collective as a start and a done, and marks the
    synchronous ones.
    """
    if instruction.opcode.endswith("-start"):
        return _NOT_ASYNC not in instruction.backend_config
    for call in instruction.computation.callers:
        if call.opcode == "async-start":
            return _NOT_ASYNC not in call.backend_config
    return "chain_id" in instruction.frontend


def _result_shapes(instruction: Instruction) -> tuple[Shape, ...]:
    """Returns the result arrays. A start's tuple also holds operands and contexts."""
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
    """Returns the result type as XLA prints it, with parentheses around a tuple."""
    text = ", ".join(map(str, shapes))
    if len(shapes) > 1:
        return f"({text})"
    return text


def _added_in(instruction: Instruction) -> str:
    """Follows a sum through additions; returns the last addition's name, or `""`."""
    if instruction.reducer != "add":
        return ""
    last = ""
    while len(instruction.users) == 1:
        (user,) = instruction.users
        if user.opcode == "add":
            last = user.name
        elif user.opcode not in _UNCHANGED:
            break
        instruction = user
    return last
