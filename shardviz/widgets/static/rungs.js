// @ts-check
// The row of rungs: requested, propagated, partitioned, compiled, and what changed between two.
import { h, setText, toggle } from "./dom.js";

export const RUNG_NAMES = ["requested", "propagated", "partitioned", "compiled"];
const STATE_WORDS = /** @type {Record<string, string>} */ ({
  live: "",
  estimate: "estimate",
  old: "old",
  failed: "failed",
  none: "",
  busy: "",
});
const BUSY_WORDS = ["", "being planned…", "the partitioner is asked…", "being compiled…"];

/**
 * What a rung is: what the kernel knows of it, and whether the program went on since.
 * @param {any} data `rungs_data`
 * @param {number} index 0 to 2: propagated and on
 * @param {any} view
 * @param {string} target
 */
export function rungState(data, index, view, target) {
  const known = data.rungs[index].state;
  if (known === "none") return known;
  const old = data.revisions[index] !== view.revision || (index > 0 && data.target !== target);
  return old ? "old" : known;
}

export class RungRow {
  /**
   * @param {{rung: (index: number) => void, mark: (from: number, to: number) => void}} calls
   * indices count from requested
   */
  constructor({ rung, mark }) {
    this.node = h("div", { class: "sv-rungs", role: "group", "aria-label": "Rungs" });
    this.cells = RUNG_NAMES.map((name, i) => {
      const parts = {
        title: h("span", { class: "sv-rungname", text: name }),
        took: h("span", { class: "sv-rungtook" }),
        badge: h("span", { class: "sv-rungbadge" }),
        text: h("span", { class: "sv-rungtext" }),
        more: h("span", { class: "sv-rungmore" }),
      };
      const node = h(
        "button",
        {
          type: "button",
          class: "sv-rung",
          "data-lm-suppress-shortcuts": "true",
          "aria-pressed": "false",
          on: { click: () => rung(i) },
        },
        h(
          "span",
          { class: "sv-rungtitle" },
          h("span", { class: "sv-rungdot" }),
          parts.title,
          parts.took,
          parts.badge,
        ),
        parts.text,
        parts.more,
      );
      return { node, ...parts };
    });
    this.marks = [0, 1, 2].map((i) => {
      const text = h("span", { class: "sv-marktext" });
      const node = h(
        "button",
        {
          type: "button",
          class: "sv-mark",
          "data-lm-suppress-shortcuts": "true",
          on: { click: () => mark(i, i + 1) },
        },
        h("span", { class: "sv-markarrow", "aria-hidden": "true" }),
        text,
      );
      return { node, text };
    });
    this.cells.forEach((cell, i) =>
      this.node.append(cell.node, ...(i < 3 ? [this.marks[i].node] : [])),
    );
    this.clock = 0;
    this.stage = "";
    this.began = 0;
  }

  /**
   * @param {any} view
   * @param {any} data
   * @param {any} background
   * @param {string} target
   * @param {boolean} live
   * @param {string} shown which rung or mark the table below shows
   */
  show(view, data, background, target, live, shown) {
    this.cell(
      0,
      view.program.problems.length ? "failed" : "live",
      view.program.requested,
      "",
      view.program.requestedBytes,
    );
    data.rungs.forEach((/** @type {any} */ r, /** @type {number} */ i) => {
      const state = rungState(data, i, view, target);
      this.cell(i + 1, state, r.text, r.took, r.more);
    });
    this.busy(background.stage, data, live);
    this.cells.forEach((cell, i) => {
      toggle(cell.node, "sv-on", shown === String(i));
      cell.node.setAttribute("aria-pressed", String(shown === String(i)));
    });
    this.marks.forEach((mark, i) => this.mark(mark, i, data, shown, view, target));
  }

  /**
   * @param {number} i
   * @param {string} state
   * @param {string} text
   * @param {string} took
   * @param {string} more
   */
  cell(i, state, text, took, more) {
    const cell = this.cells[i];
    cell.node.dataset.state = state;
    setText(cell.took, took);
    setText(cell.badge, STATE_WORDS[state]);
    setText(cell.text, text);
    setText(cell.more, more);
    cell.node.title = [text, more].filter(Boolean).join("\n");
  }

  /**
   * @param {any} mark
   * @param {number} i
   * @param {any} data
   * @param {string} shown
   * @param {any} view
   * @param {string} target
   */
  mark(mark, i, data, shown, view, target) {
    const found = data.marks.find(
      (/** @type {any} */ m) => m.between[0] === i - 1 && m.between[1] === i,
    );
    const skipping =
      i === 2 && !found
        ? data.marks.find((/** @type {any} */ m) => m.between[0] === 0 && m.between[1] === 2)
        : null;
    const it = found ?? skipping;
    const text = it ? (skipping ? `since the estimate: ${it.text}` : it.text) : "";
    setText(mark.text, text);
    mark.node.disabled = !it;
    mark.node.title = it ? it.title : "";
    mark.node.setAttribute(
      "aria-label",
      `From ${RUNG_NAMES[i]} to ${RUNG_NAMES[i + 1]}: ${text || "not known yet"}`,
    );
    toggle(mark.node, "sv-changed", it?.tone === "changed");
    toggle(mark.node, "sv-grown", it?.tone === "more");
    toggle(mark.node, "sv-on", shown === `${i}-${i + 1}`);
    const state = i < 3 ? rungState(data, i, view, target) : "none";
    toggle(mark.node, "sv-faded", state === "old");
  }

  /**
   * What is under way in the background, with a clock.
   * @param {string} stage
   * @param {any} data
   * @param {boolean} live
   */
  busy(stage, data, live) {
    const at = !live
      ? 0
      : stage === "planning"
        ? 1
        : stage === "partitioning"
          ? 2
          : stage === "compiling"
            ? 3
            : 0;
    this.cells.forEach((cell, i) => toggle(cell.node, "sv-busy", i > 0 && i === at));
    if (stage !== this.stage) {
      this.stage = stage;
      this.began = Date.now();
    }
    window.clearInterval(this.clock);
    if (!at) return;
    const cell = this.cells[at];
    if (data.rungs[at - 1].state === "none") setText(cell.text, BUSY_WORDS[at]);
    // Most plans are there before anybody could read a clock.
    const say = () => {
      const s = (Date.now() - this.began) / 1000;
      if (s > 0.6) setText(cell.took, `${s.toFixed(1)} s…`);
    };
    this.clock = window.setInterval(say, 200);
  }

  destroy() {
    window.clearInterval(this.clock);
  }
}
