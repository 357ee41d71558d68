"""typed_changes(): the program that jax accepts in place of one that it refuses.

Of each refusal in order all edits are priced: by what the partitioner sends in the
whole program with that edit, with the best of those before it and the first after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardviz.advise.backend.trials import Trials
from shardviz.advise.candidates import Changes, Edit, Refusal, sent_bytes
from shardviz.compiled.checks import Check
from shardviz.hardware.targets import Target
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.refused import TypedForm, explicit_form, typed_form
from shardviz.programs.backend.trace import trace
from shardviz.programs.program import Program
from shardviz.programs.refusals import TypeRefusal


def typed_changes(
    program: Program,
    way: str,
    target: Target | str | None = None,
    clock: Callable[[str], None] | None = None,
) -> Changes:
    """The program in a form that jax accepts, compiled and compared.

    Args:
        program: the program.
        way: `"types"` for what jax refuses of it, `"explicit"` for its form on Explicit
            axes.
        target: what to compile for.
        clock: called with the name of every stage as it begins.

    Returns:
        One change, or none where there is no such form. It is compared with the program
        without the types that jax refuses, and the advice is every refusal, with its
        edits priced.

    Raises:
        Exception: what the function raises for other reasons than its types.
    """
    types = program.mesh.axis_types
    if way == "explicit":
        axes = ("Explicit",) * len(program.mesh.axis_names)
        program = program.replace(mesh=program.mesh.replace(axis_types=axes))
    refused: Exception | None = None
    try:
        trace(program, abstract_mesh(program.mesh))
    # A user's function may raise anything; what is no refusal of types is raised below.
    except Exception as error:  # noqa: BLE001
        refused = error
    if refused is None and program.mesh.axis_types == types:
        return Changes.of(())  # jax accepts it as it is

    def formed(chosen: dict[int, int]) -> TypedForm:
        if way == "explicit":
            return explicit_form(program, chosen)
        assert refused is not None  # what jax accepts has been returned
        return typed_form(program, refused, chosen)

    try:
        form = formed({})
    # It was traced with arguments that are not split, which may be refused for that.
    except Exception as error:  # noqa: BLE001
        raise refused or error from None
    if refused is not None and not form.refusals:
        raise refused
    if form.program is None or form.base is None:
        return Changes.of((), advice=form.refusals)
    trials, chosen = _TypedTrials(form.base, target, clock), dict[int, int]()
    priced, written = list[TypeRefusal](), list[TypeRefusal]()
    # An edit may lead to other refusals after it, so they are counted each time.
    while len(priced) < len(form.refusals):
        number, edits = len(priced), []
        refusal = form.refusals[number]
        if refusal.backward:  # nobody writes it
            priced.append(refusal)
            continue
        for k, edit in enumerate(refusal.edits):
            tried, collectives = formed({**chosen, number: k}), None
            if tried.program is not None:
                collectives = trials.partitioned(tried.program).collectives
                if edit.is_right is None and tried.meaning is not None:
                    trials.meaning = tried.meaning
                    is_right = trials.values(tried.program).ok
                    # Without the check the result is the first device's, which may be
                    # right by accident.
                    if edit.code != "check_vma" or not is_right:
                        edit = replace(edit, is_right=is_right)
            sent = None if collectives is None else sent_bytes(collectives)
            if edit.is_right is not False:
                # The first of equal ones is the smallest; what did not compile is last.
                is_last = edit.code == "check_vma" and edit.is_right is None
                row = is_last, edit.is_right is None, sent is None, sent, k
                edits.append((*row, replace(edit, bytes=sent)))
        if not edits:  # jax accepts each of them, and its results are wrong
            priced.append(replace(refusal, edits=()))
            return Changes.of((), advice=(*priced, *form.refusals[number + 1 :]))
        edits.sort(key=lambda row: row[:5])
        chosen[number] = edits[0][4]
        priced.append(replace(refusal, edits=tuple(edit for *_, edit in edits)))
        written.append(
            replace(refusal, edits=(replace(priced[-1].edits[0], bytes=None),))
        )
        form = formed(chosen)
    assert form.program is not None
    # Nothing can edit the user's function around a shard_map; and only the user knows
    # which edit of its results is right if their values can't tell.
    unsure = [one for one in written if one.operation == "shard_map"]
    unsure = [one for one in unsure if one.edits[0].is_right is None]
    if form.is_part or unsure:
        return Changes.of((), advice=priced)
    trials.meaning = form.meaning
    edit = Edit(way, {"refusals": tuple(written)})
    return _changes(trials, edit, form.program, priced)


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
    trials: Trials, edit: Edit, program: Program, advice: Sequence[TypeRefusal]
) -> Changes:
    candidate = trials.candidate([edit], program)
    if isinstance(candidate, Refusal):
        return Changes.of((), refused=[candidate], advice=advice)
    return Changes.of([candidate], advice=advice)
