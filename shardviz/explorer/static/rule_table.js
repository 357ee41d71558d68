// @ts-check
// The Rules view: the rule table as text, next to the explanation of one dimension.
import { Cascade } from "./cascade.js";
import { Choice, Touched, answers, keepKey, showError } from "./controls.js";
import { fill, h, headCut, isNew, setText, toggle } from "./dom.js";
import { Find, item } from "./find.js";

/** @import { Cell } from "./cascade.js" */
/** @import { View } from "./view_data.js" */

/**
 * The effect of every rule, from `rules_view.py`.
 * @typedef {object} RuleUse
 * @property {boolean} aligned Whether the text has one rule per line, as the rows do.
 * @property {RuleRow[]} rows
 * @property {Record<string, import("./cascade.js").Cell>} [saved] In a saved page: dimension key ->
 *   explanation.
 */

/**
 * @typedef {object} RuleRow
 * @property {number} line
 * @property {string} [idle] Text that the rule decides nothing; missing if it decides something.
 * @property {string} [note] Text that explains which arrays the rule does not decide.
 */

const SETTLED_MS = 200;
const RULE_ROW = 24; // pixels, as --sv-row in the style sheet

export class RuleTable {
  /** @param {import("./explorer.js").Requests} page */
  constructor(page) {
    this.page = page;
    this.chosen = "";
    this.opened = false; // true once the view was visible
    this.scrolled = ""; // the dimension whose rules were last scrolled into view
    /** @type {View | null} */ this.view = null;
    /** @type {RuleUse | null} */ this.use = null;
    this.state = new Touched();
    this.picker = new Find(
      { gather: () => this.gather(), read: () => null, ask: () => {} },
      { name: "Why is", field: "Find an array", hint: "a part of its name" },
    );
    this.type = h("span", { class: "sv-mono sv-muted" });
    this.dialect = new Choice("Dialect", (v) => page.edit("dialect", v), "Rule semantics:");
    this.text = h("textarea", {
      class: "sv-rules sv-mono",
      "aria-label": "Rules",
      wrap: "off",
      autocapitalize: "off",
      placeholder: "batch -> data",
      on: {
        input: () => this.typed(),
        change: () => page.edit("tidy", null),
        keydown: (e) => this.pressed(e),
      },
    });
    this.rows = h("div", { class: "sv-rulerows" });
    this.mark = h("div", { class: "sv-dropmark", hidden: true });
    this.sheet = h("div", { class: "sv-sheet" }, this.rows, this.text, this.mark);
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.scroll = h("div", { class: "sv-scroll" }, this.sheet);
    this.cascade = new Cascade((dim) => this.choose(this.array, dim), page);
    this.key = "";
    const why = h("span", { class: "sv-muted", text: "Why is" });
    const space = h("span", { class: "sv-space" });
    const parts = [why, this.picker.node, this.type, space, this.dialect.node];
    const line = h("div", { class: "sv-whyline" }, ...parts);
    const table = h("div", { class: "sv-tablebox" }, this.scroll, this.error);
    this.node = h("div", { class: "sv-rulebox" }, line, table, this.cascade.node);
  }

  /** The index of the selected dimension's array. */
  get array() {
    return Number(this.chosen.split(":")[0]);
  }

  grow() {
    const lines = this.text.value.split("\n");
    this.text.rows = lines.length;
    this.sheet.style.setProperty("--sv-lines", String(lines.length));
    const letters = Math.max(...lines.map((line) => line.length));
    this.sheet.style.setProperty("--sv-letters", String(letters));
    return lines;
  }

  typed() {
    this.state.touched = true;
    this.grow();
    this.page.edit("rules", this.text.value);
  }

