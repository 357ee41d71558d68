// @ts-check
// The rules: their text, and beside every rule what it did for every dimension.
import { Choice, Touched, keepKey } from "./controls.js";
import { OWN_KEYS, fill, h, setText, toggle } from "./dom.js";
import { CellSentence, RuleGrid } from "./rule_grid.js";

/** @typedef {import("./messages").RuleUse} RuleUse */
/** @typedef {import("./messages").Cell} Cell */
/**
 * What the view shows: the text of the table, what its rules do, and the chosen cell.
 * @typedef {{rules: import("./messages").RulesText, use: RuleUse | Record<string, never>,
 *   cell: Cell | Record<string, never>, dialects: string[], live: boolean}} Shown
 */
const SETTLED_MS = 200;
const HEAD_ROWS = 2; // above the first rule
const RULE_ROW = 30; // pixels, as --sv-row in the style sheet

export class RuleTable {
  /**
   * @param {import("./explorer.js").Edit} edit
   * @param {(key: string) => void} ask for a cell
   * @param {(number: number) => void} apply one of its remedies
   */
  constructor(edit, ask, apply) {
    this.edit = edit;
    this.ask = ask;
    this.live = false;
    /** @type {RuleUse | null} */ this.use = null;
    this.state = new Touched();
    this.dialect = new Choice("Dialect", (v) => edit("dialect", v), "read as");
    this.text = h("textarea", {
      class: "sv-rules sv-mono",
      "aria-label": "Rules",
      spellcheck: "false",
      wrap: "off",
      autocapitalize: "off",
      ...OWN_KEYS,
      placeholder: "batch -> data",
      on: {
        input: () => {
          this.state.touched = true;
          this.grow();
          edit("rules", this.text.value);
        },
        change: () => edit("tidy", null),
        keydown: keepKey,
      },
    });
    this.rows = h("div", { class: "sv-rulerows" });
    this.mark = h("div", { class: "sv-dropmark", hidden: true });
    this.sheet = h("div", { class: "sv-sheet" }, this.rows, this.text, this.mark);
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.grid = new RuleGrid(
      (key) => this.pick(key),
      (from, by) => this.move(from, from + by),
    );
    this.cell = new CellSentence(apply);
    this.node = this.build();
    this.key = "";
  }

  build() {
    const title = h("h3", { class: "sv-head", text: "Rules" });
    const how = h("span", {
      class: "sv-muted sv-how",
      text: "drag, or Alt and arrows, to reorder",
    });
    const head = h("div", { class: "sv-headrow" }, h("span", { class: "sv-rulehead" }, title, how));
    head.append(this.dialect.node);
    const scroll = h("div", { class: "sv-scroll" }, this.sheet, this.grid.node);
    return h("div", { class: "sv-rulebox" }, head, scroll, this.error, this.cell.node);
  }

  grow() {
    const lines = this.text.value.split("\n");
    const letters = Math.max(...lines.map((line) => line.length));
    this.text.rows = lines.length;
    this.sheet.style.setProperty("--sv-lines", String(lines.length));
    this.sheet.style.setProperty("--sv-letters", String(letters));
    return lines.length;
  }

  /** Asks why a dimension of an array is split as it is. @param {number} array @param {number} dim */
  choose(array, dim) {
    this.grid.set(`-1:${array}:${dim}`);
  }

  /** @param {string} key */
  pick(key) {
    this.ask(key);
    const saved = this.use?.saved?.[key];
    if (saved) this.cell.show({ key, head: saved[0], text: saved[1] }, this.use);
  }

  /** @param {number} from @param {number} to */
  move(from, to) {
    const count = this.use?.rows.length ?? 0;
    if (to < 0 || to >= count || from === to || !this.use?.aligned) return;
    const [rule, ...rest] = this.grid.chosen.split(":");
    // What is chosen goes with its rule.
    if (rest.length && Number(rule) === from) {
      this.grid.chosen = [to, ...rest].join(":");
      this.ask(this.grid.chosen);
    }
    this.edit("move", [from, to]);
  }

