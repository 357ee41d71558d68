"""The time from running a cell in a fresh kernel to the first picture, in JupyterLab in Chromium.

Beside each median is its ratio to a cell that imports jax and displays an empty widget, run
alternately in other fresh kernels. On a busy machine, compare the ratios.
"""

from __future__ import annotations

import statistics

from playwright.sync_api import Page

from tests.bench.timing import Table, text
from tests.browser.chromium import HOW, find_chromium
from tests.browser.lab import Lab, lab_in_chromium

REPEATS = 5
EMPTY = '''
import jax, anywidget

class Empty(anywidget.AnyWidget):
    _esm = """
    function render({ el }) {
      el.append("empty");
      const painted = new CustomEvent("shardviz:painted", { bubbles: true });
      requestAnimationFrame(() => el.dispatchEvent(painted));
    }
    export default { render };
    """

Empty()
'''
EXAMPLE = "import shardviz as sv\nsv.explore()"
AFTER_JAX = "import jax\nimport shardviz as sv\nsv.explore()"
LARGE = """
from tests.bench import large_step
import shardviz as sv
sv.explore(large_step.step, large_step.state(), large_step.batch(), mesh="data=8, model=8",
           rules=large_step.RULES)
"""
#: what -> the code of the cell, and the most seconds that its first picture may take
CASES: dict[str, tuple[str, float]] = {
    "sv.explore()": (EXAMPLE, 2),
    "import jax, sv.explore()": (AFTER_JAX, 2),
    "import jax, a step of 8B parameters, 875 arrays": (LARGE, 3),
}
# Runs code in the first cell. Resolves to the milliseconds until something is painted.
RUN = """(code) => new Promise((resolve, reject) => {
  const late = setTimeout(() => reject(new Error("nothing was painted for 60 s")), 60000);
  const painted = () => {
    clearTimeout(late);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => resolve(performance.now() - start);
    port2.postMessage(0);
  };
  document.addEventListener("shardviz:painted", painted, { once: true });
  const { content } = window.jupyterapp.shell.currentWidget;
  content.activeCell.model.sharedModel.setSource(code);
  const start = performance.now();
  window.jupyterapp.commands.execute("notebook:run-cell");
})"""


def seconds(lab: Lab, code: str) -> float:
    """Seconds from running a cell in a fresh kernel to the first picture."""
    page: Page = lab.open([""])
    page.set_default_timeout(60_000)
    taken = page.evaluate(RUN, code) / 1e3
    lab.close()
    return taken


def report(lab: Lab) -> int:
    """Prints the medians and returns how many targets were missed."""
    table = Table()
    seconds(lab, EMPTY)  # the browser loads anywidget only once
    for what, (code, target) in CASES.items():
        seconds(lab, code)  # writes the bytecode, which an installation has
        pairs = [(seconds(lab, code), seconds(lab, EMPTY)) for _ in range(REPEATS)]
        median = statistics.median(ours for ours, _ in pairs)
        ratio = statistics.median(ours / empty for ours, empty in pairs)
        empty = statistics.median(empty for _, empty in pairs)
        note = f"{ratio:.2f}x an empty widget and jax ({text(empty)})"
        table.row(what, f"<= {text(target)}", text(median), median <= target, note)
    return table.missed


def main() -> int:
    """Prints the table, or one sentence where there is no browser; returns the missed targets."""
    print(f"\nFirst picture of a cell in a fresh kernel, JupyterLab, median of {REPEATS}")
    path = find_chromium()
    if path is None:
        print("  " + HOW)
        return 0
    with lab_in_chromium(path) as lab:
        return report(lab)


if __name__ == "__main__":
    main()
