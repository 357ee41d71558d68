"""The time from a changed field to the painted frame, in JupyterLab in Chromium.

A clock in the page starts at the field's `input` event. It stops in the first task after the
frame in which the Explorer dispatches `shardviz:painted` with a later number than before: by then
the browser has painted. The round trip of an empty widget, the least that any widget takes, is
printed beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from playwright.sync_api import Locator, Page

from tests.browser.chromium import HOW, find_chromium
from tests.browser.lab import Lab, lab_in_chromium
from tests.browser.views import show_view

WARM_UP, REPEATS = 5, 30
MODEL_MS = 100
EMPTY = '''
import anywidget, traitlets

class Empty(anywidget.AnyWidget):
    request = traitlets.Int(0).tag(sync=True)
    answer = traitlets.Int(0).tag(sync=True)
    _esm = """
    function render({ model, el }) {
      const field = document.createElement("input");
      field.setAttribute("aria-label", "Empty widget");
      field.oninput = () => { model.set("request", Number(field.value)); model.save_changes(); };
      model.on("change:answer", () => requestAnimationFrame(() => {
        const detail = { seq: model.get("answer") };
        el.dataset.seq = String(detail.seq);
        el.dispatchEvent(new CustomEvent("shardviz:painted", { bubbles: true, detail }));
      }));
      el.append(field);
    }
    export default { render };
    """

    @traitlets.observe("request")
    def _answer(self, change):
        self.answer = change.new

Empty()
'''
EXPLORER = """
import jax.numpy as jnp, shardviz as sv
program = sv.program(
    jnp.matmul,
    sv.array("x", (65536, 4096), "batch embed", dtype="bfloat16"),
    sv.array("w", (4096, 16384), "embed mlp", dtype="bfloat16"),
    mesh="{mesh}", rules=[("batch", "data"), ("mlp", "model"), ("embed", None)],
)
sv.explore(program)
"""
LEAVES = """
import shardviz as sv
from shardviz.gallery import rules
leaves = [
    sv.array(f"params/layers_{i}/w_{j}", (4096, 1024 + 1024 * (j % 3)), "embed mlp", "bfloat16")
    for i in range(1000) for j in range(10)
]
sv.explore(sv.audit(leaves, rules.get("FSDP"), sv.mesh(data=16, model=4)))
"""
# Milliseconds from a click to the frame in which the leaves of the view Model have changed.
CHANGE = """
(button) => new Promise((resolve, reject) => {
  const leaves = button.closest(".shardviz-explorer").querySelector(".sv-modelinner");
  const late = setTimeout(() => reject(new Error("no leaf changed for 20 s")), 20000);
  let start = 0;
  const watch = new MutationObserver(() => {
    if (!start) return;
    watch.disconnect();
    clearTimeout(late);
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => resolve(performance.now() - start);
      port2.postMessage(0);
    });
  });
  watch.observe(leaves, { childList: true, subtree: true, characterData: true });
  setTimeout(() => { start = performance.now(); button.click(); }, 150);
})
"""
# Types a value into a field as a person does: after a pause, at an arbitrary moment of the screen's
# refresh cycle. Resolves to the milliseconds it took.
TYPE = """
(field, {value, pause}) => new Promise((resolve, reject) => {
  const root = field.closest(".shardviz-explorer") ?? field.parentElement;
  const last = Number(root.dataset.seq ?? 0);
  let start = 0;
  const late = setTimeout(() => done("nothing was painted for 20 s"), 20000);
  const done = (problem) => {
    clearTimeout(late);
    root.removeEventListener("shardviz:painted", painted);
    if (problem) reject(new Error(problem));
    else resolve(performance.now() - start);
  };
  const painted = (event) => {
    if (event.detail.seq <= last) return;
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => done();
    port2.postMessage(0);
  };
  root.addEventListener("shardviz:painted", painted);
  field.focus();
  const own = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value");
  own.set.call(field, value);
  setTimeout(() => {
    start = performance.now();
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true })); // as Enter does
  }, pause);
})
"""


def shapes(number: int) -> str:
    """A shape that was not typed before and is divisible by every mesh here."""
    return f"{65536 + 4096 * number}, 4096"


def meshes_512(number: int) -> str:
    """One of the ways to arrange 512 devices on two axes."""
    model = 2 ** (number % 8)
    return f"data={512 // model}, model={model}"


def meshes_65536(number: int) -> str:
    """One of the ways to arrange 65,536 devices on two axes."""
    model = 2 ** (4 + number % 8)
    return f"data={65536 // model}, model={model}"


def meshes_1048576(number: int) -> str:
    """One of the ways to arrange 1,048,576 devices on two axes."""
    model = 2 ** (8 + number % 7)
    return f"data={1048576 // model}, model={model}"


#: devices -> the meshes that are typed, and which of them the Explorer opens with
MESHES: dict[int, tuple[Callable[[int], str], int]] = {
    512: (meshes_512, 3),
    65_536: (meshes_65536, 4),
    1_048_576: (meshes_1048576, 2),
}
CASES: tuple[tuple[int, int, str, Callable[[int], str]], ...] = (
    (512, 60, "Array shape", shapes),
    (512, 60, "Mesh axes", meshes_512),
    (65_536, 100, "Array shape", shapes),
    (65_536, 100, "Mesh axes", meshes_65536),
    (1_048_576, 100, "Array shape", shapes),
    (1_048_576, 100, "Mesh axes", meshes_1048576),
)


def typed(field: Locator, value: str, number: int) -> float:
    """Milliseconds from Enter in the field to the painted frame."""
    return field.evaluate(TYPE, {"value": value, "pause": 100 + 7 * number % 17})


def refusals(page: Page) -> list[str]:
    """The values that the fields refuse; a refused edit must not be measured."""
    return page.locator('[aria-invalid="true"]').evaluate_all("all => all.map(e => e.value)")


def measure(page: Page, label: str, value: Callable[[int], str]) -> tuple[list[float], list[float]]:
    """The times of `REPEATS` edits of the first field with this label, and of as many round trips
    of the empty widget, alternately, so that other load on the machine slows both.

    Raises:
        AssertionError: if the Explorer refused an edit.
    """
    field, empty = page.get_by_label(label).first, page.get_by_label("Empty widget")
    answered = empty.evaluate("field => Number(field.parentElement.dataset.seq ?? 0)")
    times, floor = [], []
    for number in range(1, WARM_UP + REPEATS + 1):
        times.append(typed(field, value(number), number))
        floor.append(typed(empty, str(answered + number), number))
    assert not refusals(page), f"the Explorer refused {refusals(page)}"
    return times[WARM_UP:], floor[WARM_UP:]


def measure_model(lab: Lab) -> list[float]:
    """The times in which a model of 10,000 leaves shows another rule, undone and done again."""
    page = lab.open([LEAVES], width=1440, height=1400)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    show_view(page, "Rules")
    field = page.get_by_label("Rules", exact=True)
    field.fill(field.input_value() + "\nmlp -> model")
    page.locator('.shardviz-explorer[data-settled="true"]').wait_for()
    show_view(page, "Model")
    times = []
    for number in range(WARM_UP + REPEATS):
        page.wait_for_timeout(500)
        name = "Redo" if number % 2 else "Undo"
        times.append(page.get_by_role("button", name=name, exact=True).evaluate(CHANGE))
    lab.close()
    return times[WARM_UP:]


def report(lab: Lab) -> int:
    """Prints every case's median beside the empty widget's, measured in the same page.

    Returns:
        How many missed their target.
    """
    missed = 0
    for devices, (mesh, first) in MESHES.items():
        page = lab.open([EMPTY, EXPLORER.replace("{mesh}", mesh(first))], width=1440, height=1400)
        page.wait_for_selector(".shardviz-explorer[data-seq]")
        for count, target, label, value in CASES:
            if count == devices:
                missed += _print_case(devices, label, target, *measure(page, label, value))
        lab.close()
    median = statistics.median(measure_model(lab))
    verdict = "ok" if median <= MODEL_MS else "MISSED"
    print(f"  10,000 leaves, a rule: {median:.1f} ms   target {MODEL_MS} ms: {verdict}")
    return missed + (median > MODEL_MS)


def _print_case(
    devices: int, label: str, target: int, times: list[float], floor: list[float]
) -> bool:
    median = statistics.median(times)
    worst = sorted(times)[int(len(times) * 0.95)]
    verdict = "ok" if median <= target else "MISSED"
    print(
        f"  {devices:>9,} devices, {label:<11}  {median:6.1f} ms (95 %: {worst:6.1f})"
        f"   target {target:>3} ms: {verdict:<6}   empty widget {statistics.median(floor):5.1f} ms"
    )
    return median > target


def main() -> int:
    """Prints the table, or one sentence where there is no browser; returns the missed targets."""
    print(f"\nEdits: a changed field to the painted frame, JupyterLab, median of {REPEATS}")
    path = find_chromium()
    if path is None:
        print("  " + HOW)
        return 0
    with lab_in_chromium(path) as lab:
        return report(lab)


if __name__ == "__main__":
    main()