  /** @param {Shown} shown */
  show({ rules, use, cell, dialects, live }) {
    this.live = live;
    if (this.text.value !== rules.text && this.state.accepts(this.text)) {
      this.text.value = rules.text;
    }
    const lines = this.grow();
    this.dialect.sync(
      dialects.map((d) => ({ value: d, label: d })),
      rules.dialect,
    );
    setText(this.error, rules.error ?? "");
    this.text.setAttribute("aria-invalid", rules.error ? "true" : "false");
    if (!("rows" in use)) return;
    this.use = /** @type {RuleUse} */ (use);
    toggle(this.node, "sv-unaligned", !use.aligned);
    if (live) {
      this.cell.show(cell, this.use);
      this.lookAgain(cell);
    } else if (!this.grid.chosen) this.cell.show({}, this.use);
    // While a line is being typed the old rows stay beside it, pale.
    if (rules.error) return;
    this.grid.show(this.use, lines);
    if (this.node.offsetParent) this.chooseFirst();
    const key = JSON.stringify(use.rows);
    if (key === this.key) return;
    this.key = key;
    fill(this.rows, ...this.use.rows.map((row, i) => this.ruleRow(row, i)));
    // What is never used is said in a column of its own, where no rule is written.
    toggle(
      this.sheet,
      "sv-withunused",
      this.use.rows.some((row) => row.never),
    );
  }

  /** Remedies are looked for once nobody edits any more. @param {Shown["cell"]} cell */
  lookAgain(cell) {
    window.clearTimeout(this.timer);
    if (!("key" in cell) || cell.remedies || cell.key !== this.grid.chosen) return;
    this.timer = window.setTimeout(() => this.ask(this.grid.chosen), SETTLED_MS);
  }

  /** Chooses what is most likely to be mended, where nothing is chosen yet. */
  chooseFirst() {
    if (this.grid.chosen || !this.use) return;
    const column = this.use.columns.find(({ unmatched, problem }) => unmatched || problem);
    if (!column) return;
    const dim = column.unmatched?.[0] ?? failingDim(column.problem);
    this.grid.set(`-1:${column.array}:${dim}`);
  }

  /** The number of a rule, which is its handle, and whether it is used. @param {import("./messages").RuleRow} row @param {number} index */
  ruleRow(row, index) {
    const { note, never } = row;
    const handle = h("span", {
      class: "sv-number",
      text: String(index + 1),
      title: "Drag to reorder",
      on: { pointerdown: (e) => this.drag(e, index) },
    });
    const unused = h("span", { class: "sv-who sv-warn", text: "never used", title: note });
    const props = { class: "sv-rulerow", style: { "--sv-row-index": row.line }, title: note };
    return h("div", props, handle, never ? unused : null);
  }

  /** Drags a rule by its number; a line shows where it would be. @param {PointerEvent} e @param {number} from */
  drag(e, from) {
    if (!this.live || !this.use?.aligned || !(e.target instanceof HTMLElement)) return;
    e.preventDefault();
    const handle = e.target;
    handle.setPointerCapture(e.pointerId);
    this.grid.focus();
    const lines = this.use.rows.map((row) => row.line);
    let to = from;
    const moved = (/** @type {PointerEvent} */ now) => {
      const y = (now.clientY - this.sheet.getBoundingClientRect().top) / RULE_ROW - HEAD_ROWS;
      to = lines.filter((line) => line + 0.5 < y).length;
      if (to > from) to -= 1;
      const line = lines[to] + (to > from ? 1 : 0);
      this.mark.style.setProperty("--sv-row-index", String(line));
      this.mark.hidden = to === from;
    };
    const ended = () => {
      this.mark.hidden = true;
      handle.removeEventListener("pointermove", moved);
      this.move(from, Math.max(0, Math.min(lines.length - 1, to)));
    };
    handle.addEventListener("pointermove", moved);
    handle.addEventListener("lostpointercapture", ended, { once: true });
  }
}

/** The dimension that a sentence is about: `Dimension 1: …`. @param {string} [problem] */
export function failingDim(problem = "") {
  return Number(/^Dimension (\d+)/.exec(problem)?.[1] ?? 0);
}
