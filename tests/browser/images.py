"""Makes the pictures in docs/images: screenshots of the Explorer in JupyterLab, and figures.

python -m tests.browser.images            every one
python -m tests.browser.images 64 dark    those whose names hold these words
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page

import shardviz as sv
from shardviz.axis_rules.words.cascade import PLANNING
from shardviz.figures import png
from shardviz.pictures import draw
from tests.browser.chromium import HOW, find_chromium
from tests.browser.lab import DARK, LIGHT, Lab, lab_server
from tests.browser.views import open_tab, play_largest, press_button, show_view
from tests.browser.watch import Complaints, chromium

FOLDER = Path(__file__).parents[2] / "docs" / "images"
THEMES = {"light": LIGHT, "dark": DARK}
WIDTH, HEIGHT, SCALE = 1500, 1500, 1.5
EXPLORER = ".shardviz-explorer"


RUN_MS = 600_000


def pointed(page: Page, *keys: str) -> None:
    """Goes to a device with these keys and pins it, so that marks and sentence have something."""
    page.get_by_label("Devices", exact=True).focus()
    for key in (*keys, "Enter"):
        page.keyboard.press(key)
    page.evaluate("() => document.activeElement.blur()")


def looked_at(page: Page) -> None:
    """The third array, where so many are shown, and a device down the mesh."""
    show_view(page, "Layout")
    cards = [card for card in page.locator(".sv-cardhead").all() if card.is_visible()]
    cards[min(2, len(cards) - 1)].click()
    pointed(page, *(["ArrowDown"] * 3), *(["ArrowRight"] * 2))


def chosen_cell(page: Page) -> None:
    """A dimension that is not split, why, and what would split it."""
    show_view(page, "Rules")
    page.get_by_role("radiogroup", name="Dimensions").wait_for()
    # Each remedy is planned, too.
    page.wait_for_function(
        "(words) => !document.querySelector('.shardviz-explorer').textContent.includes(words)",
        arg=PLANNING,
        timeout=RUN_MS,
    )
    page.evaluate("() => document.activeElement.blur()")


def largest_leaf(page: Page) -> None:
    """The tree of a model, and the leaf that takes most on each device."""
    show_view(page, "Model")
    page.get_by_label("Sort leaves").select_option("bytes")
    page.locator(".sv-modelinner .sv-modelrow").first.click()


def compiled(page: Page) -> None:
    """Compiles for the target, and waits until all four stages are known."""
    press_button(page, "Compile")
    page.wait_for_selector('.sv-stage:nth-of-type(7)[data-state="live"]', timeout=RUN_MS)


def picked_value(page: Page) -> None:
    """Picks the product with the MLP's second matrix, and reads why it is sharded so."""
    compiled(page)
    open_tab(page, "Values")
    find = page.get_by_label("Find values")
    find.fill("dot_general")
    page.locator(".sv-vrow:not(.sv-vcall)", has_text="dot_general_7").first.click()
    find.fill("")
    page.locator(".sv-explanation li").first.wait_for()
    page.evaluate("() => document.activeElement.blur()")


def chosen_collective(page: Page) -> None:
    """Compiles, and chooses the largest collective."""
    compiled(page)
    open_tab(page, "Collectives")
    page.locator(".sv-crow").first.click()


def timed(page: Page) -> None:
    """Compiles, and shows when what runs."""
    compiled(page)
    open_tab(page, "Timeline")
    page.evaluate("() => document.activeElement.blur()")


def placed(page: Page) -> None:
    """The chips where they stand, with the links of a collective, and a weight that is split."""
    show_view(page, "Layout")
    page.locator(".sv-cardhead").nth(1).click()
    linked(page)


def linked(page: Page) -> None:
    """The largest collective, its line, and its links between the chips where they stand."""
    chosen_collective(page)
    page.get_by_role("button", name="Show links").click()
    page.wait_for_function(
        "() => /busiest link/.test(document.querySelector('.sv-devicenote').textContent)",
        timeout=RUN_MS,
    )
    page.evaluate("() => document.activeElement.blur()")


