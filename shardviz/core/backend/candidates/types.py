"""typed_changes(): the program that jax accepts in place of one that it refuses.

Of each refusal in order all edits are priced: by what the partitioner sends in the
whole program with that edit, with the best of those before it and the first after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.pmap import without_pmap
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.tracing.refused import TypedForm, explicit_form, typed_form
from shardviz.core.backend.tracing.trace import trace
from shardviz.core.program.candidates import Changes, Edit, Refusal, sent_bytes
from shardviz.core.program.program import Program, Target
from shardviz.core.program.refusals import TypeRefusal


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
            axes, `"pmap"` for its form without `jax.pmap`.
        target: what to compile for.
        clock: called with the name of every stage as it begins.

    Returns:
        One change, or none where there is no such form. It is compared with the program
        without the types that jax refuses, and the advice is every refusal, with its
        edits priced.

    Raises:
        Exception: what the function raises for other reasons than its types.
    """
    if way == "pmap":
        edit, moved = without_pmap(program)
        return _changes(Trials(program, target, clock), edit, moved, ())
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
    trials, chosen = Trials(form.base, target, clock), dict[int, int]()
    priced, written = list[TypeRefusal](), list[TypeRefusal]()
    # An edit may lead to other refusals after it, so they are counted each time.
    while len(priced) < len(form.refusals):
        number, edits = len(priced), []
        refusal = form.refusals[number]
        if refusal.backward:  # nobody writes it
            priced.append(refusal)
            continue
        for k, edit in enumerate(refusal.edits):
            other, found = formed({**chosen, number: k}).program, None
            if other is not None:
                found = trials.partitioned(other).collectives
            sent = None if found is None else sent_bytes(found)
            # The first of equal ones is the smallest; what did not compile comes last.
            edits.append((sent is None, sent, k, replace(edit, bytes=sent)))
        edits.sort(key=lambda row: row[:3])
        chosen[number] = edits[0][2]
        priced.append(replace(refusal, edits=tuple(edit for *_, edit in edits)))
        written.append(replace(refusal, edits=(refusal.edits[chosen[number]],)))
        form = formed(chosen)
    assert form.program is not None
    edit = Edit(way, {"refusals": tuple(written)})
    return _changes(trials, edit, form.program, priced)


def _changes(
    trials: Trials, edit: Edit, program: Program, advice: Sequence[TypeRefusal]
) -> Changes:
    found = trials.candidate([edit], program)
    if isinstance(found, Refusal):
        return Changes.of((), refused=[found], advice=advice)
    for refusal in advice:
        if refusal.edits[0].code == "check_vma":
            # It is as right as the original without the check, of which nothing is known.
            found = replace(found, values=None)
    return Changes.of([found], advice=advice)
