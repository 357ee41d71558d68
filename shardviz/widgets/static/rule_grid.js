// @ts-check
// Rules x dimensions: a verdict in every cell, and what was chosen among them in a sentence.
import { OWN_KEYS, button, fill, focusedNear, h, setText, toggle } from "./dom.js";

/** @typedef {import("./messages").RuleUse} RuleUse */
/** @typedef {import("./messages").RuleColumn} RuleColumn */
/** @typedef {import("./messages").Cell} Cell */

/**
 * The sign of a verdict, its word and its style, by the letter that Python sends.
 * @type {Record<string, [sign: string, word: string, style: string]>}
 */
const VERDICTS = {
  s: ["●", "split", "sv-good"],
  u: ["■", "stops", "sv-muted"],
  1: ["○", "size 1", "sv-muted"],
  x: ["✕", "breaks", "sv-bad"],
  d: ["–", "decided", "sv-muted"],
  t: ["✕", "taken", "sv-warn"],
  o: ["–", "overridden", "sv-muted"],
};
const MOST_COLUMNS = 60; // arrays; the view Model has all of them
const NO_RULE = -1;

export class RuleGrid {
  /**
   * @param {(key: string) => void} choose
   * @param {(from: number, by: number) => void} move a rule up or down
   */
  constructor(choose, move) {
    this.choose = choose;
    this.move = move;
    this.chosen = "";
    this.key = "";
    /** @type {Map<string, HTMLElement>} */ this.cells = new Map();
    const on = { keydown: (/** @type {KeyboardEvent} */ e) => this.pressed(e) };
    const about = { role: "grid", "aria-label": "Verdicts" };
    this.node = h("div", { class: "sv-grid", ...about, on });
  }

  /** @param {RuleUse} use @param {number} lines of the text */
  show(use, lines) {
    const key = JSON.stringify([use.rows, use.columns, lines]);
    if (key === this.key) return this.mark();
    this.key = key;
    const focused = this.node.contains(focusedNear(this.node));
    this.cells.clear();
    const columns = use.columns.slice(0, MOST_COLUMNS);
    const dims = columns.flatMap((column) => column.dims.map((_, dim) => ({ column, dim })));
    this.node.style.setProperty("--sv-dims", String(dims.length));
    const body = h("div", { class: "sv-gridbody", role: "rowgroup" });
    body.style.setProperty("--sv-lines", String(lines));
    body.append(...use.rows.map((row, rule) => this.row(row, rule, dims)));
    const left = use.columns.length - columns.length;
    const more = left
      ? [h("p", { class: "sv-muted", text: `${left} more in the view Model` })]
      : [];
    fill(this.node, this.head(columns), body, this.results(columns), ...more);
    this.mark();
    if (focused) this.focus();
  }

  /** @param {RuleColumn[]} columns */
  head(columns) {
    const names = columns.map((column) => {
      const { name, more, dims, problem } = column;
      const text = more ? `${name} +${more}` : name;
      const about = { style: { "grid-column": `span ${dims.length}` }, title: problem ?? text };
      return h("span", { class: problem ? "sv-gridname sv-bad" : "sv-gridname", text, ...about });
    });
    const labels = columns.flatMap((column) =>
      column.dims.map((name, dim) => {
        const missing = column.unmatched?.includes(dim);
        const first = dim ? "" : " sv-first";
        const style = `sv-cell sv-dimname${first}${missing ? " sv-bad" : ""}`;
        const words = missing ? `${name}: no rule knows it` : name;
        return this.cell(`${NO_RULE}:${column.array}:${dim}`, name, words, style);
      }),
    );
    return h("div", { class: "sv-gridhead", role: "row" }, ...names, ...labels);
  }

  /**
   * @param {import("./messages").RuleRow} row
   * @param {number} rule
   * @param {{column: RuleColumn, dim: number}[]} dims
   */
  row(row, rule, dims) {
    const cells = dims.map(({ column, dim }, i) => {
      const known = VERDICTS[row.cells[i]];
      const first = dim ? "" : " sv-first";
      if (!known) return h("span", { class: `sv-cell sv-nothing${first}`, text: "·" });
      const [sign, word, style] = known;
      const words = `Rule ${rule + 1}, ${column.name}.${column.dims[dim]}: ${word}`;
      const faded = column.typed ? " sv-overruled" : "";
      const look = `sv-cell ${style}${first}${faded}`;
      return this.cell(`${rule}:${column.array}:${dim}`, `${sign} ${word}`, words, look);
    });
    const place = { "--sv-row-index": row.line };
    return h("div", { class: "sv-gridrow", role: "row", style: place }, ...cells);
  }

  /** How every array is split in the end. @param {RuleColumn[]} columns */
  results(columns) {
    const cells = columns.map(({ spec, problem, dims, typed }) =>
      h("span", {
        class: `sv-result sv-mono${problem ? " sv-bad" : ""}`,
        text: problem ? "cannot be laid out" : spec,
        title: problem ?? (typed ? `${spec}, typed: it wins over the rules` : spec),
        style: { "grid-column": `span ${dims.length}` },
      }),
    );
    return h("div", { class: "sv-gridfoot", role: "row" }, ...cells);
  }

  /** @param {string} key @param {string} text @param {string} words @param {string} style */
  cell(key, text, words, style) {
    const about = { role: "gridcell", "aria-label": words, title: words, tabindex: "-1" };
    const on = { click: () => this.pick(key) };
    const props = { type: "button", class: style, ...about, ...OWN_KEYS, on };
    const node = h("button", { ...props, text, "data-key": key });
    this.cells.set(key, node);
    return node;
  }

