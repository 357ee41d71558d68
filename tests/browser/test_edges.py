"""Edges on a real canvas: strokes where the picture has them, in their colour, below the tiles."""

from __future__ import annotations

import base64
import json

import pytest
from playwright.sync_api import Page

from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.report import Collective
from shardviz.picture.picture import Picture
from shardviz.picture.serialization import serialize
from shardviz.picture.show import draw
from shardviz.widgets import html_page
from shardviz.widgets.pictures import palettes

_PAINT = """
const [picture_, buffers, theme] = JSON.parse(document.getElementById("data").textContent);
const bytes_ = (b) => Uint8Array.from(atob(b), (c) => c.charCodeAt(0));
const views = buffers.map((b) => new DataView(bytes_(b).buffer));
const picture = readPicture({ data: picture_, buffers: views });
const quiet = { point() {}, leave() {}, pin() {}, release() {}, lines: () => [] };
const view = new PictureView("Devices", quiet, { maxScale: 1 });
Object.assign(view.node.style, { width: "700px", height: "500px", position: "relative" });
document.body.append(view.node);
await new Promise(requestAnimationFrame);
view.resized();
view.show(picture, null, picture.count, theme);
const dot = (v, start) => Math.floor((v * view.scale + start) * devicePixelRatio);
window.at = (x, y) => [...view.base.getContext("2d").getImageData(
  dot(x, view.ox), dot(y, view.oy), 1, 1).data];
window.shown = true;
"""


def _page(page: Page, picture: Picture, theme: str) -> None:
    data, buffers = serialize(picture)
    packed = [base64.b64encode(b).decode() for b in buffers]
    packed_page = json.dumps([data, packed, {**palettes()[theme], "name": theme}])
    # The modules of a page, less its entry, which wants a widget's model.
    source = html_page.bundled_module("picture_view") + html_page.bundled_module("picture_data")
    page.set_content(
        f"<body><script type='application/json' id='data'>{packed_page}</script>"
        f"<script type='module'>{source}\n{_PAINT}</script></body>"
    )
    page.wait_for_function("() => window.shown")


def _near(found: list[int], colour: str) -> bool:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return found[3] == 255 and all(abs(a - b) <= 12 for a, b in zip(found, wanted, strict=False))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_strokes_are_painted_in_the_colour_of_their_group(page, theme):
    mesh, gather = make_mesh(data=4, model=4), Collective("all-gather", ("model",), 1 << 20)
    picture = draw(mesh, by="position", topology="tpu:v5e:4x4", collective=gather)
    _page(page, picture, theme)
    edges, groups = picture.edges, palettes()[theme]["groups"]
    for i in range(len(edges)):
        middle = [float(edges.x0[i] + edges.x1[i]) / 2, float(edges.y0[i] + edges.y1[i]) / 2]
        found = page.evaluate("([x, y]) => window.at(x, y)", middle)
        if edges.group[i] >= 0:
            assert _near(found, groups[edges.group[i]]), (i, found)
        else:
            assert not any(_near(found, colour) for colour in groups[:4]), (i, found)
    # Tiles lie on top: just inside of one, where a stroke ends, there is its own pale fill.
    inside = [float(picture.tiles.x[0]) + 46, float(edges.y0[-1])]
    assert not _near(page.evaluate("([x, y]) => window.at(x, y)", inside), groups[0])
