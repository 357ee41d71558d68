"""The views of a session as plain data: Session -> JSON, without jax.

Every sentence that depends on the core is made here, none on the page. What is empty, and what the
page can derive from the rest, is not sent; `static/view_data.js` puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, joined, listed, plural
from shardviz.core.layout.array_spec import format_names
from shardviz.core.layout.mesh import AXIS_TYPES, MeshSpec
from shardviz.core.layout.optimizer_state import on_fullest_device
from shardviz.core.layout.remedies import Remedy
from shardviz.core.layout.resolution import Request, kinds_of
from shardviz.core.layout.rule_uses import RuleUse, rule_summary
from shardviz.core.layout.rules import Dialect
from shardviz.core.layout.verdicts import Outcome
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import programs as gallery_programs
from shardviz.gallery import puzzles
from shardviz.gallery import rules as gallery_rules
from shardviz.legacy.equivalents import equivalents
from shardviz.widgets.pictures import layout_numbers
from shardviz.widgets.session import ARRAY_FIELDS, DEVICE_PUT, PLACED, ArrayFields, Session
from shardviz.widgets.targets import DevicePlacement, described_options, local_options

SHOWN_NAMES = 3
MOST_REMEDIES = 5
MOST_SAVED_CELLS = 400  # whose sentences a saved page holds
NOTHING = "."
#: A letter for each kind of verdict; the page has its sign, words and colour (`rule_table.js`).
LETTERS = {
    Outcome.APPLIED: "s",
    Outcome.UNSPLIT: "u",
    Outcome.SIZE_ONE: "1",
    Outcome.INDIVISIBLE: "x",
    Outcome.MISSING_AXIS: "x",
    Outcome.REPEATED: "x",
    Outcome.OTHER_NAME: NOTHING,
    Outcome.DECIDED: "d",
    Outcome.TAKEN: "t",
    Outcome.PART_TAKEN: "t",
    Outcome.OVERRIDDEN: "o",
}
MAX_HOSTS = 16  # the part of the mesh is computed for so many hosts on an edit


def mesh_view(session: Session, placement: DevicePlacement | None = None) -> dict[str, Any]:
    """The mesh bar: fields, axes, and the number of devices.

    Args:
        session: whose mesh it is.
        placement: of the mesh on described hardware, which has hosts of its own.
    """
    mesh, hosts = session.mesh, {"hosts": session.text["hosts"]}
    if placement is not None:
        mesh = placement.mesh
        owner = f"{placement.topology.title} has {plural(len(mesh.processes), 'host')}."
        hosts = {"hosts": str(len(mesh.processes)), "hostsOf": owner}
    types = sorted(set(mesh.axis_types))
    one = len(types) == 1
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {
        "text": session.text["mesh"],
        **_filled(error=session.errors.get("mesh"), hostsError=session.errors.get("hosts")),
        **hosts,
        "types": types[0] if one else "mixed",
        "axes": [[name, size] if one else [name, size, kind] for name, size, kind in axes],
        "count": f"{plural(mesh.size, 'device')} · {plural(len(mesh.processes), 'host')}",
        "local": _local_parts(mesh),
    }


def _filled(**fields: Any) -> dict[str, Any]:
    """The fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


@lru_cache(maxsize=8)
def _local_parts(mesh: MeshSpec) -> str:
    """The part of the mesh on each host, which inputs local to a host fill."""
    hosts = mesh.processes
    if len(hosts) < 2:
        return "One host has all of the mesh."
    shapes = set()
    for process in hosts[:MAX_HOSTS]:
        try:
            shapes.add(mesh.local(process).axis_sizes)
        except ShardvizError as error:
            return str(error)
    some = f" (checked for the first {MAX_HOSTS})" if len(hosts) > MAX_HOSTS else ""
    blocks = " or ".join("×".join(map(str, shape)) for shape in sorted(shapes))
    return f"Each host has a block of {blocks} of the mesh{some}."


