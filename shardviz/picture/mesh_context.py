"""The mesh in force, as each API of jax finds it."""

from __future__ import annotations

from shardviz.core.layout.mesh_context import APIS, MeshContext
from shardviz.picture.page import paragraphs, sentences, titled
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Cell, matrix

# The slots of jax, as its users know them, each with the column of its tiles.
_SLOTS = {
    "abstract": "abstract mesh",
    "current": "jax.set_mesh",
    "legacy": "with mesh:",
}


def draw_mesh_context(context: MeshContext, title: str | None = None) -> Picture:
    """A row per API, a column per slot of jax, a tile where the API finds its mesh."""
    cells, remarks = [], []
    for row, api in enumerate(APIS):
        slot, mesh = context.slot(api), context.sees(api)
        remarks.append("" if mesh else "finds no mesh")
        if slot is None:
            continue
        # A mesh of explicit axes is one of the abstract meshes.
        source = "abstract" if slot == "explicit" else slot
        column = list(_SLOTS).index(source)
        hint = f"{api} finds {mesh} in {_SLOTS[source]}"
        cells.append(Cell(row, column, str(mesh), column, hint))
    lines = context.explain().splitlines()
    return matrix(
        list(APIS),
        list(_SLOTS.values()),
        cells,
        remarks=remarks,
        least=92.0,
        title=titled(title, f"mesh in force: {context.mesh or 'none'}"),
        notes=lines,
        alt=sentences(lines),
        groups=3,
        facts={"kind": "mesh context"},
    )


def mesh_context_text(context: MeshContext, width: int) -> str:
    """A mesh context: its explanation, then what each API sees."""
    rows = [f"{api}: {mesh or '–'}" for api, mesh in context.table().items()]
    return paragraphs([context.explain(), *rows], width)
