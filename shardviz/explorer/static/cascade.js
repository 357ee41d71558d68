// @ts-check
// Explains how rules split one dimension of an array.
// It shows the array's dimensions, a sentence, the matching rules, and edits that would split it.
import { axisTag, button, fill, focusedNear, h, handled, isNew, setText } from "./dom.js";

/**
 * The explanation of one dimension, from `rules_view.py`; `key` is `array:dimension`.
 * @typedef {object} Cell
 * @property {string} [key]
 * @property {string} [name] The logical name of the dimension, or text such as "dimension 1".
 * @property {DimCard[]} [dims] All dimensions of the array.
 * @property {string} [head] The result and its reason.
 * @property {string} [text]
 * @property {string} [done] The last edit.
 * @property {RuleLine[]} [lines] The rules that match the dimension, in table order.
 * @property {Remedy[]} [remedies] Edits that would split the dimension; missing until searched.
 * @property {string} [reason] Why there are no remedies.
 */

/**
 * A dimension of the array, with the mesh axes that split it.
 * @typedef {object} DimCard
 * @property {string} name
 * @property {number} size
 * @property {string} state
 * @property {string[]} [axes]
 * @property {true} [fails]
 * @property {true} [loses]
 */

/**
 * A rule, or the array's own spec, with its verdict. A spec has no index as `rule`.
 * @typedef {{rule?: number, text: string, words: string, kind?: string, wins?: true, fails?: true}} RuleLine
 */

/**
 * An edit that splits the chosen dimension, and its effects. `step` has the bytes that the planned
 * program would send and keep after the edit; missing without a program.
 * @typedef {Record<"edit" | "spec" | "memory" | "others", string> &
 *   {saves: boolean, step?: {text: string, worse: boolean}}} Remedy
 */

/** A rule of the table. `idle`: why the rule decides nothing. @typedef {{rule: number, text: string, idle?: string}} TableLine */

const QUOTED = /'([^']+)'/;
const SEPARATORS = /[(), ]+/;

/** Splits a sentence into nodes, with tags for quoted mesh axes. @param {string} text @param {string[]} axes */
function tagged(text, axes) {
  return text.split(QUOTED).map((part, i) => {
    const at = i % 2 ? axes.indexOf(part) : -1;
    if (at >= 0) return axisTag(part, at);
    return i % 2 ? `'${part}'` : part;
  });
}

/** @param {number | undefined} rule @param {HTMLElement} content @param {HTMLElement} why @param {string} [look] */
function ruleRow(rule, content, why, look = "") {
  const number = h("span", { class: "sv-muted", text: rule === undefined ? "" : `${rule + 1}` });
  return h("div", { class: `sv-ruleline${look}`, role: "listitem" }, number, content, why);
}

export class Cascade {
  /**
   * @param {(dim: number) => void} choose called with a dimension of the array
   * @param {import("./explorer.js").Requests} page
   */
  constructor(choose, page) {
    this.choose = choose;
    this.page = page;
    this.unfolded = false;
    this.key = "";
    /** @type {HTMLButtonElement[]} */ this.cards = [];
    /** @type {string[]} */ this.axes = [];
    const keys = { keydown: (/** @type {KeyboardEvent} */ e) => this.pressed(e) };
    const about = { role: "radiogroup", "aria-label": "Dimensions" };
    this.dims = h("div", { class: "sv-dims", ...about, on: keys });
    this.appliedNote = h("p", { class: "sv-done sv-good" });
    this.reason = h("p", { class: "sv-reason" });
    this.lines = h("div", { class: "sv-lines", role: "list" });
    this.fold = button("", () => this.turn(), { class: "sv-link sv-fold", hidden: true });
    this.otherLines = h("div", { class: "sv-lines sv-otherlines", role: "list" });
    this.remedies = h("div", { class: "sv-remedies", role: "list", "aria-label": "Remedies" });
    const status = h("div", { role: "status" }, this.appliedNote, this.reason);
    const rules = [this.lines, this.fold, this.otherLines];
    this.node = h("div", { class: "sv-cascade" }, this.dims, status, ...rules, this.remedies);
  }

  /** @param {Cell} cell @param {TableLine[]} table @param {string[]} axes of the mesh */
  show(cell, table, axes) {
    if (!isNew(this, [cell, table, axes])) return;
    this.axes = axes;
    const { dims = [], head = "", text = "", lines = [], name = "" } = cell;
    const focused = this.dims.contains(focusedNear(this.dims));
    this.cards = dims.map((dim, i) => this.card(dim, i));
    fill(this.dims, ...this.cards);
    this.mark(Number(cell.key?.split(":")[1] ?? -1));
    if (focused) this.focus();
    setText(this.appliedNote, cell.done ?? "");
    fill(this.reason, h("b", null, ...tagged(head, axes)), " ", ...tagged(text, axes));
    fill(this.lines, ...lines.map((line) => this.line(line)));
    this.lines.setAttribute("aria-label", `Rules for ${name}`);
    const named = new Set(lines.map(({ rule }) => rule));
    const otherRules = table.filter(({ rule }) => !named.has(rule));
    this.showOthers(otherRules, name, otherRules.length < table.length);
    this.showRemedies(cell);
  }