  /** @param {string} key */
  pick(key) {
    this.set(this.chosen === key ? "" : key);
  }

  /** @param {string} key */
  set(key) {
    this.chosen = key;
    this.choose(this.chosen);
    this.mark();
  }

  focus() {
    const cell = [...this.cells.values()].find(({ tabIndex }) => tabIndex === 0);
    cell?.focus({ preventScroll: true });
  }

  mark() {
    const all = [...this.cells.values()];
    const on = this.cells.get(this.chosen);
    const focused = all.find((cell) => cell.tabIndex === 0);
    for (const cell of all) toggle(cell, "sv-chosen", cell === on);
    const first = on ?? focused ?? all[0];
    for (const cell of all) cell.tabIndex = cell === first ? 0 : -1;
    const rule = this.chosen.split(":")[0];
    this.node.querySelectorAll(".sv-gridrow").forEach((row, i) => {
      toggle(row, "sv-on", this.chosen !== "" && String(i) === rule);
    });
  }

  /** Arrow keys go from verdict to verdict; with Alt they move the rule. @param {KeyboardEvent} e */
  pressed(e) {
    const at = e.target instanceof HTMLElement ? e.target.dataset.key : undefined;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      e.key
    ];
    if (at === undefined || !step) return;
    e.preventDefault();
    e.stopPropagation();
    const rule = Number(at.split(":")[0]);
    if (e.altKey) {
      if (step[0] && rule >= 0) this.move(rule, step[0]);
      return;
    }
    this.nearest(at, step)?.focus();
  }

  /** The next verdict in a direction. @param {string} at @param {number[]} step */
  nearest(at, [down, across]) {
    const from = this.cells.get(at)?.getBoundingClientRect();
    if (!from) return undefined;
    const away = (/** @type {HTMLElement} */ cell) => {
      const to = cell.getBoundingClientRect();
      const along = (to.x - from.x) * across + (to.y - from.y) * down;
      const off = Math.abs((to.x - from.x) * down) + Math.abs((to.y - from.y) * across);
      return along > 1 ? along + 3 * off : Infinity;
    };
    const all = [...this.cells.values()].map((cell) => ({ cell, far: away(cell) }));
    const best = all.reduce((a, b) => (b.far < a.far ? b : a));
    if (best.far === Infinity) return undefined;
    for (const { cell } of all) cell.tabIndex = cell === best.cell ? 0 : -1;
    return best.cell;
  }
}

/** What to do where no cell is chosen, and why none can be. @param {RuleUse | null} use */
function hint(use) {
  // The rows are left out, too, where the text does not have one rule a line.
  if (use?.aligned && !use.rows.length) {
    return (
      "There are no rules. A line “batch -> data” splits every dimension that is called batch" +
      " over the mesh axis data."
    );
  }
  if (use && !use.columns.length) {
    return "No array here names its dimensions, so no rule is used.";
  }
  return "Choose a cell to see what its rule did there, and why.";
}

/** The chosen cell: what the rule did there, and why. */
export class CellSentence {
  /** @param {(number: number) => void} apply a remedy */
  constructor(apply) {
    this.apply = apply;
    this.key = "";
    this.remedies = h("div", { class: "sv-remedies", role: "list", "aria-label": "Remedies" });
    this.head = h("b");
    this.text = h("span");
    this.words = h("p", null, this.head, " ", this.text);
    const about = { role: "status", "aria-live": "polite" };
    this.reason = h("p", { class: "sv-muted" });
    const parts = [this.words, this.reason, this.remedies];
    this.node = h("div", { class: "sv-cellwords", ...about }, ...parts);
  }

  /**
   * @param {Cell | Record<string, never>} cell
   * @param {RuleUse | null} use what there is to choose from
   */
  show(cell, use) {
    const known = "key" in cell;
    setText(this.head, known ? `${cell.head}.` : "");
    setText(this.text, known ? cell.text : hint(use));
    toggle(this.words, "sv-muted", !known);
    setText(this.reason, (known && cell.reason) || "");
    this.reason.hidden = !this.reason.textContent;
    const remedies = (known && cell.remedies) || [];
    const key = JSON.stringify(remedies);
    if (key === this.key) return;
    this.key = key;
    const title = h("p", { class: "sv-muted", text: "What would split it:" });
    const rows = remedies.map((remedy, i) => this.row(remedy, i));
    fill(this.remedies, ...(rows.length ? [title, ...rows] : []));
  }

  /** @param {import("./messages").Remedy} remedy @param {number} i */
  row({ edit, spec, memory, saves, others }, i) {
    const style = i ? "sv-button sv-small" : "sv-button sv-small sv-primary";
    const about = { class: style, "aria-label": `Apply: ${edit}`, "data-edit": "true" };
    const act = button("Apply", () => this.apply(i), about);
    const words = h("span", { class: "sv-remedyedit", text: edit, title: edit });
    const result = h("span", { class: "sv-mono", text: spec, title: spec });
    const bytes = h("span", { class: saves ? "sv-good" : "sv-muted", text: memory });
    const rest = h("span", { class: "sv-muted", text: others, title: others });
    return h("div", { class: "sv-remedy", role: "listitem" }, act, words, result, bytes, rest);
  }
}
