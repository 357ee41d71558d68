"""typed_changes(): edits a program whose types jax refuses until jax accepts it.

A refusal is an operation that jax refuses, with possible edits. Refusals are processed
in order. The price of an edit is the bytes that the partitioned program sends. That
program has this edit, the best edits of earlier refusals, and the first edits of later
refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardviz.advise.backend.trials import Trials
from shardviz.advise.candidates import Changes, Refusal
from shardviz.advise.edits import EditTypes, MakeExplicit
from shardviz.base.collective import sent_in_all
from shardviz.compiled.checks import Check
from shardviz.hardware.targets import TargetLike
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.refused import TypedForm, explicit_form, typed_form
from shardviz.programs.backend.trace import trace
from shardviz.programs.program import Program
from shardviz.programs.refusals import SkipCheck, TypeEdit, TypeRefusal


def typed_changes(
    program: Program,
    goal: str,
    target: TargetLike = None,
    clock: Callable[[str], None] | None = None,
) -> Changes:
    """Edits a program's types so that jax accepts it, then compiles and compares it.

    Args:
        program: the program.
        goal: `"types"` to edit operations that jax refuses, `"explicit"` to also make
            all mesh axes Explicit.
        target: the compile target.
        clock: called with the name of each stage as it starts.

    Returns:
        At most one change, compared with the program without the refused types. The
        advice contains every refusal with its priced edits.

    Raises:
        Exception: any error of the function that is not about its types.
    """
    types = program.mesh.axis_types
    if goal == "explicit":
        axes = ("Explicit",) * len(program.mesh.axis_names)
        program = program.replace(mesh=program.mesh.replace(axis_types=axes))
    error: Exception | None = None
    try:
        trace(program, abstract_mesh(program.mesh))
    # The user's function may raise anything. Errors that are not about types are raised
    # again below.
    except Exception as raised:  # noqa: BLE001
        error = raised
    if error is None and program.mesh.axis_types == types:
        return Changes.of(())  # jax accepts it unchanged

    def form_with(chosen: dict[int, int]) -> TypedForm:
        """Returns the typed program with the chosen edit of each refusal."""
        if goal == "explicit":
            return explicit_form(program, chosen)
        assert error is not None  # a program that jax accepts was returned above
        return typed_form(program, error, chosen)

    try:
        form = form_with({})
    # `form_with` traces the function with replicated arguments. jax may refuse those,
    # too.
    except Exception as raised:  # noqa: BLE001
        raise error or raised from None
    if error is not None and not form.refusals:
        raise error
    if form.program is None or form.base is None:
        return Changes.of((), advice=form.refusals)
    trials, chosen = _TypedTrials(form.base, target, clock), dict[int, int]()
    priced, best_edits = list[TypeRefusal](), list[TypeRefusal]()
    # An edit may change which refusals follow, so count the refusals each time.
    while len(priced) < len(form.refusals):
        number = len(priced)
        refusal = form.refusals[number]
        if refusal.backward:  # jax derives it from the edited forward pass
            priced.append(refusal)
            continue
        edits = []
        for choice, edit in enumerate(refusal.edits):
            form_with_edit = form_with({**chosen, number: choice})
            priced_edit = _priced(trials, edit, form_with_edit, choice)
            if priced_edit.edit.is_right is not False:
                edits.append(priced_edit)
        if not edits:  # jax accepts every edit, but the results are wrong
            priced.append(replace(refusal, edits=()))
            return Changes.of((), advice=(*priced, *form.refusals[number + 1 :]))
        edits.sort(key=lambda priced_edit: priced_edit.rank)
        best = edits[0]
        chosen[number] = best.choice
        priced.append(replace(refusal, edits=tuple(row.edit for row in edits)))
        best_edits.append(replace(refusal, edits=(replace(best.edit, bytes=None),)))
        form = form_with(chosen)
    assert form.program is not None
    # Propose no program if the function around a shard_map cannot be edited, or if only
    # the user knows which edit of the shard_map's results is right.
    is_unsure = any(
        refusal.operation == "shard_map" and refusal.edits[0].is_right is None
        for refusal in best_edits
    )
    if form.is_part or is_unsure:
        return Changes.of((), advice=priced)
    trials.meaning = form.meaning
    edit_class = MakeExplicit if goal == "explicit" else EditTypes
    return _changes(trials, edit_class(tuple(best_edits)), form.program, priced)


class _PricedEdit(NamedTuple):
    """An edit of a refusal, and its rank among the refusal's edits.

    Attributes:
        choice: the edit's index among the refusal's edits.
        edit: the edit, including the bytes sent and whether its results are right.
        rank: a sort key; the best edit has the lowest.
    """

    choice: int
    edit: TypeEdit
    rank: tuple[bool, bool, bool, int, int]


def _priced(
    trials: _TypedTrials, edit: TypeEdit, form: TypedForm, choice: int
) -> _PricedEdit:
    """Prices an edit by the bytes that the edited program sends."""
    collectives = None
    if form.program is not None:
        collectives = trials.partitioned(form.program).collectives
        if edit.is_right is None and form.meaning is not None:
            trials.meaning = form.meaning
            is_right = trials.values(form.program).ok
            # If jax skips the check, it returns the first device's result, which may be
            # right by accident.
            if not isinstance(edit, SkipCheck) or not is_right:
                edit = replace(edit, is_right=is_right)
    sent = None if collectives is None else sent_in_all(collectives)
    is_last = isinstance(edit, SkipCheck) and edit.is_right is None
    # Among equal edits, the first is the smallest. An edit that did not compile comes
    # last.
    rank = is_last, edit.is_right is None, sent is None, sent or 0, choice
    return _PricedEdit(choice, replace(edit, bytes=sent), rank)


class _TypedTrials(Trials):
    """Trials of the edits of a program that jax refuses.

    Attributes:
        meaning: the reference program: the edited program with a single device along
            the axes over which its results differed. None if the base program is the
            reference.
    """

    meaning: Program | None = None

    def values(self, program: Program) -> Check:
        """Compares a program's results with those of the reference program."""
        if self.meaning is None:
            return super().values(program)
        return Trials(self.meaning, self.target, self.clock).values(program)


def _changes(
    trials: Trials, edit: EditTypes, program: Program, advice: Sequence[TypeRefusal]
) -> Changes:
    candidate = trials.compile([edit], program)
    if not isinstance(candidate, Refusal):
        candidate = trials.compare(candidate)
    if isinstance(candidate, Refusal):
        return Changes.of((), refused=[candidate], advice=advice)
    return Changes.of([candidate], advice=advice)
