"""The passes of this jaxlib's Shardy pipeline, and which of them a plan runs.

None of this is public: jaxlib registers Shardy's passes with MLIR's PassManager, under
names that may change. The pipeline is read from its own text, and each pass is looked
up in `PASSES`. A pass that is not in the table is run if MLIR accepts it and left out
otherwise; the plan gets a note in both cases.
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
#: These two turn the settled shardings into collectives.
INSERT_RESHARDS = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
TO_COLLECTIVES = "func.func(sdy-reshard-to-collectives)"


class Use(Enum):
    """What a plan does with a pass of Shardy's pipeline."""

    RUN = "run"
    #: Not run: it would share functions between calls, or write files.
    SKIP = "skip"
    #: Not run: it follows the settled shardings, and a plan runs passes of its own instead.
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
    # Each remaining call keeps its own copy of its function, with origins and steps.
    "sdy-unflatten-call-graph": Use.SKIP,
    "sdy-save-module": Use.SKIP,
    "sdy-verify-unreduced-axes": Use.AFTER,
    "sdy-insert-explicit-reshards": Use.AFTER,
    "canonicalize": Use.AFTER,
    "sdy-drop-sharding-rules": Use.AFTER,
}
_ORIGINS, _STEPS = "debug-sharding-origins", "debug-propagation-edge-sharding"
# Shardy crashes when it has to name the origin of a sharding that comes from none of
# the values of an operation. That happens in this pass if a constraint is put before a
# shard_map (the pass that propagates names its origin all the same), and in any pass
# where values are grouped by `shard_alike`, which jax 0.12 no longer has.
_NO_ORIGINS = "sdy-apply-sharding-constraints"


@dataclass(frozen=True)
class PassSelection:
    """The passes that settle the shardings of a module.

    Attributes:
        passes: the passes in order, as MLIR writes them, with origins and steps.
        untried: the names of the passes among them that `PASSES` does not have. They
            may end the process.
        left_out: the names of the passes that `PASSES` does not have and that are not
            run.
    """

    passes: tuple[str, ...]
    untried: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def without_untried(self) -> PassSelection:
        """The same passes without those that `PASSES` does not have.

        Raises:
            ProgramError: if no pass is left that propagates.
        """
        tried = tuple(p for p in self.passes if pass_name(p) not in self.untried)
        selection = PassSelection(tried, (), (*self.left_out, *self.untried))
        _check_propagates(selection)
        return selection


def settling_passes() -> PassSelection:
    """The passes of this jaxlib's pipeline up to the settled shardings.

    Raises:
        ProgramError: if jaxlib has no such pipeline, or none of its passes propagates.
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
        # A later jaxlib may rename the pass; only the one that propagates has this option.
        if pass_name(text) == PROPAGATE or "propagation-strategy=" in text:
            return
    unknown = ", ".join((*selection.untried, *selection.left_out)) or "none"
    raise ProgramError(
        f"This jaxlib's Shardy has no pass {PROPAGATE} (passes that shardviz does not"
        f" know: {unknown}). A program cannot be explained before it is compiled;"
        " everything else works."
    )


def merging_passes() -> tuple[str, ...]:
    """The pipeline's own last step, which merges consecutive reshards."""
    return tuple(p for p in pipeline_passes() if pass_name(p) == "canonicalize")


def missing_estimate_passes() -> tuple[str, ...]:
    """The names of the passes that this jaxlib lacks to plan collectives."""
    needed = (INSERT_RESHARDS, TO_COLLECTIVES)
    return tuple(pass_name(text) for text in needed if not is_accepted(text))


@functools.cache
def pipeline_passes() -> tuple[str, ...]:
    """The passes of Shardy's pipeline in this jaxlib, in order, as MLIR writes them.

    Raises:
        ProgramError: if jaxlib has no such pipeline.
    """
    try:
        with ir.Context():
            # The alias takes no options, but its passes do once they are written out.
            text = str(passmanager.PassManager.parse(f"builtin.module({PIPELINE})"))
    except Exception as error:  # MLIR raises several kinds for an unknown name
        reason = str(error).strip().partition("\n")[0]
        raise ProgramError(
            f"This jaxlib has no Shardy pipeline that shardviz can run ({reason}). A"
            " program cannot be explained before it is compiled; everything else works."
        ) from error
    return tuple(_split(text.removeprefix("builtin.module(").removesuffix(")")))


@functools.cache
def is_accepted(text: str) -> bool:
    """Whether MLIR's pass manager knows a pass and its options.

    >>> is_accepted("symbol-dce"), is_accepted("sdy-no-such-pass")
    (True, False)
    """
    try:
        with ir.Context():
            pass_manager([text])
    except Exception:  # noqa: BLE001  MLIR raises several kinds for an unknown name
        return False
    return True


def pass_manager(passes: Sequence[str]) -> passmanager.PassManager:
    """A manager that runs these passes on a module; it needs a context."""
    text = f"builtin.module({','.join(passes)})"
    manager = passmanager.PassManager.parse(text)
    # jaxlib 0.10 refuses its own data-flow edges inside loops once they carry their
    # origins; the shardings are the same as without.
    manager.enable_verifier(False)
    return manager


def pass_name(text: str) -> str:
    """The name of a pass, without its options and the pass manager around it.

    >>> pass_name("func.func(sdy-insert-explicit-reshards{enable-full-version=true})")
    'sdy-insert-explicit-reshards'
    """
    return text.removeprefix("func.func(").split("{")[0].rstrip(")")


def _with_origins(text: str) -> str:
    """A pass that records the steps it takes and the origins of the axes it moves."""
    text = text.replace(f"{_STEPS}=false", f"{_STEPS}=true")
    if pass_name(text) == _NO_ORIGINS:
        return text
    return text.replace(f"{_ORIGINS}=false", f"{_ORIGINS}=true")


def _split(text: str) -> list[str]:
    """The passes of a pipeline: its parts between commas outside of brackets."""
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