def menus_view(session: Session) -> dict[str, Any]:
    """The options of all menus: sent once, and not changed by an edit."""
    programs = _program_options()
    if session.own is not None:
        programs.insert(0, {"value": "", "label": session.own.name, "title": "Your program."})
    programs.append(
        {"value": DEVICE_PUT, "label": DEVICE_PUT, "title": "Puts the arrays on their devices."}
    )
    return {
        "axisTypes": list(AXIS_TYPES),
        "presets": _presets(),
        "dialects": [d.value for d in Dialect if not d.by_path],
        "programs": programs,
        "here": local_options(),
        "targets": described_options(),
    }


def _program_options() -> list[dict[str, str]]:
    """The known programs, in two groups.

    >>> sorted({option["group"] for option in _program_options()})
    ['Programs', 'Puzzles']
    """
    return [
        {"value": name, "label": name, "title": registry.describe(name), "group": group}
        for group, registry in (("Programs", gallery_programs), ("Puzzles", puzzles))
        for name in registry.names()
    ]


def _presets() -> list[dict[str, Any]]:
    registries = (
        ("Meshes", "mesh", gallery_meshes),
        ("Rule tables", "rules", gallery_rules),
        ("Arrays", "arrays", gallery_arrays),
    )
    return [
        {
            "group": title,
            "options": [
                {"value": f"{kind}:{name}", "label": name, "title": registry.describe(name)}
                for name in registry.names()
            ],
        }
        for title, kind, registry in registries
    ]


def array_view(fields: ArrayFields, request: Request) -> dict[str, Any]:
    """What was typed about an array, and what that says without rules and mesh."""
    array = request.array
    return {
        "name": array.name,
        "short": array.short,
        "bytes": bytes_text(array.bytes),
        **_filled(names=[n if n is None else str(n) for n in array.logical or ()]),
        "texts": {name: fields.text[name] for name in ARRAY_FIELDS},
        **_filled(errors={name: fields.errors[name] for name in fields.errors}),
    }


def layout_view(request: Request, picture: dict[str, Any], known: dict[Any, Any]) -> dict[str, Any]:
    """How an array is split, and the reasons, one for each dimension.

    Args:
        request: the array, resolved and laid out.
        picture: of the array, as `PictureCache` has it.
        known: warnings and reasons by shape, names and spec, which the layers of a model share.
    """
    array, layout = request.array, request.layout
    kind = (array.shape, array.logical, array.spec)
    if kind not in known:
        known[kind] = _warnings(request), _dims(request)
    warnings, dims = known[kind]
    view = {
        "spec": "" if request.spec is None else str(request.spec),
        "dims": dims,
        **_filled(
            typedSpec=array.spec is not None,
            noRules=request.resolution is None and array.spec is None,
            problem=request.problem,
            warnings=warnings,
        ),
        **picture,
    }
    if layout is not None:
        view |= {**layout_numbers(layout), "strides": list(layout.group_strides or ())}
    return view


def _warnings(request: Request) -> list[str]:
    """What is likely to be a mistake, though the array can be laid out."""
    found = []
    if request.resolution is not None and not request.spec_wins:
        for _, name, near in request.resolution.unmatched():
            hint = f" Did you mean “{near}”?" if near else ""
            found.append(f"No rule names “{name}”.{hint}")
    if request.spec_wins and request.resolution is not None:
        found.append(
            f"This PartitionSpec wins over the rules, which say {request.resolution.spec}."
        )
    return found


def _dims(request: Request) -> list[dict[str, Any]]:
    """One entry per dimension: its mesh axes, and the reason in one sentence."""
    spec, entries = request.spec, []
    for dim in range(request.array.rank):
        axes = spec.dims[dim] if spec is not None and dim < len(spec.dims) else ()
        entries.append({"why": _why(request, dim), **_filled(axes=list(axes))})
    return entries


