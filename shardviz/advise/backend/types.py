"""typed_changes(): the program that jax accepts in place of one that it refuses.

The edits of each refusal, in order, are priced by the bytes that the partitioner sends
in the whole program with that edit, with the best edits of the refusals before it and
the first edits of those after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardviz.advise.backend.trials import Trials
from shardviz.advise.candidates import Changes, Refusal, sent_bytes
from shardviz.advise.edits import EditTypes, MakeExplicit
from shardviz.compiled.checks import Check
from shardviz.hardware.targets import Target
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.refused import TypedForm, explicit_form, typed_form
from shardviz.programs.backend.trace import trace
from shardviz.programs.program import Program
from shardviz.programs.refusals import SkipCheck, TypeEdit, TypeRefusal


def typed_changes(
    program: Program,
    goal: str,
    target: Target | str | None = None,
    clock: Callable[[str], None] | None = None,
) -> Changes:
    """The program in a form that jax accepts, compiled and compared.

    Args:
        program: the program.
        goal: `"types"` for edits of what jax refuses, `"explicit"` for the program on
            Explicit axes.
        target: the target to compile for.
        clock: called with the name of every stage as it begins.

    Returns:
        One change, or none if there is no such form. It is compared with the program
        without the types that jax refuses, and the advice is every refusal, with its
        edits priced.

    Raises:
        Exception: what the function raises for reasons other than its types.
    """
    types = program.mesh.axis_types
    if goal == "explicit":
        axes = ("Explicit",) * len(program.mesh.axis_names)
        program = program.replace(mesh=program.mesh.replace(axis_types=axes))
    error: Exception | None = None
    try:
        trace(program, abstract_mesh(program.mesh))
    # A user's function may raise anything; errors other than of types are raised below.
    except Exception as raised:  # noqa: BLE001
        error = raised
    if error is None and program.mesh.axis_types == types:
        return Changes.of(())  # jax accepts it unchanged

    def form_with(chosen: dict[int, int]) -> TypedForm:
        """The typed program, with the chosen edit of each refusal."""
        if goal == "explicit":
            return explicit_form(program, chosen)
        assert error is not None  # a program that jax accepts was returned above
        return typed_form(program, error, chosen)

    try:
        form = form_with({})
    # The function was traced with unsplit arguments, which jax may refuse too.
    except Exception as raised:  # noqa: BLE001
        raise error or raised from None
    if error is not None and not form.refusals:
        raise error
    if form.program is None or form.base is None:
        return Changes.of((), advice=form.refusals)
    trials, chosen = _TypedTrials(form.base, target, clock), dict[int, int]()
    priced, best_edits = list[TypeRefusal](), list[TypeRefusal]()
    # An edit may lead to other refusals after it, so they are counted each time.
    while len(priced) < len(form.refusals):
        number = len(priced)
        refusal = form.refusals[number]
        if refusal.backward:  # jax makes it again from the edited forward pass
            priced.append(refusal)
            continue
        edits = []
        for choice, edit in enumerate(refusal.edits):
            form_with_edit = form_with({**chosen, number: choice})
            priced_edit = _priced(trials, edit, form_with_edit, choice)
            if priced_edit.edit.is_right is not False:
                edits.append(priced_edit)
        if not edits:  # jax accepts each of them, and its results are wrong
            priced.append(replace(refusal, edits=()))
            return Changes.of((), advice=(*priced, *form.refusals[number + 1 :]))
        edits.sort(key=lambda priced_edit: priced_edit.rank)
        best = edits[0]
        chosen[number] = best.choice
        priced.append(replace(refusal, edits=tuple(row.edit for row in edits)))
        best_edits.append(replace(refusal, edits=(replace(best.edit, bytes=None),)))
        form = form_with(chosen)
    assert form.program is not None
    # Nothing can edit the user's function around a shard_map; and only the user knows
    # which edit of its results is right if their values can't tell.
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
    """An edit of a refusal with the bytes sent with it.

    Attributes:
        choice: its number among the edits of its refusal.
        edit: the edit, with its bytes and whether its results are right.
        rank: a sort key, least for the best edit.
    """

    choice: int
    edit: TypeEdit
    rank: tuple[bool, bool, bool, int, int]


def _priced(
    trials: _TypedTrials, edit: TypeEdit, form: TypedForm, choice: int
) -> _PricedEdit:
    """An edit, priced by the program with it."""
    collectives = None
    if form.program is not None:
        collectives = trials.partitioned(form.program).collectives
        if edit.is_right is None and form.meaning is not None:
            trials.meaning = form.meaning
            is_right = trials.values(form.program).ok
            # Without the check the result is the first device's, which may be right by
            # accident.
            if not isinstance(edit, SkipCheck) or not is_right:
                edit = replace(edit, is_right=is_right)
    sent = None if collectives is None else sent_bytes(collectives)
    is_last = isinstance(edit, SkipCheck) and edit.is_right is None
    # Among equal edits the first one is the smallest; one that did not compile is last.
    rank = is_last, edit.is_right is None, sent is None, sent or 0, choice
    return _PricedEdit(choice, replace(edit, bytes=sent), rank)


class _TypedTrials(Trials):
    """Trials of the edits of a program that jax refuses.

    Attributes:
        meaning: the edited program with a single device along the axes over which its
            results differed, if any did. The base has no right values then.
    """

    meaning: Program | None = None

    def values(self, program: Program) -> Check:
        """The results of a program, compared with those on whole arrays."""
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
