"""A planned module, walked in the order in which it runs: calls and loops opened up.

A function that is called twice is walked twice, since each call pays for its own collectives. The
body of a loop is walked once, and says how often it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardviz.core.program.propagation import locations
from shardviz.core.program.propagation.control import trip_count
from shardviz.core.program.propagation.locations import Place

_INSIDE = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation")


@dataclass(frozen=True, eq=False)
class Site:
    """One operation where it runs.

    Attributes:
        op: the operation.
        caller: the call, loop, branch or manual region that it stands in; None in `main`.
        trips: how often it runs, loops around it multiplied; None where one has no known length.
        in_loop: whether a loop is around it.
    """

    op: Any
    caller: Site | None = None
    trips: int | None = 1
    in_loop: bool = False

    @cached_property
    def name(self) -> str:
        """`sdy.all_gather`."""
        return self.op.name

    @cached_property
    def opcode(self) -> str:
        """The name without its dialect: `all_gather`."""
        return self.name.rpartition(".")[2]

    @cached_property
    def place(self) -> Place:
        """Its name in jax and the user's lines, told from `main`."""
        own = locations.place(str(self.op.location))
        # Inside of a function names are relative; in a loop's body they are already whole.
        outer = self.caller
        while outer is not None and own.op.startswith(outer.place.op + "/"):
            outer = outer.caller
        if outer is None or own.op.startswith("jit("):
            return _by_a_person(own)
        return outer.place.inner(_by_a_person(own))


def walk(module: Any) -> Iterator[Site]:
    """Every operation of `main` and of what it calls, in program order.

    Args:
        module: an MLIR module with a public function `main`.
    """
    functions = functions_of(module)
    if "main" in functions:
        yield from _walk_regions(functions["main"], None, 1, False, functions)


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module, by name."""
    tops = [item.operation for item in module.body.operations]
    return {op.attributes["sym_name"].value: op for op in tops if op.name == "func.func"}


def callee(call: Any, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None where its body is elsewhere."""
    found = functions.get(call.attributes["callee"].value)
    return found if found is not None and found.regions[0].blocks else None


def _walk_regions(
    owner: Any, caller: Site | None, trips: int | None, in_loop: bool, functions: dict[str, Any]
) -> Iterator[Site]:
    for region in owner.regions:
        for block in region.blocks:
            for view in block.operations:
                site = Site(view.operation, caller, trips, in_loop)
                yield site
                yield from _inside(site, functions)


def _inside(site: Site, functions: dict[str, Any]) -> Iterator[Site]:
    if site.name == "func.call":
        called = callee(site.op, functions)
        if called is not None:
            yield from _walk_regions(called, site, site.trips, site.in_loop, functions)
    elif site.name == "stablehlo.while":
        known = trip_count(site.op)
        trips = None if known is None or site.trips is None else known * site.trips
        yield from _walk_regions(site.op, site, trips, True, functions)
    elif site.name in _INSIDE:
        yield from _walk_regions(site.op, site, site.trips, site.in_loop, functions)


def maker(value: Any) -> Any:
    """The operation that makes a value, or None for an argument of a block."""
    owner = value.owner
    return None if hasattr(owner, "operations") else getattr(owner, "operation", owner)


def argument_number(value: Any) -> int:
    """Which argument of its block a value is."""
    return value.maybe_downcast().arg_number


def _by_a_person(place: Place) -> Place:
    """Without the lines of the module's own text, which MLIR falls back to."""
    return Place(place.op, tuple(line for line in place.stack if not line.startswith("-:")))