  /** Alt with an arrow key moves the rule at the cursor. @param {KeyboardEvent} e */
  pressed(e) {
    keepKey(e);
    const step = { ArrowUp: -1, ArrowDown: 1 }[e.key];
    if (!e.altKey || !step) return;
    e.preventDefault();
    const lines = this.text.value.split("\n");
    const before = this.text.value.slice(0, this.text.selectionStart).split("\n");
    const from = before.length - 1;
    const to = from + step;
    if (to < 0 || to >= lines.length) return;
    [lines[from], lines[to]] = [lines[to], lines[from]];
    this.text.value = lines.join("\n");
    const start = lines.slice(0, to).join("\n").length + (to ? 1 : 0) + before[from].length;
    this.text.setSelectionRange(start, start);
    this.typed();
  }

  /** Requests the explanation of a dimension, or of an array's first one. @param {string} key */
  ask(key) {
    if (this.page.editable) this.page.ask("cell", key);
  }

  /** Selects a dimension of an array, and requests its explanation. @param {number} array @param {number} dim */
  choose(array, dim) {
    this.chosen = `${array}:${dim}`;
    this.cascade.mark(dim);
    if (array !== this.view?.selected) this.page.select(array);
    this.ask(this.chosen);
    if (this.view && !this.page.editable) this.show(this.view);
  }

  /** @param {View} view */
  show(view) {
    const { page } = this;
    const [use, live] = [page.get("rule_use"), page.editable];
    const { rules } = view;
    const moved = this.view && this.view.selected !== view.selected;
    this.view = view;
    const differs = this.text.value !== rules.text && this.state.accepts(this.text);
    if (differs) this.text.value = rules.text;
    const lines = this.grow();
    this.dialect.sync(page.get("menus").dialects, rules.dialect);
    showError(this.text, this.error, rules.error ?? "");
    if (!("rows" in use)) return;
    this.use = /** @type {RuleUse} */ (use);
    toggle(this.node, "sv-unaligned", !use.aligned);
    if (moved && !live && !this.chosen.startsWith(`${view.selected}:`)) {
      this.chosen = `${view.selected}:0`;
    }
    const answer = (!live && this.use.saved?.[this.chosen]) || page.get("cell");
    if (answers.settled || !this.chosen) this.chosen = answer.key ?? "";
    // Hide remedies until the answer for the selected dimension arrives.
    const cell =
      (answer.key ?? "") === this.chosen ? answer : { ...answer, remedies: [], reason: "" };
    this.showCell(cell, lines);
    this.selectFirst(view);
    if (live) this.lookAgain(cell);
    // While the text has an error, keep the old rows (pale).
    if (!rules.error) this.showRows(cell);
  }

  /** Selects the array of an automatically selected dimension, so that the pictures show it. @param {View} view */
  selectFirst({ selected, redo }) {
    if (this.opened || !this.chosen || !this.node.offsetParent) return;
    this.opened = true;
    if (this.array !== selected && !redo) this.page.select(this.array);
  }

  /** Lists the arrays, and the model's leaves that are not yet arrays of the program. */
  gather() {
    const { view, page } = this;
    if (!view) return [];
    const [leaves, live] = [page.get("leaves"), page.editable];
    // As for the cards, one array stands for those of equal layers.
    const options = view.arrays.flatMap((array, i) => {
      const go = () => (i === view.selected && live ? this.ask(String(i)) : page.select(i));
      return array.folded ? [] : item(array.short, inLayers(array), go);
    });
    const names = new Set(view.arrays.map(({ name }) => name));
    const paths = "paths" in leaves && live ? leaves.paths : [];
    paths.forEach((name, leaf) => {
      if (!names.has(name)) options.push(item("", name, () => page.edit("open", leaf)));
    });
    return options;
  }

  /** @param {Cell} cell @param {string[]} lines of the text */
  showCell(cell, lines) {
    const { view } = this;
    if (!view || !this.use) return;
    const array = view.arrays[this.array];
    headCut(this.picker.opener, `${array ? inLayers(array) : ""} ▾`);
    this.picker.opener.title = array?.name ?? "";
    setText(this.type, array?.short ?? "");
    const table = this.use.rows.map(({ line, idle }, rule) => ({ rule, text: lines[line], idle }));
    const axes = view.mesh.axes.map(({ name }) => name);
    this.cascade.show(cell, this.use.aligned ? table : [], axes);
  }

