"""CollectiveKind: all properties of one kind of collective, and a table of the kinds.

To support another kind, add one entry to `_DEFINITIONS`. Every field is required, so an
incomplete entry fails at import. Other code should look up these fields instead of
comparing the names of kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class Effect(StrEnum):
    """The effect of a collective on the values that the devices of a group hold.

    >>> KINDS["reduce-scatter"].effect.value
    'sum'
    """

    SUM = "sum"  # or another reduction, such as a maximum
    GATHER = "gather"
    EXCHANGE = "exchange"
    SEND = "send"
    COPY = "copy"


class Route(StrEnum):
    """How the bytes of a collective travel between the devices of a group.

    Attributes:
        RINGS: around a ring of the group, `rounds` times.
        EXCHANGE: from each device to every other device.
        PAIRS: from the sender to the receiver of each pair.
        UNKNOWN: known only when the program runs.

    >>> KINDS["collective-permute"].route.value
    'pairs'
    """

    RINGS = "rings"
    EXCHANGE = "exchange"
    PAIRS = "pairs"
    UNKNOWN = "unknown"


Step = Literal["scatter", "gather", "exchange"]


@dataclass(frozen=True, kw_only=True)
class CollectiveKind:
    """One kind of HLO collective.

    Below, B is the `bytes_per_device` of a Collective, and n is the number of devices
    in a group.

    Attributes:
        name: the HLO opcode, `"all-gather"`.
        primitives: the jax primitives that compile to this kind, and `jax.lax`
            functions whose names compiled programs show instead.
        stablehlo: the StableHLO operation, or the custom call target if StableHLO has
            no such operation.
        shardy: the operation that Shardy inserts; None if it inserts none.
        shardy_axes: the attribute of the Shardy operation that holds its mesh axes;
            None if the operation only has shardings before and after.
        megascale: XLA's name for this kind when hosts carry it out between TPU slices;
            None if hosts never do.
        effect: the effect on the values of a group.
        route: how the bytes travel between devices.
        rounds: how many times each device sends B (n-1)/n bytes; how many times it
            sends B if the route is `PAIRS`.
        steps: the steps in which an animation shows this kind; `()` if none does.
        counts_operand: whether B is the size of the operand instead of the result.
        equal_results: whether all devices of a group end up with the same values.
        operand_per_result: whether each result of a combined collective depends only on
            the operand at the same position.
        tuple_is_one_array: whether a tuple of results is one array, with one block per
            device. If not, the collective is a combined one.
        start_holds_operands: whether the `-start` instruction returns the operands and
            then the results, instead of only the results.

    >>> KINDS["all-reduce"].rounds, KINDS["all-gather"].sums
    (2, False)
    """

    name: str
    primitives: tuple[str, ...]
    stablehlo: str
    shardy: str | None
    shardy_axes: str | None
    megascale: str | None
    effect: Effect
    route: Route
    rounds: int
    steps: tuple[Step, ...]
    counts_operand: bool
    equal_results: bool
    operand_per_result: bool
    tuple_is_one_array: bool
    start_holds_operands: bool

    @property
    def sums(self) -> bool:
        """True if this kind sums, or reduces in another way."""
        return self.effect is Effect.SUM

    @property
    def pairs(self) -> bool:
        """True if the replica groups are pairs of sender and receiver."""
        return self.route is Route.PAIRS

    def sent_bytes(self, size: int, devices: int) -> int:
        """Returns the bytes that each device of a group sends in one execution.

        Uses the scaling book's factors: (n-1)/n for a gather, scatter or exchange,
        twice that for an all-reduce, and 1 for a permutation.

        Args:
            size: the collective's bytes on each device, B.
            devices: how many devices take part in each group.

        >>> KINDS["all-reduce"].sent_bytes(4096, 4)
        6144
        """
        if self.pairs:
            return self.rounds * size
        return self.rounds * size * (devices - 1) // devices


_DEFINITIONS = (
    CollectiveKind(
        name="all-gather",
        primitives=(
            "all_gather",
            "all_gather_invariant",
            "all_gather_reduced",
            "all_gather_start",
            "all_gather_reduced_start",
            "all_gather_done",
        ),
        stablehlo="stablehlo.all_gather",
        shardy="sdy.all_gather",
        shardy_axes="gathering_axes",
        megascale="ALL_GATHER",
        effect=Effect.GATHER,
        route=Route.RINGS,
        rounds=1,
        steps=("gather",),
        counts_operand=False,
        equal_results=True,
        operand_per_result=True,
        tuple_is_one_array=False,
        start_holds_operands=True,
    ),
    CollectiveKind(
        name="all-reduce",
        primitives=(
            "psum",
            "psum_invariant",
            "psum_start",
            "psum_invariant_start",
            "psum_done",
            "pmax",
            "pmin",
            "pmean",
            "unreduced_psum",
            "unreduced_psum_start",
            "unreduced_pmax",
            "unreduced_pmin",
        ),
        stablehlo="stablehlo.all_reduce",
        shardy="sdy.all_reduce",
        shardy_axes="reduction_axes",
        megascale="ALL_REDUCE",
        effect=Effect.SUM,
        route=Route.RINGS,
        rounds=2,  # a reduce-scatter, then an all-gather
        steps=("scatter", "gather"),
        counts_operand=False,
        equal_results=True,
        operand_per_result=True,
        tuple_is_one_array=False,
        start_holds_operands=False,
    ),
    CollectiveKind(
        name="reduce-scatter",
        primitives=(
            "reduce_scatter",
            "psum_scatter",
            "reduce_scatter_start",
            "reduce_scatter_done",
            "unreduced_reduce_scatter",
            "unreduced_reduce_scatter_start",
        ),
        stablehlo="stablehlo.reduce_scatter",
        shardy="sdy.reduce_scatter",
        shardy_axes="reduce_scatter_axes",
        megascale="REDUCE_SCATTER",
        effect=Effect.SUM,
        route=Route.RINGS,
        rounds=1,
        steps=("scatter",),
        counts_operand=True,
        equal_results=False,
        operand_per_result=True,
        tuple_is_one_array=False,
        start_holds_operands=True,
    ),
    CollectiveKind(
        name="all-to-all",
        primitives=("all_to_all", "all_to_all_start", "all_to_all_done"),
        stablehlo="stablehlo.all_to_all",
        shardy="sdy.all_to_all",
        shardy_axes="params",
        megascale="ALL_TO_ALL",
        effect=Effect.EXCHANGE,
        route=Route.EXCHANGE,
        rounds=1,
        steps=("exchange",),
        counts_operand=False,
        equal_results=False,
        operand_per_result=False,
        tuple_is_one_array=True,
        start_holds_operands=True,
    ),
    CollectiveKind(
        name="collective-permute",
        primitives=("ppermute", "ppermute_start", "ppermute_done"),
        stablehlo="stablehlo.collective_permute",
        shardy="sdy.collective_permute",
        shardy_axes=None,
        megascale="ONE_TO_ONE",
        effect=Effect.SEND,
        route=Route.PAIRS,
        rounds=1,
        steps=(),
        counts_operand=False,
        equal_results=False,
        operand_per_result=True,
        tuple_is_one_array=False,
        start_holds_operands=True,
    ),
    CollectiveKind(
        name="ragged-all-to-all",
        primitives=("ragged_all_to_all",),
        stablehlo="ragged_all_to_all",
        shardy=None,
        shardy_axes=None,
        megascale=None,
        effect=Effect.EXCHANGE,
        route=Route.UNKNOWN,
        rounds=1,
        steps=(),
        counts_operand=False,
        equal_results=False,
        operand_per_result=False,
        tuple_is_one_array=False,
        start_holds_operands=True,
    ),
    CollectiveKind(
        name="collective-broadcast",
        primitives=(
            "pbroadcast",
            "pbroadcast_dynamic",
            "pbroadcast_start",
            "pbroadcast_done",
        ),
        stablehlo="stablehlo.collective_broadcast",
        shardy=None,
        shardy_axes=None,
        megascale=None,
        effect=Effect.COPY,
        route=Route.RINGS,
        rounds=1,
        steps=(),
        counts_operand=False,
        # A device outside all groups gets zeros.
        equal_results=False,
        operand_per_result=False,
        tuple_is_one_array=False,
        start_holds_operands=True,
    ),
)

#: HLO name -> kind of collective.
KINDS: Mapping[str, CollectiveKind] = MappingProxyType(
    {kind.name: kind for kind in _DEFINITIONS}
)
COLLECTIVE_KINDS = tuple(KINDS)
#: HLO names of the kinds that sum, or reduce in another way.
SUMS = tuple(name for name, kind in KINDS.items() if kind.sums)
#: Name of a collective in jax -> its kind.
KIND_OF_PRIMITIVE: Mapping[str, CollectiveKind] = MappingProxyType(
    {primitive: kind for kind in _DEFINITIONS for primitive in kind.primitives}
)
