// @ts-check
// Compares the current state with a pinned state, in a strip below the tabs of every view.
import { button, enable, fill, h, iconButton, isNew, toggle } from "./dom.js";
import { isCurrent } from "./stages.js";

/**
 * The numbers of the pinned and the current state, from `compare_view.py`.
 * @typedef {object} Compared
 * @property {number} revision
 * @property {string} target
 * @property {boolean} same
 * @property {ComparedNumber[]} rows
 */

/**
 * `text` has the pinned number and the current one.
 * @typedef {Record<"name" | "title" | "text" | "change", string> &
 *   {tone: "same" | "better" | "worse" | "unknown"}} ComparedNumber
 */

/** Symbol and style of each tone, so that colour is not the only mark. */
const TONES = { better: ["▾", "sv-good"], worse: ["▴", "sv-warn"], same: ["="], unknown: [""] };

export class Compare {
  /** @param {import("./explorer.js").Requests} page */
  constructor(page) {
    this.page = page;
    this.key = "";
    const edits = { "data-edit": "true" };
    const turn = () => page.act(this.node.hidden ? "pin" : "unpin");
    const pressed = { ...edits, "aria-pressed": "false", title: "Compare: pin the state as A" };
    this.pin = iconButton("compare", "Compare", turn, pressed);
    // Not a <dl>, because JupyterLab's style sheet floats its terms at a fifth of the width.
    this.numbers = h("div", { class: "sv-comparednumbers", role: "list" });
    const small = { class: "sv-button sv-small", ...edits };
    this.back = button("Back to A", () => page.act("back"), small);
    const unpin = button("Unpin", () => page.act("unpin"), small);
    const about = { class: "sv-compared", role: "region", "aria-label": "A and now" };
    const title = h("b", { text: "A → now" });
    this.node = h("div", { ...about, hidden: true }, title, this.numbers, this.back, unpin);
  }

  /** @param {import("./view_data.js").View} view */
  show(view) {
    const data = this.page.get("compare_data");
    const { rows } = data;
    this.node.hidden = !rows || !this.page.live;
    this.pin.setAttribute("aria-pressed", String(!this.node.hidden));
    toggle(this.node, "sv-older", !isCurrent(data, { view, target: this.page.get("target") }));
    if (!isNew(this, data) || !rows) return;
    enable(this.back, !data.same);
    fill(this.numbers, ...rows.map(compared));
  }
}

/** @param {ComparedNumber} row */
function compared({ name, title, text, change, tone }) {
  const [sign, style] = TONES[tone];
  const by = h("span", { class: style, text: change && ` ${sign} ${change}` });
  const about = h("div", { class: "sv-muted", text: name });
  return h("div", { title, role: "listitem" }, about, h("div", null, h("b", { text }), by));
}