  /** Shows the rule numbers, and highlights rules that match the selected dimension. @param {Cell} cell */
  showRows({ lines = [], key = "" }) {
    if (!this.use) return;
    const { rows } = this.use;
    if (!isNew(this, [rows, lines])) return;
    const named = new Map(lines.map((line) => [line.rule, line]));
    const nodes = rows.map((row, i) => this.ruleRow(row, i, named.get(i)));
    fill(this.rows, ...nodes);
    const first = nodes.find((_, i) => named.has(i));
    if (!first || key === this.scrolled) return;
    this.scrolled = key;
    const { offsetTop } = first;
    const scrollTop = this.scroll.scrollTop;
    if (offsetTop < scrollTop || offsetTop > scrollTop + this.scroll.clientHeight - 2 * RULE_ROW) {
      this.scroll.scrollTop = offsetTop - 2 * RULE_ROW;
    }
  }

  /**
   * The number of a rule, which is also its drag handle.
   * @param {RuleRow} row
   * @param {number} index
   * @param {import("./cascade.js").RuleLine} [named] the rule's verdict for the selected dimension
   */
  ruleRow({ line, note }, index, named) {
    const handle = h("span", {
      class: "sv-number",
      text: String(index + 1),
      title: "Drag to reorder; in the text, Alt and an arrow key move a line",
      on: { pointerdown: (e) => this.drag(e, index) },
    });
    const won = named?.wins ? (named.fails ? " sv-named sv-fails" : " sv-named sv-wins") : "";
    const look = `sv-rulerow${won || (named ? " sv-named" : "")}`;
    const props = { class: look, style: { "--sv-row-index": line }, title: note };
    return h("div", props, handle);
  }

  /** Requests remedies after a pause without edits. @param {Cell} cell */
  lookAgain(cell) {
    window.clearTimeout(this.timer);
    const { key } = cell;
    // The kernel does not answer for hidden views.
    if (!key || cell.remedies || key !== this.chosen || !this.node.offsetParent) return;
    this.timer = window.setTimeout(() => this.ask(key), SETTLED_MS);
  }

  /** Drags a rule by its number; a line marks the drop position. @param {PointerEvent} e @param {number} from */
  drag(e, from) {
    if (!this.page.editable || !this.use?.aligned || !(e.target instanceof HTMLElement)) return;
    e.preventDefault();
    const handle = e.target;
    handle.setPointerCapture(e.pointerId);
    this.text.blur(); // focused text would not be replaced
    this.cascade.focus(); // keeps the focus in the view, which undo and redo need
    const lines = this.use.rows.map((row) => row.line);
    let to = from;
    const moved = (/** @type {PointerEvent} */ now) => {
      const y = (now.clientY - this.text.getBoundingClientRect().top) / RULE_ROW;
      to = lines.filter((line) => line + 0.5 < y).length;
      if (to > from) to -= 1;
      const line = lines[to] + (to > from ? 1 : 0);
      this.mark.style.setProperty("--sv-row-index", String(line));
      this.mark.hidden = to === from;
    };
    const ended = () => {
      this.mark.hidden = true;
      handle.removeEventListener("pointermove", moved);
      const place = Math.max(0, Math.min(lines.length - 1, to));
      if (place !== from) this.page.edit("move", [from, place]);
    };
    handle.addEventListener("pointermove", moved);
    handle.addEventListener("lostpointercapture", ended, { once: true });
  }
}

/** The name of an array, or of the layers that it stands for. @param {View["arrays"][number]} array */
function inLayers({ title, layers }) {
  return [title, layers].filter(Boolean).join(", ");
}