def playing(page: Page) -> None:
    """The player of the largest collective, in the middle of its steps."""
    open_tab(page, "Collectives")
    page.locator(".sv-crow").first.wait_for(timeout=RUN_MS)
    play_largest(page)
    page.locator(".sv-mdevice").first.wait_for()
    for key in ("Home", *["ArrowRight"] * 5):
        page.keyboard.press(key)
    page.evaluate("() => document.activeElement.blur()")


def film_strip(page: Page) -> None:
    """The drawings of six steps, from the first to the last, in two rows of three."""
    playing(page)
    page.evaluate(FILM)


@dataclass(frozen=True)
class Shot:
    """One screenshot of an Explorer.

    Attributes:
        name: of the file, less its theme and ending.
        cells: the code of the notebook; the last one shows the Explorer.
        prepare: what is done in the page before the picture is taken.
        part: what of the Explorer is in the picture; all of it where nothing is said.
    """

    name: str
    cells: tuple[str, ...]
    prepare: Callable[[Page], None]
    part: str = EXPLORER


DEFAULT = "sv.explore()"
START = "import shardviz as sv\nfrom shardviz.gallery import programs"
BLOCK = """
mesh = sv.mesh(data=8, model=8, processes=8)
sv.explore(programs.get("transformer block, gradient").replace(mesh=mesh))
"""
MODEL = """
explorer = sv.explore(sv.mesh(data=256, model=16, processes=512))
explorer.session.edit("preset", "arrays:%s")
explorer.session.edit("preset", "rules:%s")
explorer
"""
SLICE = """
mesh = sv.mesh(%s)
explorer = sv.explore(programs.get("transformer block, gradient").replace(mesh=mesh))
explorer.session.edit("target", "%s")
explorer
"""
LEAVES = """
from shardviz.gallery import arrays, rules
leaves = [
    sv.array(f"{part}layers_{i}/{array.name}", array.shape[1:], array.logical[1:], array.dtype)
    for part in ("params/", "opt_state/mu/", "opt_state/nu/")
    for array in arrays.get("7B model") if array.rank > 1 and array.logical[0] == "layers"
    for i in range(32)
]
explorer = sv.explore(sv.audit(leaves, rules.get("FSDP"), sv.mesh(data=16, model=4)))
explorer.session.edit("target", "tpu:v5e:8x8")
explorer
"""
# A train step of one's own: 8 billion parameters, for chips that are not here.
OWN = f"""
import sys
sys.path.insert(0, {str(FOLDER.parent)!r})
from train_8b import batch, state, step
explorer = sv.explore(step, state, batch)
explorer.session.edit("target", "tpu:v5p:4x4x4")
explorer
"""
FSDP = """
from shardviz.gallery import puzzles
explorer = sv.explore(puzzles.get("fsdp, gradient").replace(mesh=sv.mesh(data=8, model=2)))
explorer.session.edit("target", "gpu:h100:2x8")
explorer
"""
BIG = """
shapes = {"x": (65536, 4096), "w_in": (4096, 16384), "w_out": (16384, 4096)}
mlp = programs.get("MLP, gradient")
arrays = [sv.array(a.name, shapes[a.name], a.logical, "bfloat16") for a in mlp.arrays]
mesh = sv.mesh(data=256, model=16, processes=1024)
explorer = sv.explore(sv.program(mlp.fn, *arrays, mesh=mesh, rules=mlp.rules, name="MLP, gradient"))
explorer.session.edit("target", "tpu:v5p:16x16x16")
explorer
"""
PROGRAM = ".sv-program"
# A copy of the drawing at each of six steps, in the place of the Explorer.
FILM = """() => {
  const slider = document.querySelector(".sv-player .sv-slider");
  const strip = document.createElement("div");
  strip.className = "sv-film";
  const last = Number(slider.max);
  for (let i = 0; i < 6; i++) {
    slider.value = String(Math.round((last * i) / 5));
    slider.dispatchEvent(new Event("input"));
    const frame = document.createElement("figure");
    const words = document.createElement("figcaption");
    words.textContent = `${slider.value} of ${last}: `
      + document.querySelector(".sv-pwords").textContent;
    const drawing = document.querySelector(".sv-movement");
    const { x, y, width, height } = drawing.getBBox();
    const copy = drawing.cloneNode(true);
    copy.setAttribute("viewBox", `${x - 8} ${y - 8} ${width + 16} ${height + 16}`);
    frame.append(copy, words);
    strip.append(frame);
  }
  for (const drawing of strip.querySelectorAll("svg")) {
    drawing.style.cssText = "position: static; display: block; width: 100%; height: auto";
  }
  for (const frame of strip.children) frame.style.margin = "0";
  strip.style.cssText =
    "display: grid; grid-template-columns: repeat(3, 1fr); gap: 16px 24px; padding: 16px";
  document.querySelector(".shardviz-explorer").replaceChildren(strip);
}"""
TENSOR = MODEL % ("7B model", "FSDP + tensor parallel")
#: devices -> what each of the four views shows of so many
VIEWS = {
    8: {"Layout": DEFAULT, "Rules": DEFAULT, "Model": DEFAULT, "Program": DEFAULT},
    64: {"Layout": BLOCK, "Rules": BLOCK, "Model": LEAVES, "Program": BLOCK},
    4096: {"Layout": TENSOR, "Rules": TENSOR, "Model": TENSOR, "Program": BIG},
}
PREPARE = {
    "Layout": looked_at,
    "Rules": chosen_cell,
    "Model": largest_leaf,
    "Program": chosen_collective,
}
SHOTS = (
    *(
        Shot(f"{view.lower()}-{devices}", (START, cells), PREPARE[view])
        for devices, views in VIEWS.items()
        for view, cells in views.items()
    ),
    Shot("train-8b", (START, OWN), linked),
    Shot("timeline", (START, SLICE % ("data=4, model=4", "tpu:v5e:4x4")), timed),
    Shot("values", (START, SLICE % ("data=4, model=2", "")), picked_value, PROGRAM),
    Shot("collectives", (START, FSDP), chosen_collective, PROGRAM),
    Shot("player-film", (START, BLOCK), film_strip, ".sv-film"),
    Shot("explorer-slice", (START, SLICE % ("data=16, model=4", "tpu:v5p:4x4x4")), placed),
)