  /** @param {DimCard} dim @param {number} i */
  card({ name, size, state, axes = [], fails, loses }, i) {
    const style = fails ? "sv-bad" : loses ? "sv-warn" : "sv-muted";
    const tags = fails ? [] : axes.map((axis) => this.tag(axis));
    const words = state ? [h("span", { class: style, text: state })] : [];
    const axesNode = h("span", { class: "sv-dimwhat" }, ...tags, ...words);
    const length = h("span", { class: "sv-mono sv-muted", text: size.toLocaleString("en") });
    const about = { type: "button", role: "radio", class: "sv-plain sv-dimcard" };
    const on = { click: () => this.choose(i) };
    return h("button", { ...about, on }, h("span", null, h("b", { text: name }), length), axesNode);
  }

  /** @param {string} axis */
  tag(axis) {
    return axisTag(axis, this.axes.indexOf(axis));
  }

  focus() {
    this.cards.find(({ tabIndex }) => tabIndex === 0)?.focus({ preventScroll: true });
  }

  /** Marks the chosen dimension with a ring. @param {number} chosen */
  mark(chosen) {
    this.cards.forEach((card, i) => {
      card.setAttribute("aria-checked", String(i === chosen));
      card.tabIndex = i === Math.max(0, chosen) ? 0 : -1;
    });
  }

  /** Arrow keys choose the next or previous dimension. @param {KeyboardEvent} e */
  pressed(e) {
    const at = this.cards.findIndex((card) => card === e.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + 1, ArrowUp: at - 1 }[e.key];
    if (at < 0 || to === undefined) return;
    handled(e);
    const next = (to + this.cards.length) % this.cards.length;
    this.cards[next].focus();
    this.choose(next);
  }

  /** A rule that matches the dimension; the winning rule is bold, all others are struck through. @param {RuleLine} line */
  line({ rule, text, words, wins, fails }) {
    const [name, target] = text.split(" → ");
    const names = target?.split(SEPARATORS).filter(Boolean) ?? [];
    const all = names.length && names.every((axis) => this.axes.includes(axis));
    const tags = names.map((axis) => this.tag(axis));
    const parts = all ? [`${name} → `, ...tags] : [text];
    const ruleNode = h(wins ? "b" : "del", { class: "sv-mono" }, ...parts);
    const style = fails ? "sv-bad" : wins ? "" : "sv-muted";
    const why = h("span", { class: style }, ...tagged(words, this.axes));
    return ruleRow(rule, ruleNode, why, fails ? " sv-fails" : wins ? " sv-wins" : "");
  }

  /** @param {TableLine[]} rules @param {string} name @param {boolean} some whether other rules name it */
  showOthers(rules, name, some) {
    const count = `${rules.length} ${some ? "other " : ""}rule${rules.length === 1 ? "" : "s"}`;
    const verb = rules.length === 1 ? "does" : "do";
    this.foldWords = `${count} ${verb} not name ${name}`;
    this.fold.hidden = !rules.length || !name || name.startsWith("dimension ");
    const rows = rules.map(({ rule, text, idle = "" }) => {
      const ruleNode = h("span", { class: "sv-mono sv-cut", text, title: text });
      return ruleRow(rule, ruleNode, h("span", { class: "sv-muted", text: idle }));
    });
    fill(this.otherLines, ...rows);
    this.turn(false);
  }

  /** Folds or unfolds the rules for other names. @param {boolean} [unfolds] true to toggle */
  turn(unfolds = true) {
    if (unfolds) this.unfolded = !this.unfolded;
    setText(this.fold, `${this.unfolded ? "▾" : "▸"} ${this.foldWords}`);
    this.fold.setAttribute("aria-expanded", String(this.unfolded));
    this.otherLines.hidden = this.fold.hidden || !this.unfolded;
  }

  /** @param {Cell} cell */
  showRemedies({ remedies = [], reason, key }) {
    const title = h("h4", { text: "What you can change" });
    const rows = remedies.map((remedy, i) => this.remedy(remedy, i, `${key} ${i}`));
    const none = reason ? [h("p", { class: "sv-muted" }, ...tagged(reason, this.axes))] : [];
    fill(this.remedies, ...(rows.length ? [title] : []), ...rows, ...none);
  }

  /** @param {Remedy} remedy @param {number} i @param {string} cell dimension key and index, which name it in the kernel */
  remedy({ edit, spec, memory, saves, others, step }, i, cell) {
    const style = i ? "sv-button sv-small" : "sv-button sv-small sv-primary";
    const about = { class: style, "aria-label": `Apply: ${edit}`, "data-edit": "true" };
    const go = () => {
      this.focus(); // keep the focus here: the button disappears
      this.page.ask("apply", cell);
    };
    const act = button("Apply", go, about);
    const words = h("span", { title: edit }, ...tagged(edit, this.axes));
    const bytes = h("b", { class: saves ? "sv-good" : "sv-muted", text: memory });
    const result = h("span", { class: "sv-mono", text: spec });
    const plan = step && h("span", { class: step.worse ? "sv-warn" : "", text: step.text });
    const numbers = h("span", null, bytes, plan ? " · " : "", plan);
    const look = { class: "sv-muted", title: `${spec} · ${others}` };
    const details = h("span", look, result, ` ${others}`);
    return h("div", { class: "sv-remedy", role: "listitem" }, words, act, numbers, details);
  }
}