def _why(request: Request, dim: int, source: str = "the PartitionSpec") -> str:
    if request.spec_wins:
        axes = request.spec.dims[dim] if request.spec and dim < len(request.spec.dims) else ()
        said = f"is split over {listed(axes)}" if axes else "is not split"
        return f"dimension {dim} {said}, as {source} says."
    if request.resolution is not None:
        return request.resolution.explain_dimension(dim)
    if request.problem:
        return request.problem
    what = "names" if request.array.logical is None else "rules"
    return f"dimension {dim} is not split: there are no {'logical ' * (what == 'names')}{what}."


def rules_view(session: Session) -> dict[str, Any]:
    """The rule table as it was typed."""
    return {
        "text": session.text["rules"],
        **_filled(error=session.errors.get("rules")),
        "dialect": session.program.dialect.value,
    }


def program_view(session: Session) -> dict[str, Any]:
    """The program bar: what can be chosen, and the requested stage."""
    arrays = session.program.requests
    split = sum(1 for r in arrays if r.layout is not None and r.layout.num_blocks > 1)
    broken = len(session.program.problems)
    requested = f"{plural(len(arrays), 'array')}, {split} split"
    if broken:
        requested += f", {broken} cannot be laid out"
    total = on_fullest_device(arrays)
    size = f"{bytes_text(total)} per device"
    if missing := sum(r.layout is None for r in arrays):
        size += f", {missing} not counted"
    return {
        "value": session.entry,
        **_filled(
            lost=_missing(session.missing_function),
            broken=broken > 0,
        ),
        "requested": requested,
        "requestedBytes": size,
    }


def _missing(name: str) -> str:
    """Why a state that was saved with a program opens with its arrays only."""
    if not name:
        return ""
    return (
        f"A saved state holds arrays and no functions: “{name}” was not restored, and only its"
        " arrays are shown. Open it again with sv.explore(program), or choose a program here."
    )


def array_trait(number: int) -> str:
    """The name of the trait that holds what was typed about an array."""
    return f"array_{number}"


def layout_trait(number: int) -> str:
    """The name of the trait that holds the layout and the picture of an array."""
    return f"layout_{number}"


def session_view(
    session: Session,
    pictures: Sequence[dict[str, Any]] = (),
    placement: DevicePlacement | None = None,
) -> dict[str, dict[str, Any]]:
    """The traits that show the session, by name, each sent only where it changed.

    Args:
        session: what is shown.
        pictures: of the arrays, as `PictureCache` has them; none of them where this is empty.
        placement: of the mesh on described hardware; None where there is none.
    """
    requests = session.program.requests
    chosen = requests[session.selected].layout if requests else None
    spec = None if chosen is None else str(requests[session.selected].spec)
    also = [] if chosen is None else [list(v) for v in equivalents(chosen).items() if v[1] != spec]
    views: dict[str, dict[str, Any]] = {
        "mesh": mesh_view(session, placement),
        "rules": rules_view(session),
        "program": program_view(session),
        "view": {
            "count": len(requests),
            "selected": session.selected,
            "look": {"by": session.look["by"], "colour": session.look["colour"]},
            **_filled(
                brief=session.brief,
                also=also,
                notes=[text for name, text in session.errors.items() if name not in PLACED],
            ),
        },
    }
    for i, (fields, request) in enumerate(zip(session.fields, requests, strict=True)):
        views[array_trait(i)] = array_view(fields, request)
    for i, layout in enumerate(_layouts(requests, pictures or [{} for _ in requests])):
        views[layout_trait(i)] = layout
    return views