def figures() -> dict[str, Any]:
    """The pictures that are no screenshots: what they show, by name."""
    return {
        "movement": draw(sv.movement("all-reduce", devices=8, size="8 MiB")),
    }


def take(lab: Lab, shot: Shot, theme: str, path: Path) -> None:
    """Writes one picture of the Explorer, and of nothing around it."""
    page = lab.open(shot.cells, theme=THEMES[theme], width=WIDTH, height=HEIGHT, scale=SCALE)
    page.wait_for_selector(f"{EXPLORER}[data-seq]")
    shot.prepare(page)
    page.mouse.move(0, 0)  # nothing is pointed at by accident
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    found = page.locator(shot.part).screenshot(animations="disabled", caret="hide")
    write_small(found, path)
    lab.close()


def write_small(picture: bytes, path: Path) -> None:
    """Writes a PNG with 256 colours, which needs a third of the bytes."""
    # Rare colours count, too, so that a green dot stays green.
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(path, "PNG", optimize=True)


def main(words: Sequence[str] = ()) -> int:
    """Makes the pictures whose file names hold every word; 1 where there is no browser."""

    def wanted(name: str) -> bool:
        return set(words) <= set(name.removesuffix(".png").split("-"))

    FOLDER.mkdir(parents=True, exist_ok=True)
    for what, picture in figures().items():
        for theme in THEMES:
            if wanted(name := f"{what}-{theme}.png"):
                write_small(png(picture, theme), FOLDER / name)
                print(f"docs/images/{name}")
    chromium_path = find_chromium()
    if chromium_path is None:
        print(HOW)
        return 1
    complaints = Complaints()
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium(chromium_path) as browser,
        lab_server(Path(folder)) as server,
    ):
        lab = Lab(server, browser, complaints)
        for shot in SHOTS:
            for theme in THEMES:
                name = f"{shot.name}-{theme}.png"
                if wanted(name):
                    take(lab, shot, theme, FOLDER / name)
                    print(f"docs/images/{name}")
    complaints.check()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
