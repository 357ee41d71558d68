"""The player: what every device has after each step, by mouse and by keys, live and saved."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from shardviz.base.format import bytes_text
from shardviz.explorer import html_page
from shardviz.explorer.pictures import palettes
from shardviz.hardware.topology import Topology
from shardviz.move.movement import Movement, collective_movement
from shardviz.move.panel.movements_view import player_data
from tests.browser.views import explorer, opened, play_largest

PAGE = """<!doctype html><meta charset="utf-8">
<style>body { margin: 0 } CSS #host { height: 420px; padding: 8px }</style>
<div class="shardviz-explorer" data-theme="light"><div class="sv-body" id="host"></div></div>
<script type="module">
MODULE
const player = new Player({ close: () => {} });
document.getElementById("host").append(player.node);
window.play = (key, data, theme) => {
  player.open(key);
  player.show({ [key]: { data, error: "" } }, theme);
};
window.player = player;
</script>"""
HELD = """() => [...document.querySelectorAll(".sv-mdevice")].map((device) =>
  Object.fromEntries([...device.querySelectorAll(".sv-mcell")].map((cell) =>
    [cell.dataset.chunk, Number(cell.dataset.count)])))"""
EVERY_STEP = """() => {
  const held = HELD;
  const every = [];
  for (let i = 0; i <= player.steps.data.steps.length; i++) {
    every.push({ step: document.querySelector(".sv-player").dataset.step, held: held(),
      words: document.querySelector(".sv-pwords").textContent,
      sent: document.querySelector(".sv-steptext").textContent });
    const key = new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true });
    document.querySelector(".sv-movementbox").dispatchEvent(key);
  }
  return every;
}""".replace("HELD", HELD)
BITS = """() => player.steps.states.map((state) => state.map((chunks) =>
  Object.fromEntries([...chunks].map(([chunk, { bits }]) => [chunk, bits]))))"""
COLLECTIVES: dict[str, Movement] = {
    f"{kind} of {size}": collective_movement(kind, size, 1 << 20)
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
    for size in (2, 4, 8, 16)
} | {
    "all-reduce over hosts": collective_movement("all-reduce", 8, 1 << 20, np.arange(8) // 4),
    "all-reduce over a torus": collective_movement(
        "all-reduce", Topology.parse("tpu:v5e:4x4"), 1 << 20
    ),
}


@pytest.fixture
def player(page: Page) -> Page:
    html = PAGE.replace("CSS", html_page.bundled_styles())
    page.set_viewport_size({"width": 848, "height": 620})
    page.set_content(html.replace("MODULE", html_page.bundled_module("player")))
    page.wait_for_function("window.player !== undefined")
    return page


def play(page: Page, name: str, movement: Movement) -> Locator:
    theme = {**palettes()["light"], "name": "light"}
    page.evaluate(
        "([key, data, theme]) => window.play(key, data, theme)",
        [name, player_data(movement), theme],
    )
    return page.get_by_label("Player", exact=True)


def sent_until(movement: Movement, step: int) -> str:
    """What is said of the bytes: of a step, and so far, of all that a device sends."""
    words = f"{step} of {len(movement.steps)} steps"
    if not step:
        return words
    done = [s.bytes for s in movement.steps[:step]]
    so_far, total = bytes_text(sum(done)), bytes_text(movement.sent_bytes)
    if so_far.split()[1] == total.split()[1]:
        so_far = so_far.split()[0]
    if step == len(movement.steps):
        assert abs(sum(done) - movement.sent_bytes) <= step, "of all steps it is all"
    return f"{words} · this step {bytes_text(done[-1])}, so far {so_far} of {total}"


def expected(movement: Movement, bits: bool = False) -> list[list[dict[str, int]]]:
    """By step and device, the contributions to every chunk: how many, or a bit for each."""
    each = 1 << np.arange(movement.contributors) if bits else 1
    states = []
    for step in range(len(movement.steps) + 1):
        sums = (movement.holdings(step) * each).sum(axis=2)
        states.append([{str(c): int(n) for c, n in enumerate(row) if n} for row in sums])
    return states


def test_every_device_has_what_the_steps_say(player):
    player.emulate_media(reduced_motion="reduce")
    for name, movement in COLLECTIVES.items():
        play(player, name, movement)
        assert player.evaluate(BITS) == expected(movement, bits=True), name
        every = player.evaluate(EVERY_STEP)
        for step, (seen, state) in enumerate(zip(every, expected(movement), strict=True)):
            assert seen["step"] == str(step), name
            assert seen["held"] == state, (name, step)
            words = movement.steps[step - 1].words if step else "Before the first step"
            assert words in seen["words"]
            assert seen["sent"] == sent_until(movement, step)


def test_it_starts_to_move_at_once_unless_less_motion_is_asked_for(player):
    player.emulate_media(reduced_motion="reduce")
    node = play(player, "still", COLLECTIVES["all-gather of 4"])
    expect(node).to_have_attribute("data-step", "0")
    play_button = player.get_by_role("button", name="Play", exact=True)
    expect(play_button).to_be_disabled()
    expect(play_button).to_have_attribute("title", "Reduced motion is on: step through instead")
    player.get_by_role("button", name="Step on").click()
    expect(node).to_have_attribute("data-step", "1")
    player.emulate_media(reduced_motion="no-preference")
    node = play(player, "moves", COLLECTIVES["all-gather of 4"])
    expect(player.get_by_role("button", name="Pause")).to_be_visible()
    player.wait_for_selector(".sv-moving .sv-mcell")
    expect(node).to_have_attribute("data-step", "3")
    expect(player.get_by_role("button", name="Play", exact=True)).to_be_enabled()


def test_a_large_group_is_told_in_words(player):
    node = play(player, "large", collective_movement("all-reduce", 256, 1 << 20))
    expect(node).to_contain_text("A group of 256 devices is not drawn")
    expect(node).to_contain_text("Step 256, repeated up to step 510")
    expect(player.get_by_label("Steps")).to_be_hidden()


def test_it_plays_pauses_and_steps_by_mouse_and_keys(player):
    player.emulate_media(reduced_motion="no-preference")
    movement = COLLECTIVES["all-reduce of 4"]
    last = str(len(movement.steps))
    node = play(player, "one", movement)
    player.wait_for_selector(".sv-moving .sv-mcell")
    player.locator(".sv-movementbox").focus()
    player.keyboard.press(" ")
    expect(player.get_by_role("button", name="Play", exact=True)).to_be_visible()
    player.keyboard.press("Home")
    expect(node).to_have_attribute("data-step", "0")
    player.keyboard.press(" ")
    expect(node).to_have_attribute("data-step", last, timeout=15_000)
    expect(player.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert player.evaluate(HELD) == expected(movement)[-1]
    for name, step in (("Step back", "5"), ("Step on", last)):
        player.get_by_role("button", name=name).click()
        expect(node).to_have_attribute("data-step", step)
    player.keyboard.press("End")
    expect(node).to_have_attribute("data-step", last)
    expect(player.get_by_role("button", name="Step on")).to_be_disabled()
    player.keyboard.press("ArrowLeft")
    expect(node).to_have_attribute("data-step", "5")
    player.get_by_label("Step", exact=True).fill("3")
    expect(node).to_have_attribute("data-step", "3")
    assert player.evaluate(HELD) == expected(movement)[3]


def test_a_saved_page_plays_its_largest_collectives(page, tmp_path):
    name = "transformer block, gradient"
    made = explorer(name)
    opened(page, made, tmp_path)
    assert play_largest(page)
    largest = max(made.plan.collectives, key=lambda c: c.drawn_bytes)
    expect(page.locator(".sv-ptitle")).to_contain_text(f"{largest.kind} that sends ")
    page.keyboard.press("End")
    held = page.evaluate(HELD)
    assert all(set(device.values()) == {len(held)} for device in held), "every sum is complete"
    page.get_by_role("button", name="Close player").click()
    expect(page.locator(".sv-crow").first).to_be_visible()
    made.close()
