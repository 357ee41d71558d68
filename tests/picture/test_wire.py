from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from shardviz.base.collective import Collective
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.draw.picture import DEVICES, Picture, Slot
from shardviz.draw.serialization import serialize
from shardviz.explorer import html_page
from shardviz.pictures import draw
from tests.picture.javascript import run_script
from tests.picture.values import VALUES

READER = Path(html_page.HERE / "picture_data.js")

_SCRIPT = """
import { openTiles, readEdges, readRuler, filledTemplate, devicesOf, idsText, wholeRows } from %s;
import { readFileSync } from "node:fs";
const { data, buffers, ids } = JSON.parse(readFileSync(0, "utf8"));
const views = buffers.map((b) => { const raw = Uint8Array.from(Buffer.from(b, "base64"));
  return new DataView(raw.buffer); });
function read(picture) {
  const tiles = openTiles(picture.tiles, views);
  const text = picture.tiles.text ?? [];
  const whole = text.every((part) => typeof part === "string" || part.of === "devices");
  const each = [...tiles.x.keys()].map((i) => ({
    edges: [tiles.x[i], tiles.y[i], tiles.w[i], tiles.h[i]],
    group: tiles.group[i], device: tiles.device[i], devices: devicesOf(tiles, i),
    label: whole ? filledTemplate(text, tiles, i) : null }));
  const edges = readEdges(picture.edges, views), names = ["x0", "y0", "x1", "y1", "group", "width"];
  const strokes = edges && names.map((name) => [...edges[name]]);
  const rows = [picture.labels, picture.frames].map((r) => wholeRows(r ?? []));
  const rulers = (picture.rulers ?? []).map(readRuler);
  return { each, strokes, rows, rulers };
}
console.log(JSON.stringify({ picture: data && read(data), texts: ids && ids.map(
  ([list, limit]) => idsText(list, limit)) }));
"""


def _in_javascript(message: dict) -> dict:
    code = base64.b64encode(READER.read_bytes()).decode()
    script = _SCRIPT % json.dumps(f"data:text/javascript;base64,{code}")
    return run_script(script, message)


def _sent(picture: Picture) -> dict:
    data, buffers = serialize(picture)
    return {"data": data, "buffers": [base64.b64encode(b).decode() for b in buffers]}


def _in_python(picture: Picture) -> dict:
    tiles = picture.tiles
    edges = np.stack([tiles.x, tiles.y, tiles.width, tiles.height]).T.astype(float).tolist()
    # The page is sent no other slots: it writes by itself what a device or block is.
    whole = all(part.of == DEVICES for part in tiles.text if isinstance(part, Slot))
    each = [
        {
            "edges": edges[i],
            "group": int(tiles.group[i]),
            "device": int(tiles.device[i]),
            "devices": tiles.devices(i).tolist(),
            "label": tiles.label(i) if whole else None,
        }
        for i in range(len(tiles))
    ]
    strokes = None
    if picture.edges is not None:
        strokes = [values.tolist() for values in vars(picture.edges).values()]
    rows = [
        [[_rounded(getattr(part, name)) for name in fields] for part in parts]
        for parts, fields in (
            (picture.labels, ("x", "y", "text", "anchor")),
            (picture.frames, ("x", "y", "label", "width", "height", "dashed", "named")),
        )
    ]
    rulers = [
        {name: _listed(value) for name, value in vars(ruler).items() if name != "away"}
        for ruler in picture.rulers
    ]
    return {"each": each, "strokes": strokes, "rows": rows, "rulers": rulers}


def _listed(value):
    if isinstance(value, tuple):
        return [_listed(item) for item in value]
    return _rounded(value)


def _rounded(value):
    return round(value, 2) if isinstance(value, float) else value


def _odd_mesh():
    ids = np.random.default_rng(0).permutation(24).reshape(2, 3, 4) + (1 << 33)
    return make_mesh(a=2, b=3, c=4, device_ids=ids, processes=ids.ravel() % 3)


CASES = {
    **{name: (value, {}) for name, value in VALUES.items()},
    "devices of a layout": (VALUES["layout"], {"view": "devices", "name": "w"}),
    "odd ids": (_odd_mesh(), {"by": "host"}),
    "odd ids in blocks": (lay_out((6, 8), Spec.parse("b, a"), _odd_mesh()), {}),
    "links in use": (
        make_mesh(data=4, model=4),
        {
            "by": "position",
            "topology": "tpu:v5e:4x4",
            "collective": Collective("all-to-all", ("data", "model"), 1 << 20),
        },
    ),
    "one step": (lay_out((4, 6, 8), Spec.parse("a, b, c"), _odd_mesh()), {"at": (2,)}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_page_reads_the_same_tiles_and_words(name):
    value, options = CASES[name]
    for picture in _parts(draw(value, **options)):
        assert _in_javascript(_sent(picture))["picture"] == _in_python(picture)


def _parts(picture):
    """A picture and those in its panels."""
    yield picture
    for _, _, inside in picture.panels:
        yield from _parts(inside)


def test_a_page_writes_ids_as_python_does():
    from shardviz.base.format import ids_text

    dice = np.random.default_rng(1)
    cases = [([], 0), ([1], 5), (list(range(4000)), 0), (list(range(0, 4000, 2)), 6)]
    for _ in range(200):
        first, a, b, c = (int(v) for v in dice.integers(1, 9, 4))
        grid = first + 100 * np.arange(a)[:, None, None] + b * np.arange(4)[:, None] + np.arange(c)
        ids = grid.ravel() if dice.random() < 0.7 else dice.permutation(grid.ravel())
        cases.append((ids.tolist(), int(dice.choice([0, 8, 20]))))
    texts = _in_javascript({"buffers": [], "ids": cases})["texts"]
    assert texts == [ids_text(ids, limit) for ids, limit in cases]


def test_what_equals_its_default_or_the_row_before_is_left_out():
    data, buffers = serialize(draw(make_mesh(data=4), title=""))
    wanted = {"width", "height", "facts", "labels", "shades", "tiles", "rulers"}
    assert set(data) == wanted
    assert "group" not in data["tiles"]
    assert [len(row) for row in data["labels"]] == [4, *[3] * (len(data["labels"]) - 1)]
    assert buffers == [], "the numbers of a few tiles are in the JSON"


def test_what_is_alike_for_all_tiles_is_sent_once():
    data, buffers = serialize(draw(make_mesh(data=256, model=256)))
    tiles = data["tiles"]
    assert tiles["count"] == 65536
    assert tiles["device"] == [0, 1]
    assert "group" not in tiles
    assert [len(b) for b in buffers] == [4 * 65536] * 2
    assert len(json.dumps(data)) < 40_000


def test_edges_travel_as_columns_and_are_absent_where_there_are_none():
    mesh = make_mesh(data=16, model=16)
    data, buffers = serialize(draw(mesh, by="position", topology="tpu:v6e:16x16"))
    edges = data["edges"]
    assert edges["count"] == 2 * 16 * 15 + 2 * 2 * 16
    assert (edges["group"], edges["width"]) == (-1, 0.5)
    assert len(buffers[edges["x0"]["buffer"]]) == 4 * edges["count"]
    assert "edges" not in serialize(draw(mesh))[0]
