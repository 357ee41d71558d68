"""The passes of this jaxlib's Shardy pipeline, and which of them a plan runs.

None of this is public: jaxlib registers Shardy's passes with MLIR's PassManager, under
names that may change. This module parses the pipeline's text and looks up each pass in
`PASSES`. A pass missing from that table is run if MLIR accepts it, and left out if not.
In both cases the plan gets a note.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from jaxlib.mlir import ir, passmanager

from shardviz.base.errors import ProgramError

PIPELINE = "sdy-propagation-pipeline"
PROPAGATE = "sdy-user-priority-propagate"
#: The two passes that turn propagated shardings into collectives.
INSERT_RESHARDS = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
TO_COLLECTIVES = "func.func(sdy-reshard-to-collectives)"


class Use(Enum):
    """What a plan does with a pass of Shardy's pipeline."""

    RUN = "run"
    #: Not run, because the pass would share functions between calls, or write files.
    SKIP = "skip"
    #: Not run, because the pass comes after propagation, where plans run other passes.
    AFTER = "after"


#: Every pass of the pipelines of jaxlib 0.10 to 0.12.
PASSES: Mapping[str, Use] = {
    "symbol-dce": Use.RUN,
    "sdy-lift-inlined-meshes": Use.RUN,
    "sdy-remove-size-one-axes": Use.RUN,
    "sdy-manual-axes-cleanup": Use.RUN,
    "sdy-propagate-sharding-from-func-to-call": Use.RUN,
    "sdy-constant-or-scalar-splitter": Use.RUN,
    "sdy-add-data-flow-edges": Use.RUN,
    "sdy-flatten-call-graph": Use.RUN,
    "sdy-add-func-data-flow-edges": Use.RUN,
    "sdy-apply-sharding-constraints": Use.RUN,
    "sdy-sink-func-data-flow-edges": Use.RUN,
    "sdy-sharding-group-import": Use.RUN,
    "sdy-import-func-calls": Use.RUN,
    "sdy-pre-order-funcs": Use.RUN,
    PROPAGATE: Use.RUN,
    "sdy-export-named-computations": Use.RUN,
    "sdy-propagate-to-func-results": Use.RUN,
    "sdy-insert-func-call-reshards": Use.RUN,
    "sdy-constant-or-scalar-merger": Use.RUN,
    "sdy-sink-data-flow-edges": Use.RUN,
    "sdy-remove-sharding-groups": Use.RUN,
    "sdy-sharding-constraint-to-reshard": Use.RUN,
    "sdy-close-shardings": Use.RUN,
    "sdy-update-non-divisible-input-output-shardings": Use.RUN,
    "sdy-remove-sub-axes-in-input-output-shardings": Use.RUN,
    # Skipped, so that each remaining call keeps its own copy of the function, in
    # which the origins are recorded.
    "sdy-unflatten-call-graph": Use.SKIP,
    "sdy-save-module": Use.SKIP,
    "sdy-verify-unreduced-axes": Use.AFTER,
    "sdy-insert-explicit-reshards": Use.AFTER,
    "canonicalize": Use.AFTER,
    "sdy-drop-sharding-rules": Use.AFTER,
}
_ORIGINS, _STEPS = "debug-sharding-origins", "debug-propagation-edge-sharding"
# Shardy crashes if it has to name the origin of a sharding that comes from none of the
# operation's values. This happens in `sdy-apply-sharding-constraints` if a constraint
# precedes a shard_map; the propagation pass still names that origin. It also happens in
# any pass if the program uses `shard_alike`, which jax 0.12 no longer has.
_NO_ORIGINS = "sdy-apply-sharding-constraints"


@dataclass(frozen=True)
class PassSelection:
    """The passes that propagate the shardings of a module.

    Attributes:
        passes: the passes in order, in MLIR's notation, recording origins and steps.
        untried: names of passes in `passes` that `PASSES` lacks. They may crash the
            process.
        left_out: names of other passes that `PASSES` lacks. They are not run.
    """

    passes: tuple[str, ...]
    untried: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def without_untried(self) -> PassSelection:
        """Returns the selection without passes that `PASSES` lacks.

        Raises:
            ProgramError: if none of the remaining passes propagates.
        """
        tried = tuple(p for p in self.passes if pass_name(p) not in self.untried)
        selection = PassSelection(tried, (), (*self.left_out, *self.untried))
        _check_propagates(selection)
        return selection


