"""Sentences about edits of a program."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.advise.edits import (
    CastBeforeLoop,
    ChangeConstraint,
    ChangeMesh,
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
    Donate,
    Edit,
    EditTypes,
    MakeExplicit,
    OrderDevices,
    Rematerialise,
    SplitArgument,
    SplitResult,
    SumAfterLoop,
    SumUnreduced,
)
from shardviz.axis_rules.words.remedies import decapitalised
from shardviz.base.format import by_count, joined


def edits_in_words(edits: Sequence[Edit]) -> str:
    """Joins several edits into one sentence, without a full stop."""
    if not edits:
        return "Unchanged"
    first, *others = _sentences(edits)
    return joined([first, *map(decapitalised, others)])


def _sentences(edits: Sequence[Edit]) -> list[str]:
    """Returns a sentence per edit; arguments with the same new spec share one."""
    by_spec: dict[str, list[SplitArgument]] = {}
    for edit in edits:
        if isinstance(edit, SplitArgument):
            by_spec.setdefault(str(edit.spec), []).append(edit)
    sentences = []
    for edit in edits:
        if not isinstance(edit, SplitArgument):
            sentences.append(str(edit))
        # The sentence of the first argument names all arguments with this spec.
        elif same_spec := by_spec.pop(str(edit.spec), None):
            sentences.append(_split_arguments(same_spec))
    return sentences


def _split_arguments(edits: Sequence[SplitArgument]) -> str:
    spec, arrays = edits[0].spec, joined(edit.array for edit in edits)
    if not spec.axes:
        return f"Replicate {arrays}"
    return f"Split {by_count(len(edits), 'argument', 'arguments')} {arrays} as {spec}"


def split_argument(edit: SplitArgument) -> str:
    return _split_arguments([edit])


def split_result(edit: SplitResult) -> str:
    """Describes the new spec of a result.

    >>> from shardviz.base.partition_spec import Spec
    >>> split_result(SplitResult("output", Spec.parse("data")))
    "Return output as P('data')"
    """
    if not edit.spec.axes:
        return f"Return {edit.result} replicated"
    return f"Return {edit.result} as {edit.spec}"


def change_rules(edit: ChangeRules) -> str:
    steps = ", then ".join(decapitalised(str(step)) for step in edit.steps)
    return f"Change the rules: {steps}"


def constrain_argument(edit: ConstrainArgument) -> str:
    return (
        f"Constrain argument {edit.array} to {edit.spec} at the start of the function"
    )


def constrain_value(edit: ConstrainValue) -> str:
    spec = edit.spec if edit.spec.axes else "be replicated"
    return f"Constrain {edit.value} ({edit.source}) to {spec}"


def change_constraint(edit: ChangeConstraint) -> str:
    return f"Change the constraint at {edit.source} to {edit.spec}"


def change_mesh(edit: ChangeMesh) -> str:
    return f"Use the mesh {edit.mesh}"


def order_devices(edit: OrderDevices) -> str:
    return "Put the devices in the mesh in another order"


def donate(edit: Donate) -> str:
    noun = by_count(len(edit.arguments), "argument", "arguments")
    return f"Donate {noun} {joined(map(str, edit.arguments))}"


def rematerialise(edit: Rematerialise) -> str:
    return (
        f"Recompute the values saved at {', '.join(edit.sources)} for the backward pass,"
        f" with jax.checkpoint and the policy {edit.policy}"
    )


def cast_before_loop(edit: CastBeforeLoop) -> str:
    return (
        f"Cast {edit.value or 'the value used there'} to varying over"
        f" {', '.join(edit.axes)} before the loop around {edit.source}, so that its"
        " gradient is summed once, after the loop"
    )


def sum_unreduced(edit: SumUnreduced) -> str:
    return (
        f"Leave the product at {edit.source} unreduced over {', '.join(edit.axes)} in the"
        " loop, and sum it once after the loop"
    )


def sum_after_loop(edit: SumAfterLoop) -> str:
    return (
        f"Sum over {', '.join(edit.axes)} once after the loop, instead of at {edit.source}"
        " in each iteration"
    )


def edit_types(edit: EditTypes) -> str:
    return "Edit the operations that jax refuses"


def make_explicit(edit: MakeExplicit) -> str:
    return "Make all mesh axes Explicit, and edit the operations that jax then refuses"


SENTENCES = {
    SplitArgument: split_argument,
    SplitResult: split_result,
    ChangeRules: change_rules,
    ConstrainArgument: constrain_argument,
    ConstrainValue: constrain_value,
    ChangeConstraint: change_constraint,
    ChangeMesh: change_mesh,
    OrderDevices: order_devices,
    Donate: donate,
    Rematerialise: rematerialise,
    CastBeforeLoop: cast_before_loop,
    SumUnreduced: sum_unreduced,
    SumAfterLoop: sum_after_loop,
    EditTypes: edit_types,
    MakeExplicit: make_explicit,
}