def _layouts(
    requests: Sequence[Request], pictures: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The layouts; of an array that is split as one before it, the number of that one."""
    known: dict[Any, Any] = {}
    first: dict[Any, int] = {}
    for i, (request, picture) in enumerate(zip(requests, pictures, strict=True)):
        array = request.array
        look = (array.shape, array.dtype, array.logical, array.spec, id(picture.get("picture")))
        same = first.setdefault(look, i)
        if same == i or request.layout is None:
            yield layout_view(request, picture, known)
        else:
            yield {"same": same}


def rule_grid(session: Session) -> dict[str, Any]:
    """The effect of every rule, each with the number of its line of text.

    A row is shown beside its line only where the text has one rule per line.
    """
    # Over the whole model: what no opened array needs may be for another leaf.
    summary = rule_summary((kind for kind, _ in kinds_of(session.audit.rows)), session.rules)
    lines = session.text["rules"].split("\n")
    numbers = [
        i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")
    ]
    aligned = len(numbers) == len(summary) and "rules" not in session.errors
    columns = tuple(_columns(session))
    shown = {"columns": [_column(index, more, request) for index, more, request in columns]}
    if not aligned:
        return {"aligned": False, "rows": [], **shown}
    cells = [_letters(request, len(summary)) for _, _, request in columns]
    rows = [
        {"line": line, **_row(use), "cells": "".join(letters[rule] for letters in cells)}
        for rule, (line, use) in enumerate(zip(numbers, summary, strict=True))
    ]
    return {"aligned": True, "rows": rows, **shown}


def _columns(session: Session) -> Iterator[tuple[int, int, Request]]:
    """The arrays with verdicts: the number of the first of those alike, how many more, and it."""
    alike: dict[Any, list[int]] = {}
    requests = session.program.requests
    for i, request in enumerate(requests):
        array = request.array
        if array.rank and array.logical is not None:
            alike.setdefault((array.logical, array.shape, array.spec), []).append(i)
    for numbers in alike.values():
        yield numbers[0], len(numbers) - 1, requests[numbers[0]]


def _column(index: int, more: int, request: Request) -> dict[str, Any]:
    """One array in the head of the grid, and in its last row how it is split."""
    names = request.array.logical or ()
    column: dict[str, Any] = {
        "array": index,
        "name": request.array.name,
        "dims": ["_" if n is None else str(n) for n in names],
        "spec": "" if request.spec is None else str(request.spec),
    }
    if more:
        column["more"] = more
    if request.problem:
        column["problem"] = request.problem
    if request.spec_wins:
        column["typed"] = True
    missing = [] if request.resolution is None else [d for d, *_ in request.resolution.unmatched()]
    if missing and not request.spec_wins:
        column["unmatched"] = missing
    return column


def _letters(request: Request, rules: int) -> list[str]:
    """For every rule a text with a letter for each dimension."""
    found = request.resolution
    if found is None:  # the names cannot be resolved: no rule has anything to say
        return [NOTHING * request.array.rank] * rules
    return [
        "".join(
            LETTERS[found.verdict(d, rule).outcome] if entry.logical == name else NOTHING
            for d, name in enumerate(found.names)
        )
        for rule, entry in enumerate(found.rules)
    ]


def _row(use: RuleUse) -> dict[str, Any]:
    """Which arrays a rule decides, and why not others."""
    reasons = [f"{name}: {text}" for name, text in (*use.broken, *use.lost)]
    note = reasons[0] if reasons else (use.never or "").removeprefix("never fires: ")
    if not use.broken and len(use.lost) > 1:
        note += f" (+{len(use.lost) - 1})"
    found = {
        "decides": _few(use.decides),
        "not_split": _few(use.leaves_unsplit),
        "never": bool(use.never),
        "broken": bool(use.broken),
        "note": note,
        "more": "\n".join(reasons) if len(reasons) > 1 else "",
    }
    return {name: value for name, value in found.items() if value}


def _few(names: tuple[str, ...]) -> str:
    extra = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" +{extra}" if extra > 0 else "")


def read_cell(text: Any) -> tuple[int, int, int] | None:
    """A cell of the grid as the page names it, `rule:array:dimension`; -1 is no rule.

    >>> read_cell("2:0:1"), read_cell("-1:0:1"), read_cell("2:0")
    ((2, 0, 1), (-1, 0, 1), None)
    """
    parts = text.split(":") if isinstance(text, str) and len(text) < 40 else []
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        return None
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def cell_sentence(session: Session, rule: int, array: int, dim: int) -> tuple[str, str]:
    """What a rule did for a dimension: a few words, then a sentence; `-1` is the whole dimension.

    Both are empty where there is no such cell any more.
    """
    requests = session.program.requests
    if not 0 <= array < len(requests) or not 0 <= dim < requests[array].array.rank:
        return "", ""
    request = requests[array]
    name = (request.array.logical or ())[dim : dim + 1]
    where = f"{request.array.name}.{format_names(name)}" if name else request.array.name
    found = request.resolution
    if found is None:
        by_path = session.model is not None and request.path in session.model.by_path
        source = "the audit's table of paths" if by_path else "the PartitionSpec"
        return where, _why(request, dim, source)
    if rule >= len(found.rules):
        return where, "The table has no such rule any more."
    typed = " Its own PartitionSpec wins over the rules." if request.spec_wins else ""
    if rule < 0:
        return where, f"{found.explain_dimension(dim)}{typed}"
    verdict = found.verdict(dim, rule)
    return f"Rule {rule + 1} for {where}: {verdict.kind}", f"R{str(verdict)[1:]}{typed}"


def cell_view(session: Session, text: str) -> dict[str, Any]:
    """The chosen cell: what the rule did there, and why. Empty where there is none."""
    cell = read_cell(text)
    if cell is None:
        return {}
    head, sentence = cell_sentence(session, *cell)
    return {"key": text, "head": head, "text": sentence} if head else {}


def cell_remedies(session: Session, text: str) -> dict[str, Any]:
    """The edits that split the dimension of a cell, found by resolving the whole model again.

    Returns:
        `found`, the smallest `Remedy` values; `remedies`, what the page shows of them; and where
        there are none, `reason`, unless the dimension is split already.
    """
    cell = read_cell(text)
    if cell is None or not cell_sentence(session, *cell)[1]:
        return {"found": (), "remedies": []}
    _, array, dim = cell
    name = session.arrays[array].name
    row = next(row for row in session.audit.rows if row.path == name)
    if row.layout is not None and row.layout.block_counts[dim] > 1:
        return {"found": (), "remedies": []}
    if session.model is not None and name in session.model.by_path:
        at = [leaf.name for leaf in session.model.arrays].index(name)
        reason = (
            "The Explorer cannot edit a table of paths. What to change in it is what"
            f" sv.remedies(audit.rows[{at}], 'split {dim}') finds."
        )
        return {"found": (), "remedies": [], "reason": reason}
    search = row.remedies(f"split {dim}")
    found = search.items[:MOST_REMEDIES]
    shown = [remedy_view(remedy, row) for remedy in found]
    return {"found": found, "remedies": shown, **_filled(reason=search.reason)}


def remedy_view(remedy: Remedy, row: Request) -> dict[str, Any]:
    """A remedy: what to do, and what that does to this array, to memory and to the others."""
    saved, others = remedy.bytes_saved, remedy.others
    memory = "" if saved is None else "same memory"
    if saved:
        memory = f"{'−' if saved > 0 else '+'} {bytes_text(abs(saved))} per device"
    if row.layout is None and remedy.leaf_bytes_saved is not None:
        # It takes nothing as long as it cannot be laid out, so that nothing is saved.
        memory = f"{bytes_text(row.array.bytes - remedy.leaf_bytes_saved)} per device"
    return {
        "edit": remedy.edit,
        "spec": str(remedy.spec),
        "memory": memory,
        "saves": memory.startswith("−"),
        "others": f"also changes {joined(others, limit=3)}" if others else "changes no other array",
    }


def saved_cells(session: Session) -> dict[str, list[str]]:
    """The sentences of the cells that have something to say, for a page without a kernel."""
    cells: dict[str, list[str]] = {}
    for index, _, request in _columns(session):
        letters = _letters(request, len(session.rules))
        for dim in range(request.array.rank):
            rules = [r for r in range(len(session.rules)) if letters[r][dim] != NOTHING]
            for rule in (-1, *rules):
                if len(cells) >= MOST_SAVED_CELLS:
                    return cells
                cells[f"{rule}:{index}:{dim}"] = list(cell_sentence(session, rule, index, dim))
    return cells