def settling_passes() -> PassSelection:
    """Returns this jaxlib's passes up to the end of propagation.

    Raises:
        ProgramError: if jaxlib has no Shardy pipeline, or if no pass propagates.
    """
    passes: list[str] = []
    untried: dict[str, None] = {}
    left_out: dict[str, None] = {}
    settled = False
    for text in pipeline_passes():
        name = pass_name(text)
        use = PASSES.get(name)
        settled = settled or use is Use.AFTER
        if use is None:
            if settled or not is_accepted(text):
                left_out[name] = None
                continue
            untried[name] = None
        if use in (None, Use.RUN):
            passes.append(_with_origins(text))
    selection = PassSelection(tuple(passes), tuple(untried), tuple(left_out))
    _check_propagates(selection)
    return selection


def _check_propagates(selection: PassSelection) -> None:
    for text in selection.passes:
        # A newer jaxlib may rename the pass, but no other pass has this option.
        if pass_name(text) == PROPAGATE or "propagation-strategy=" in text:
            return
    unknown = ", ".join((*selection.untried, *selection.left_out)) or "none"
    raise ProgramError(
        f"This jaxlib's Shardy has no pass {PROPAGATE} (passes that shardviz does not"
        f" know: {unknown}). A program cannot be explained before it is compiled;"
        " everything else works."
    )


def merging_passes() -> tuple[str, ...]:
    """The pipeline's `canonicalize` pass, which merges consecutive reshards."""
    return tuple(p for p in pipeline_passes() if pass_name(p) == "canonicalize")


def missing_estimate_passes() -> tuple[str, ...]:
    """The names of passes that estimates need and this jaxlib lacks."""
    needed = (INSERT_RESHARDS, TO_COLLECTIVES)
    return tuple(pass_name(text) for text in needed if not is_accepted(text))


@functools.cache
def pipeline_passes() -> tuple[str, ...]:
    """The passes of this jaxlib's Shardy pipeline, in order, in MLIR's notation.

    Raises:
        ProgramError: if jaxlib has no Shardy pipeline.
    """
    try:
        with ir.Context():
            # The pipeline accepts no options, so expand it to passes, which accept them.
            text = str(passmanager.PassManager.parse(f"builtin.module({PIPELINE})"))
    except Exception as error:  # MLIR raises several types for an unknown name
        reason = str(error).strip().partition("\n")[0]
        raise ProgramError(
            f"This jaxlib has no Shardy pipeline that shardviz can run ({reason}). A"
            " program cannot be explained before it is compiled; everything else works."
        ) from error
    return tuple(_split(text.removeprefix("builtin.module(").removesuffix(")")))


@functools.cache
def is_accepted(text: str) -> bool:
    """True if MLIR's pass manager knows a pass and its options.

    >>> is_accepted("symbol-dce"), is_accepted("sdy-no-such-pass")
    (True, False)
    """
    try:
        with ir.Context():
            pass_manager([text])
    except Exception:  # noqa: BLE001  MLIR raises several types for an unknown name
        return False
    return True


def pass_manager(passes: Sequence[str]) -> passmanager.PassManager:
    """Creates a pass manager for these passes; needs an active MLIR context."""
    text = f"builtin.module({','.join(passes)})"
    manager = passmanager.PassManager.parse(text)
    # The verifier of jaxlib 0.10 rejects Shardy's data-flow edges inside loops if they
    # have recorded origins. The shardings are not affected.
    manager.enable_verifier(False)
    return manager


def pass_name(text: str) -> str:
    """Returns the name of a pass, without options and `func.func(...)`.

    >>> pass_name("func.func(sdy-insert-explicit-reshards{enable-full-version=true})")
    'sdy-insert-explicit-reshards'
    """
    return text.removeprefix("func.func(").split("{")[0].rstrip(")")


def _with_origins(text: str) -> str:
    """Sets the options of a pass that record propagation steps and axis origins."""
    text = text.replace(f"{_STEPS}=false", f"{_STEPS}=true")
    if pass_name(text) == _NO_ORIGINS:
        return text
    return text.replace(f"{_ORIGINS}=false", f"{_ORIGINS}=true")


def _split(text: str) -> list[str]:
    """Splits a pipeline into passes, at commas outside of brackets."""
    parts: list[str] = []
    depth = start = 0
    for position, letter in enumerate(text):
        if letter in "({":
            depth += 1
        elif letter in ")}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]
