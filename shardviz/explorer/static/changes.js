// @ts-check
// Changes that would remove a collective, make it cheaper, or lower peak memory.
// A button starts the search; each proposed change was compiled.
import { button, copyButton, fill, h, isNew } from "./dom.js";

/**
 * Proposed changes that would remove a collective or lower peak memory, from `changes_view.py`.
 * @typedef {object} Changes
 * @property {string} of the key of the collective, or "memory"
 * @property {number} revision
 * @property {string} target
 * @property {boolean} running
 * @property {string} words
 * @property {Change[]} rows
 * @property {string[]} notes Rejected changes, and advice.
 */

/**
 * @typedef {Record<"edit" | "facts" | "values" | "code", string> & {ok: boolean | null, takes: boolean}} Change
 * `takes`: whether the Explorer can apply the change as an edit.
 */

export class ChangesList {
  /** @param {string} question @param {Pick<import("./explorer.js").Requests, "ask">} page */
  constructor(question, page) {
    this.page = page;
    /** The key of the collective to remove, or "memory" to lower the peak. */
    this.of = "memory";
    this.key = "";
    const small = { class: "sv-button sv-small" };
    this.button = button(question, () => page.ask("changes", this.of), small);
    const label = { role: "region", "aria-label": "Changes", tabindex: "0" };
    this.node = h("div", { class: "sv-changes", hidden: true, ...label });
  }

  /** @param {Changes | Record<string, never>} data @param {boolean} current whether they are for the current program and target @param {boolean} live */
  show(data, current, live) {
    if (!isNew(this, [data, current, live, this.of])) return;
    this.button.hidden = !live;
    this.button.disabled = Boolean(data.running);
    this.node.hidden = data.of !== this.of;
    if (this.node.hidden) return;
    const { words, rows, notes } = /** @type {Changes} */ (data);
    const statusText = current ? words : "From before the last edit of the program or target.";
    const status = h("div", { class: "sv-muted", role: "status", text: statusText });
    const parts = rows.map((row, i) => this.row(row, i, live && current));
    const title = h("summary", { text: `Tried and rejected: ${notes.length}` });
    // The expanded list may be out of view.
    const toggle = () => more.open && more.scrollIntoView({ block: "nearest" });
    const more = h("details", { hidden: !notes.length, on: { toggle } }, title);
    more.append(...notes.map((text) => h("div", { class: "sv-muted", text })));
    this.node.classList.toggle("sv-faded", !current);
    fill(this.node, status, ...parts, more);
  }

  /** @param {Change} change @param {number} number @param {boolean} current */
  row({ edit, facts, values, ok, code, takes }, number, current) {
    const name = { "aria-label": `Apply: ${edit}`, disabled: !current };
    const equality = h("span", { class: ok ? "sv-good" : "", text: values });
    const line = h("div", { class: "sv-muted" }, facts && `${facts} · `, equality);
    return h(
      "div",
      { class: "sv-tlchosen" },
      h("div", null, edit, line),
      takes && button("Apply", () => this.page.ask("take", String(number)), name),
      code && copyButton("Copy code", () => code, { title: code }),
    );
  }
}
