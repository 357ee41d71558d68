"""A planned module, walked in the order in which it runs: calls and loops opened up.

A function that is called twice is walked twice, since each call pays for its own collectives. The
body of a loop is walked once, and says how often it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardviz.core.program.propagation.control import trip_count
from shardviz.core.program.propagation.locations import Place
from shardviz.core.program.propagation.texts import Texts

_INSIDE = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation")


@dataclass(eq=False)
class Site:
    """One operation where it runs.

    Attributes:
        op: the operation.
        texts: what the module says, read once.
        name: what MLIR calls it: `sdy.all_gather`.
        caller: the call, loop, branch or manual region that it stands in; None in `main`.
        trips: how often it runs, loops around it multiplied; None where one has no known length.
        in_loop: whether a loop is around it.
    """

    op: Any
    texts: Texts
    name: str
    caller: Site | None = None
    trips: int | None = 1
    in_loop: bool = False
    _place: Place | None = None

    @property
    def opcode(self) -> str:
        """The name without its dialect: `all_gather`."""
        return self.name.rpartition(".")[2]

    @property
    def place(self) -> Place:
        """Its name in jax and the user's lines, told from `main`."""
        if self._place is None:
            self._place = self._placed()
        return self._place

    def _placed(self) -> Place:
        own = self.texts.place(self.op)
        # Inside of a function names are relative; in a loop's body they are already whole.
        outer = self.caller
        while outer is not None and own.op.startswith(outer.place.op + "/"):
            outer = outer.caller
        if outer is None or own.op.startswith("jit("):
            return own
        return outer.place.inner(own)


@dataclass(frozen=True)
class _Around:
    """What holds for all operations of a region."""

    texts: Texts
    functions: dict[str, Any]
    caller: Site | None = None
    trips: int | None = 1
    in_loop: bool = False


def walk(module: Any, texts: Texts | None = None) -> Iterator[Site]:
    """Every operation of `main` and of what it calls, in program order.

    Args:
        module: an MLIR module with a public function `main`.
        texts: where what the module says is read, for who reads it too.
    """
    functions = functions_of(module)
    if "main" in functions:
        yield from _regions(functions["main"], _Around(texts or Texts(), functions))


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module, by name."""
    tops = [item.operation for item in module.body.operations]
    return {op.attributes["sym_name"].value: op for op in tops if op.name == "func.func"}


def callee(call: Any, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None where its body is elsewhere."""
    found = functions.get(call.attributes["callee"].value)
    return found if found is not None and found.regions[0].blocks else None


def _regions(owner: Any, around: _Around) -> Iterator[Site]:
    for region in owner.regions:
        for block in region.blocks:
            for view in block.operations:
                op = view.operation
                name = op.name
                caller, trips = around.caller, around.trips
                site = Site(op, around.texts, name, caller, trips, around.in_loop)
                yield site
                if name == "func.call" or name in _INSIDE:
                    yield from _inside(site, around)


def _inside(site: Site, around: _Around) -> Iterator[Site]:
    owner, trips, in_loop = site.op, site.trips, site.in_loop
    if site.name == "func.call":
        owner = callee(site.op, around.functions)
    elif site.name == "stablehlo.while":
        known = trip_count(site.op)
        trips = None if known is None or trips is None else known * trips
        in_loop = True
    if owner is not None:
        yield from _regions(owner, _Around(around.texts, around.functions, site, trips, in_loop))


def maker(value: Any) -> Any:
    """The operation that makes a value, or None for an argument of a block."""
    owner = value.owner
    return None if hasattr(owner, "operations") else getattr(owner, "operation", owner)


def argument_number(value: Any) -> int:
    """Which argument of its block a value is."""
    return value.maybe_downcast().arg_number
