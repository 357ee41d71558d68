"""Runs Shardy's passes on a copy of a lowered module. No other file names them.

None of this is public: jaxlib has Shardy's passes registered with MLIR's PassManager, under names
that may change. So they are looked up, and `available` says in one sentence what is missing.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from shardviz.core.backend.shardy.rewrites import read_invariants_outside, rewrite_operations
from shardviz.core.errors import ProgramError

# Some passes crash the process when run outside of XLA, so only passes on this list run.
_KNOWN = frozenset(
    {
        "symbol-dce",
        "sdy-lift-inlined-meshes",
        "sdy-remove-size-one-axes",
        "sdy-manual-axes-cleanup",
        "sdy-propagate-sharding-from-func-to-call",
        "sdy-constant-or-scalar-splitter",
        "sdy-add-data-flow-edges",
        "sdy-flatten-call-graph",
        "sdy-add-func-data-flow-edges",
        "sdy-apply-sharding-constraints",
        "sdy-sink-func-data-flow-edges",
        "sdy-sharding-group-import",
        "sdy-import-func-calls",
        "sdy-pre-order-funcs",
        "sdy-user-priority-propagate",
        "sdy-export-named-computations",
        "sdy-propagate-to-func-results",
        "sdy-unflatten-call-graph",
        "sdy-insert-func-call-reshards",
        "sdy-constant-or-scalar-merger",
        "sdy-sink-data-flow-edges",
        "sdy-remove-sharding-groups",
        "sdy-sharding-constraint-to-reshard",
        "sdy-update-non-divisible-input-output-shardings",
        "sdy-close-shardings",
        "sdy-remove-sub-axes-in-input-output-shardings",
    }
)
# What follows propagation in Shardy's pipeline; `planned_module` runs others instead.
_AFTER = frozenset(
    {
        "sdy-save-module",
        "sdy-verify-unreduced-axes",
        "sdy-insert-explicit-reshards",
        "canonicalize",
        "sdy-drop-sharding-rules",
    }
)
_SHARE_CALLS = "sdy-unflatten-call-graph"
_UNGROUP = "sdy-remove-sharding-groups"
_ORIGINS, _STEPS = "debug-sharding-origins", "debug-propagation-edge-sharding"
# Shardy crashes when it has to name the origin of a sharding that comes from none of the values of
# an operation. That happens in this pass where a constraint is put before a shard_map (the pass
# that propagates names its origin all the same), and in any pass where values are grouped.
_NO_ORIGINS = "sdy-apply-sharding-constraints"
_GROUP = "sdy.sharding_group"
_PROPAGATE = "sdy-user-priority-propagate"
_PLANNED = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "func.func(sdy-reshard-to-collectives)",
)
_ELSE = "A program cannot be explained before it is compiled; everything else works."


def available() -> str:
    """`""` where Shardy's passes can be run; else one sentence that says what is missing.

    >>> available()
    ''
    """
    if words := _missing():
        return words
    jax = importlib.import_module("jax")
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        return (
            "jax is set to GSPMD, which explains nothing: jax_use_shardy_partitioner is False."
            " Set it to True to see why; everything else works."
        )
    return ""


def propagate(module: Any, per_call: bool = False) -> Any:
    """A copy of a lowered module in which Shardy has settled every value's sharding.

    Every operation says where its axes came from (`sdy.sharding_origins`), which steps crossed it
    (`sdy.propagation_edges`) and by which rule (`sdy.sharding_rule`). No reshard is inserted.

    Args:
        module: what `lowered.compiler_ir("stablehlo")` gives; it is left as it is, since jax
            keeps it.
        per_call: whether every call of a function gets a copy of its own, with the origins and
            steps of that call. What is compiled is one copy for all calls that are split alike.

    Raises:
        ProgramError: where jaxlib has no such passes.
        Exception: whatever a pass raises.
    """
    _refuse()
    passes = [p for p in _passes(debug=True) if not (per_call and _name(p) == _SHARE_CALLS)]
    if grouped(module):
        # The groups stay in, so that PlanReader can name them.
        passes = [_without(p, _ORIGINS) for p in passes if _name(p) != _UNGROUP]
    return _run(module, passes)


def grouped(module: Any) -> bool:
    """Whether a module has groups of values that are split alike, as `shard_alike` makes them.

    Of such a module `propagate` records no origins of axes, only steps.
    """
    return any(_groups(item.operation) for item in module.body.operations)


def planned_module(module: Any) -> Any:
    """A copy of a lowered module with the collectives that Shardy itself would insert.

    Its functions hold `sdy.all_gather`, `sdy.all_reduce`, `sdy.reduce_scatter` and their like:
    an estimate, since XLA's partitioner goes its own way.

    Args:
        module: as for `propagate`.

    Raises:
        ProgramError: where jaxlib has no such passes.
        Exception: whatever a pass raises.
    """
    return _run(module, (*_passes(debug=False), *_planning()))


def planned_module_on(propagated: Any) -> Any:
    """The same as `planned_module`, from what `propagate` gave, so that it propagates only once.

    The result is an operation, not a module; it lives no longer than the context of the module.
    """
    copy = propagated.operation.clone()
    with propagated.context:
        _manager((_UNGROUP, *_planning())).run(copy)
    return copy


def _planning() -> tuple[str, ...]:
    # The pipeline's own last step merges reshards that follow each other.
    merge = [p for p in _pipeline() if _name(p) == "canonicalize"]
    return (_PLANNED[0], *merge, _PLANNED[1])


def _refuse() -> None:
    if words := available():
        raise ProgramError(words)


def _run(module: Any, passes: Sequence[str]) -> Any:
    _refuse()
    with module.context as context:
        context.enable_multithreading(False)  # to share so little work costs more than it saves
        # Cloned, not printed and parsed: that takes three times as long as all that is done here.
        copy = module.operation.clone()
        rewrite_operations(copy)
        read_invariants_outside(copy)
        _manager(passes).run(copy)
    return copy


def _manager(passes: Sequence[str]) -> Any:
    made = _bindings()[1].PassManager.parse(f"builtin.module({','.join(passes)})")
    # jaxlib 0.10 refuses its own data-flow edges inside loops once they carry their origins;
    # the shardings are the same as without.
    made.enable_verifier(False)
    return made


@functools.cache
def _bindings() -> tuple[Any, Any]:
    # By name, since jaxlib ships no types for them.
    return (
        importlib.import_module("jaxlib.mlir.ir"),
        importlib.import_module("jaxlib.mlir.passmanager"),
    )


@functools.cache
def _missing() -> str:
    try:
        _bindings()
    except ImportError as error:
        return f"This jaxlib has no MLIR pass manager ({error}). {_ELSE}"
    try:
        passes = _pipeline()
    except Exception as error:  # noqa: BLE001  MLIR raises several kinds for an unknown name
        words = (str(error).strip().splitlines() or ["no reason given"])[0]
        return f"This jaxlib knows no pipeline sdy-propagation-pipeline ({words}). {_ELSE}"
    names = [_name(p) for p in passes]
    if _PROPAGATE not in names:
        return f"This jaxlib's Shardy has no pass {_PROPAGATE}. {_ELSE}"
    if unknown := [n for n in names if n not in _KNOWN | _AFTER]:
        return (
            f"This jaxlib's Shardy has a pass that this version of shardviz has not been tried"
            f" with: {unknown[0]}. {_ELSE}"
        )
    return ""


@functools.cache
def _passes(debug: bool) -> tuple[str, ...]:
    """The pipeline's passes up to the settled shardings."""
    passes = [p for p in _pipeline() if _name(p) in _KNOWN]
    if debug:
        for option in (_ORIGINS, _STEPS):
            passes = [p.replace(f"{option}=false", f"{option}=true") for p in passes]
        passes = [_without(p, _ORIGINS) if _name(p) == _NO_ORIGINS else p for p in passes]
    return tuple(passes)


@functools.cache
def _pipeline() -> tuple[str, ...]:
    ir, manager = _bindings()
    with ir.Context():
        # The alias takes no options, but written out its passes do.
        text = str(manager.PassManager.parse("builtin.module(sdy-propagation-pipeline)"))
    return tuple(_split(text[len("builtin.module(") : -1]))


def _without(text: str, option: str) -> str:
    """A pass with an option off."""
    return text.replace(f"{option}=true", f"{option}=false")


def _groups(op: Any) -> bool:
    return op.name == _GROUP or any(
        _groups(item.operation)
        for region in op.regions
        for block in region.blocks
        for item in block.operations
    )


def _split(text: str) -> list[str]:
    """The passes of a pipeline: its parts between commas that are in no brackets."""
    parts: list[str] = []
    depth = start = 0
    for position, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _name(text: str) -> str:
    """The name of a pass, without its options and the pass manager around it."""
    return text.removeprefix("func.func(").split("{")[0].rstrip(")")
