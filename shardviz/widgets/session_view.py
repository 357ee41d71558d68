"""What the page shows, as plain data: Session -> JSON. No picture is drawn here and no jax called.

The page invents nothing: every word that depends on the core is made here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, listed, plural
from shardviz.core.layout.audit import RuleUse, rule_summary
from shardviz.core.layout.mesh import AXIS_TYPES, MeshSpec
from shardviz.core.layout.request import Request
from shardviz.core.layout.resolution import explain_decision
from shardviz.core.layout.rules import Dialect
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import rules as gallery_rules
from shardviz.legacy.equivalents import equivalents
from shardviz.widgets.menus import described_options, program_options
from shardviz.widgets.session import ARRAY_FIELDS, DEVICE_PUT, ArrayFields, Session

SHOWN_NAMES = 3
# Edits without a field of their own: what they refuse stands in the program bar.
NOTED = (
    "select", "by", "colour", "dims", "at", "add", "remove", "dialect", "types", "fit",
)  # fmt: skip
MAX_HOSTS = 16  # how many hosts' parts of the mesh are looked at on an edit


def mesh_view(session: Session) -> dict[str, Any]:
    """The mesh bar: fields, axes, and the devices counted."""
    mesh = session.mesh
    types = sorted(set(mesh.axis_types))
    hosts = plural(len(mesh.processes), "host")
    return {
        "text": session.texts["mesh"],
        "error": session.errors.get("mesh", ""),
        "hosts": session.texts["hosts"],
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
    """What part of the mesh each host has: the box that inputs local to a host fill."""
    hosts = mesh.processes
    if len(hosts) < 2:
        return "One host has all of the mesh."
    shapes = set()
    for process in hosts[:MAX_HOSTS]:
        try:
            shapes.add(mesh.local(process).axis_sizes)
        except ShardvizError as error:
            return str(error)
    some = f" (the first {MAX_HOSTS} looked at)" if len(hosts) > MAX_HOSTS else ""
    blocks = " or ".join("×".join(map(str, shape)) for shape in sorted(shapes))
    return f"Each host has a block of {blocks} of the mesh{some}."


def menus_view(session: Session) -> dict[str, Any]:
    """What the menus offer, whatever is chosen in them: sent once, and with no edit."""
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


def array_view(draft: ArrayFields, asked: Request, known: dict[Any, Any]) -> dict[str, Any]:
    """One array card, and what the sentence says about the array.

    Args:
        known: the reasons of arrays of this kind, which those of the other layers share.
    """
    array, layout = asked.array, asked.layout
    kind = (array.shape, array.logical, array.spec)
    if kind not in known:
        known[kind] = _warnings(asked), _dims(asked)
    warnings, dims = known[kind]
    view: dict[str, Any] = {
        "name": array.name,
        "short": array.short,
        "bytes": bytes_text(array.bytes),
        "logical": " · ".join("_" if n is None else str(n) for n in array.logical or ()),
        "spec": "" if asked.spec is None else str(asked.spec),
        "typedSpec": array.spec is not None,
        "byRules": asked.resolution is not None and array.spec is None,
        "fields": {
            name: {"text": draft.texts[name], "error": draft.errors.get(name, "")}
            for name in ARRAY_FIELDS
        },
        "problem": asked.problem or "",
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
            "summary": f"{bytes_text(layout.bytes_per_device)} a device · "
            + ("no replicas" if layout.replicas == 1 else plural(layout.replicas, "replica")),
        }
    return view


def _warnings(asked: Request) -> list[str]:
    """What a person should see on the card though the picture stands."""
    found = []
    if asked.resolution is not None and not asked.spec_wins:
        for _, name, near in asked.resolution.unmatched():
            hint = f" Did you mean “{near}”?" if near else ""
            found.append(f"No rule knows “{name}”.{hint}")
    if asked.spec_wins and asked.resolution is not None:
        found.append(f"This PartitionSpec wins over the rules, which say {asked.resolution.spec}.")
    return found


def _dims(asked: Request) -> list[dict[str, Any]]:
    """One entry a dimension: who splits it, and why, in one sentence."""
    array, spec, entries = asked.array, asked.spec, []
    for dim in range(array.rank):
        name = None if array.logical is None else array.logical[dim]
        axes = spec.dims[dim] if spec is not None and dim < len(spec.dims) else ()
        entries.append(
            {"name": "" if name is None else str(name), "axes": list(axes), "why": _why(asked, dim)}
        )
    return entries


def _why(asked: Request, dim: int) -> str:
    if asked.spec_wins:
        axes = asked.spec.dims[dim] if asked.spec and dim < len(asked.spec.dims) else ()
        said = f"over {listed(axes)}" if axes else "whole"
        return f"dim {dim} {said}, as the PartitionSpec says."
    if asked.resolution is None:
        return f"dim {dim} stays whole: there are no logical names or no rules."
    return explain_decision(asked.resolution, asked.resolution.decisions[dim])


def rules_view(session: Session) -> dict[str, Any]:
    """The rule table: the text, and beside every rule what it did."""
    summary = rule_summary(session.program.requests, session.rules)
    # Rows stand beside lines of text only while the text is the table, one rule a line.
    lines = session.texts["rules"].split("\n")
    stand = [i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")]
    aligned = len(stand) == len(summary) and "rules" not in session.errors
    return {
        "text": session.texts["rules"],
        "error": session.errors.get("rules", ""),
        "dialect": session.program.dialect.value,
        "aligned": aligned,
        "rows": [
            {"line": stand[i] if aligned else i, **_rule_row(use)} for i, use in enumerate(summary)
        ],
    }


def _rule_row(use: RuleUse) -> dict[str, Any]:
    """A rule's line: who it decides, and in few words who it lost."""
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
        "lost": _lost(session.lost),
        "requested": requested,
        "requestedBytes": f"{bytes_text(total)} a device",
        "problems": list(session.program.problems),
    }


def _lost(name: str) -> str:
    """Why a reopened state places arrays though it was a program's."""
    if not name:
        return ""
    return (
        f"A saved state holds arrays and no functions: “{name}” did not come back, and the arrays"
        " stand alone. Open it again with sv.explore(program), or choose a program here."
    )


def session_view(session: Session) -> dict[str, Any]:
    """Everything but the pictures and the report."""
    asked = session.program.requests
    known: dict[Any, Any] = {}
    arrays = [array_view(d, r, known) for d, r in zip(session.drafts, asked, strict=True)]
    chosen = asked[session.selected].layout if asked else None
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
