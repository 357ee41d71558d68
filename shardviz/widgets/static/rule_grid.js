// @ts-check
// The matrix of rules and dimensions, for tables that fit it: a verdict in a few words in each cell.
import { OWN_KEYS, fill, focusedNear, h, isNew, toggle } from "./dom.js";

/** @import { RuleColumn, RuleUse } from "./messages" */

/**
 * The words and the style of a verdict, by the letter that Python sends.
 * @type {Record<string, [words: string, style: string]>}
 */
const VERDICTS = {
  s: ["splits", "sv-good"],
  u: ["keeps whole", "sv-muted"],
  1: ["size 1", "sv-muted"],
  x: ["does not fit", "sv-bad"],
  m: ["no such axis", "sv-bad"],
  r: ["axis twice", "sv-bad"],
  d: ["too late", "sv-muted"],
  t: ["axis in use", "sv-warn"],
  o: ["replaced", "sv-muted"],
};
const DECIDING = "su1xmr";
const MOST_COLUMNS = 60; // arrays; the view Model has all of them

export class RuleGrid {
  /** @param {(array: number, dim: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.key = this.chosen = "";
    /** @type {HTMLElement[]} */ this.cells = [];
    const on = { keydown: (/** @type {KeyboardEvent} */ e) => this.pressed(e) };
    const about = { role: "grid", "aria-label": "Verdicts" };
    this.node = h("div", { class: "sv-grid", ...about, on });
  }

  /** @param {RuleUse} use @param {number} lines of the text @param {string} chosen dimension */
  show(use, lines, chosen) {
    if (!this.node.offsetParent) return;
    if (isNew(this, [use.rows, use.columns, lines])) this.build(use, lines);
    this.mark(chosen);
  }

  /** @param {RuleUse} use @param {number} lines */
  build(use, lines) {
    const focused = this.node.contains(focusedNear(this.node));
    this.cells = [];
    const columns = use.columns.slice(0, MOST_COLUMNS);
    const dims = columns.flatMap((column) => column.dims.map((_, dim) => ({ column, dim })));
    this.node.style.setProperty("--sv-dims", String(dims.length));
    const head = this.head(columns);
    const body = h("div", { class: "sv-gridbody", role: "rowgroup" });
    body.style.setProperty("--sv-lines", String(lines));
    body.append(...use.rows.map((row, rule) => this.row(use, rule, dims)));
    const left = use.columns.length - columns.length;
    const more = left ? `${left} more arrays: the view Model has all of them` : "";
    fill(this.node, head, body, h("p", { class: "sv-muted", text: more }));
    if (focused) this.cells[0]?.focus({ preventScroll: true });
  }

  /** @param {RuleColumn[]} columns */
  head(columns) {
    const names = columns.map(({ name, more, dims, spec, problem }) => {
      const text = more ? `${name} +${more.length}` : name;
      const title = `${text}: ${problem ?? spec}`;
      const about = { style: { "grid-column": `span ${dims.length}` }, title };
      return h("span", {
        class: problem ? "sv-gridname sv-cut sv-bad" : "sv-gridname sv-cut",
        text,
        ...about,
      });
    });
    const labels = columns.flatMap((column) =>
      column.dims.map((name, dim) => {
        const missing = column.unmatched?.includes(dim);
        const words = missing ? `${name}: no rule names it` : name;
        return this.cell(column.array, dim, name, words, missing ? "sv-warn" : "");
      }),
    );
    return h("div", { class: "sv-gridhead", role: "row" }, ...names, ...labels);
  }

  /** @param {RuleUse} use @param {number} rule @param {{column: RuleColumn, dim: number}[]} dims */
  row({ rows }, rule, dims) {
    const cells = dims.map(({ column, dim }, i) => {
      const letter = rows[rule].cells[i];
      const known = VERDICTS[letter];
      if (!known) return null;
      const by = rows.findIndex((row) => DECIDING.includes(row.cells[i]));
      const more = letter === "d" ? `: rule ${by + 1} decided` : "";
      const words = `Rule ${rule + 1}, ${column.name}.${column.dims[dim]}: ${known[0]}${more}`;
      const faded = column.typed ? " sv-overruled" : "";
      const cell = this.cell(column.array, dim, known[0], words, known[1] + faded);
      cell.style.gridColumn = String(i + 1);
      return cell;
    });
    const place = { "--sv-row-index": rows[rule].line };
    return h("div", { class: "sv-gridrow", role: "row", style: place }, ...cells);
  }

  /** @param {number} array @param {number} dim @param {string} text @param {string} words @param {string} style */
  cell(array, dim, text, words, style) {
    const about = { role: "gridcell", "aria-label": words, title: words, tabindex: "-1" };
    const props = {
      type: "button",
      class: `sv-plain sv-cell sv-cut ${style}`,
      text,
      ...about,
      ...OWN_KEYS,
    };
    const on = { click: () => this.choose(array, dim) };
    const node = h("button", { ...props, "data-key": `${array}:${dim}`, on });
    this.cells.push(node);
    return node;
  }

  /** @param {string} chosen */
  mark(chosen) {
    for (const cell of this.cells) toggle(cell, "sv-chosen", cell.dataset.key === chosen);
    const first = this.cells.find((cell) => cell.dataset.key === chosen) ?? this.cells[0];
    if (first && !this.cells.some(({ tabIndex }) => tabIndex === 0)) first.tabIndex = 0;
    if (chosen !== this.chosen) first?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.chosen = chosen;
  }

  /** Arrow keys go from verdict to verdict, up and down in one dimension. @param {KeyboardEvent} e */
  pressed(e) {
    const step = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1 }[e.key];
    const at = this.cells.findIndex((cell) => cell === e.target);
    if (at < 0 || !step) return;
    e.preventDefault();
    e.stopPropagation();
    const { key } = this.cells[at].dataset;
    const within = e.key === "ArrowUp" || e.key === "ArrowDown";
    let to = at + step;
    while (within && this.cells[to] && this.cells[to].dataset.key !== key) to += step;
    if (!this.cells[to]) return;
    for (const cell of this.cells) cell.tabIndex = cell === this.cells[to] ? 0 : -1;
    this.cells[to].focus();
  }
}
