"""The views of a session as plain data: Session -> JSON, without pictures and without jax.

Every sentence that depends on the core is made here, none on the page.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, listed, plural
from shardviz.core.layout.audit import RuleUse, rule_summary
from shardviz.core.layout.mesh import AXIS_TYPES, MeshSpec
from shardviz.core.layout.resolution import Request, explain_decision
from shardviz.core.layout.rules import Dialect
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import rules as gallery_rules
from shardviz.legacy.equivalents import equivalents
from shardviz.widgets.menus import described_options, program_options
from shardviz.widgets.session import ARRAY_FIELDS, DEVICE_PUT, ArrayFields, Session

SHOWN_NAMES = 3
# Edits without a field of their own: their errors are shown in the program bar.
NOTED = (
    "select", "by", "colour", "dims", "at", "add", "remove", "dialect", "types", "fit",
)  # fmt: skip
MAX_HOSTS = 16  # the part of the mesh is computed for so many hosts on an edit


def mesh_view(session: Session) -> dict[str, Any]:
    """The mesh bar: fields, axes, and the number of devices."""
    mesh = session.mesh
    types = sorted(set(mesh.axis_types))
    hosts = plural(len(mesh.processes), "host")
    return {
        "text": session.text["mesh"],
        "error": session.errors.get("mesh", ""),
        "hosts": session.text["hosts"],
        "hostsError": session.errors.get("hosts", ""),
        "types": types[0] if len(types) == 1 else "mixed",
        "axes": [
            {"name": n, "size": s, "type": t}
            for n, s, t in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
        ],
        "count": f"{plural(mesh.size, 'device')} · {hosts}",
        "local": _local_parts(mesh),
    }


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
    programs = program_options()
    if session.own is not None:
        programs.insert(0, {"value": "", "label": session.own.name, "title": "Your program."})
    programs.append(
        {"value": DEVICE_PUT, "label": DEVICE_PUT, "title": "Puts the arrays on their devices."}
    )
    return {
        "axisTypes": list(AXIS_TYPES),
        "presets": _presets(),
        "dialects": [d.value for d in Dialect],
        "programs": programs,
        "targets": described_options(),
    }


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


def array_view(fields: ArrayFields, request: Request, known: dict[Any, Any]) -> dict[str, Any]:
    """One array card, and the reasons in the sentence about the array.

    Args:
        fields: of the array.
        request: the array, resolved and laid out.
        known: warnings and reasons by shape, names and spec, which the layers of a model share.
    """
    array, layout = request.array, request.layout
    kind = (array.shape, array.logical, array.spec)
    if kind not in known:
        known[kind] = _warnings(request), _dims(request)
    warnings, dims = known[kind]
    view: dict[str, Any] = {
        "name": array.name,
        "short": array.short,
        "bytes": bytes_text(array.bytes),
        "logical": " · ".join("_" if n is None else str(n) for n in array.logical or ()),
        "spec": "" if request.spec is None else str(request.spec),
        "typedSpec": array.spec is not None,
        "byRules": request.resolution is not None and array.spec is None,
        "fields": {
            name: {"text": fields.text[name], "error": fields.errors.get(name, "")}
            for name in ARRAY_FIELDS
        },
        "problem": request.problem or "",
        "warnings": warnings,
        "shape": list(array.shape),
        "dims": dims,
        "rank": array.rank,
    }
    if layout is not None:
        view |= {
            "counts": list(layout.block_counts),
            "shard": list(layout.shard_shape),
            "strides": list(layout.group_strides or ()),
            "blocks": layout.num_blocks,
            "replicas": layout.replicas,
            "shardBytes": bytes_text(layout.bytes_per_device),
            "summary": f"{bytes_text(layout.bytes_per_device)} per device · "
            + ("no replicas" if layout.replicas == 1 else plural(layout.replicas, "replica")),
        }
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
    array, spec, entries = request.array, request.spec, []
    for dim in range(array.rank):
        name = None if array.logical is None else array.logical[dim]
        axes = spec.dims[dim] if spec is not None and dim < len(spec.dims) else ()
        entries.append(
            {
                "name": "" if name is None else str(name),
                "axes": list(axes),
                "why": _why(request, dim),
            }
        )
    return entries


def _why(request: Request, dim: int) -> str:
    if request.spec_wins:
        axes = request.spec.dims[dim] if request.spec and dim < len(request.spec.dims) else ()
        said = f"is split over {listed(axes)}" if axes else "is not split"
        return f"dim {dim} {said}, as the PartitionSpec says."
    if request.resolution is None:
        return f"dim {dim} is not split: there are no logical names or no rules."
    return explain_decision(request.resolution, request.resolution.decisions[dim])


def rules_view(session: Session) -> dict[str, Any]:
    """The rule table: its text, and the effect of every rule."""
    summary = rule_summary(session.program.requests, session.rules)
    # A row is shown beside its line of text only where the text has one rule per line.
    lines = session.text["rules"].split("\n")
    numbers = [
        i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")
    ]
    aligned = len(numbers) == len(summary) and "rules" not in session.errors
    return {
        "text": session.text["rules"],
        "error": session.errors.get("rules", ""),
        "dialect": session.program.dialect.value,
        "aligned": aligned,
        "rows": [
            {"line": numbers[i] if aligned else i, **_rule_row(use)}
            for i, use in enumerate(summary)
        ],
    }


def _rule_row(use: RuleUse) -> dict[str, Any]:
    """A row of the rule table: the arrays that the rule decides, and why not others."""
    note = ""
    if use.broken:
        note = f"{use.broken[0][0]}: {use.broken[0][1]}"
    elif use.lost:
        note = f"{use.lost[0][0]}: {use.lost[0][1]}"
        if len(use.lost) > 1:
            note += f" (+{len(use.lost) - 1})"
    elif use.never:
        note = use.never.removeprefix("never fires: ")
    return {
        "decides": _few(use.decides),
        "not_split": _few(use.leaves_unsplit),
        "never": bool(use.never),
        "broken": bool(use.broken),
        "note": note,
        "more": "\n".join(f"{name}: {text}" for name, text in (*use.broken, *use.lost)),
    }


def _few(names: tuple[str, ...]) -> str:
    extra = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" +{extra}" if extra > 0 else "")


def program_view(session: Session) -> dict[str, Any]:
    """The program bar: what can be chosen, and the requested stage."""
    arrays = session.program.requests
    split = sum(1 for r in arrays if r.layout is not None and r.layout.num_blocks > 1)
    broken = len(session.program.problems)
    requested = f"{plural(len(arrays), 'array')}, {split} split"
    if broken:
        requested += f", {broken} cannot be laid out"
    total = sum(r.layout.bytes_per_device for r in arrays if r.layout is not None)
    return {
        "value": session.entry,
        "error": session.errors.get("program", "") or session.errors.get("preset", ""),
        "lost": _missing(session.missing_function),
        "requested": requested,
        "requestedBytes": f"{bytes_text(total)} per device",
        "problems": list(session.program.problems),
    }


def _missing(name: str) -> str:
    """Why a state that was saved with a program opens with its arrays only."""
    if not name:
        return ""
    return (
        f"A saved state holds arrays and no functions: “{name}” was not restored, and only its"
        " arrays are shown. Open it again with sv.explore(program), or choose a program here."
    )


def session_view(session: Session) -> dict[str, Any]:
    """Everything but the pictures and the report."""
    requests = session.program.requests
    known: dict[Any, Any] = {}
    arrays = [array_view(f, r, known) for f, r in zip(session.fields, requests, strict=True)]
    chosen = requests[session.selected].layout if requests else None
    if chosen is not None:
        arrays[session.selected]["also"] = [list(item) for item in equivalents(chosen).items()]
    return {
        "mesh": mesh_view(session),
        "arrays": arrays,
        "count": len(arrays),
        "selected": session.selected,
        "revision": session.revision,
        "rules": rules_view(session),
        "program": program_view(session),
        "look": {"by": session.look["by"], "colour": session.look["colour"]},
        "notes": [session.errors[name] for name in NOTED if name in session.errors],
    }
