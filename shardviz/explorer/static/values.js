// @ts-check
// The Values tab: every value of a program, and why it has its sharding.
// Folding and selecting need no kernel; explanations do.
import { mutedNote } from "./collectives.js";
import { searchField } from "./controls.js";
import { axisDot, button, fill, h, rowAfter } from "./dom.js";
import { handled, onResize, rowsInSight, scrollToRow, setText, toggle } from "./dom.js";
import { PlanData } from "./plan_data.js";
import { PlanRows, callTree, eachCall } from "./plan_rows.js";
import { VALUE_COLUMNS, callCells, valueCells } from "./value_cells.js";
import { valueDetails } from "./value_details.js";

/** @import { Plan, PlanView } from "./plan_data.js" */
/** @import { Explanation } from "./value_details.js" */
/** @import { PlanCall, PlanRow } from "./plan_rows.js" */

const VALUE_ROW = 24; // pixels
const MOST_OPEN = 400; // with at most this many values, all calls start unfolded
const MOST_ARGUMENTS = 40; // with at most this many arguments, their group starts unfolded
const LISTED_ESTIMATES = 5;
const NO_PLAN = "There is no plan yet: the program is planned once you pause editing.";
const HOW_PICK =
  "Pick a value to see where its axes came from. Arrow keys move, Enter picks, Escape clears" +
  " the choice.";
let panels = 0;

export class ValuesPanel {
  /** @param {Pick<import("./explorer.js").Requests, "ask">} page */
  constructor(page) {
    this.page = page;
    this.id = `sv-values-${++panels}`;
    /** @type {PlanView | null} */ this.data = null;
    /** @type {PlanData | null} */ this.plan = null;
    /** @type {PlanCall | null} */ this.tree = null;
    /** @type {PlanRow[]} */ this.rows = [];
    /** @type {Map<number, number>} */ this.rowOf = new Map();
    /** @type {Map<string, boolean>} */ this.folds = new Map();
    /** @type {string[]} */ this.words = [];
    this.active = 0;
    this.picked = -1;
    /** True while the list shows an older plan because the program cannot be planned. */
    this.old = false;
    /** @type {Map<string, Explanation>} */ this.explanations = new Map();
    this.find = searchField("Find values", "dot block.py", () => this.search());
    this.inner = h("div", { class: "sv-vinner", role: "presentation" });
    this.grid = this.treeGrid();
    const label = { "aria-label": "Why this sharding", tabindex: "0" };
    this.side = h("aside", { class: "sv-vside", ...label });
    this.message = h("p", { class: "sv-muted" });
    this.main = h("div", { class: "sv-vmain" }, this.grid, this.side);
    this.node = h("div", { class: "sv-values" }, this.message, this.main);
    // Only visible rows exist, so repaint if the height changes.
    onResize(this.grid, () => this.paint());
  }

  treeGrid() {
    const folders = ["Fold all", "Unfold all"].map((name, open) => {
      const label = { class: "sv-link", "aria-label": name, title: name };
      return button(open ? "▾" : "▸", () => this.foldAll(Boolean(open)), label);
    });
    const column = { role: "columnheader" };
    const titles = VALUE_COLUMNS.map(({ title }) => h("span", { ...column, text: title }));
    const first = h("span", { ...column, class: "sv-vfind" }, this.find, ...folders);
    const head = h("div", { class: "sv-vhead", role: "row" }, first, ...titles);
    const on = {
      scroll: () => this.paint(),
      keydown: (/** @type {KeyboardEvent} */ e) => this.key(e),
      click: (/** @type {MouseEvent} */ e) => this.click(e),
    };
    const about = { class: "sv-vgrid", role: "treegrid", "aria-label": "Values", tabindex: "0" };
    return h("div", { ...about, on }, head, this.inner);
  }

  /**
   * Shows a plan. Keeps the selected value and the folds if the new plan has them, too.
   * @param {PlanView} data
   * @param {boolean} failed whether the current program cannot be planned, which the page explains
   * @param {string} never why a page without a kernel has no plan
   */
  show(data, failed = false, never = "") {
    this.message.hidden = failed || !(data.error || data.waiting);
    setText(this.message, never || NO_PLAN);
    if (data === this.data) return;
    this.data = data;
    const usable = !data.waiting && data.count > 0;
    // If planning fails, keep the last valid plan visible (pale).
    this.old = !usable && this.plan !== null && Boolean(data.error);
    toggle(this.main, "sv-vold", this.old);
    this.main.hidden = !usable && !this.old;
    if (this.old) return;
    if (usable) return this.showPlan(data);
    this.plan = null;
  }

  /** @param {Plan} data */
  showPlan(data) {
    const name = this.plan && this.picked >= 0 ? this.plan.values[this.picked].name : null;
    const active = this.rows[this.active]?.key;
    const plan = (this.plan = new PlanData(data));
    this.tree = callTree(plan);
    this.explanations = new Map(Object.entries(data.explanations));
    this.picked = name === null ? -1 : (plan.numbers.get(name) ?? -1);
    this.list(active);
    this.showPicked();
  }

  /** Updates the rows and details for the selected value. */
  showPicked() {
    const { plan, picked } = this;
    // Request each explanation from the kernel only once.
    if (plan && picked >= 0 && !this.old) {
      const name = plan.values[picked].name;
      if (!this.explanations.has(name)) this.page.ask("why", name);
    }
    this.paint();
    this.showSide();
  }

  /** @param {Explanation} explanation */
  showExplanation(explanation) {
    const { value } = explanation;
    if (this.explanations.get(value) === explanation) return;
    this.explanations.set(value, explanation);
    if (this.plan?.values[this.picked]?.name === value) this.showSide();
  }

  /**
   * Rebuilds the rows after folding, a search, or a new plan.
   * @param {string} [key] the key of the row that stays active
   */
  list(key = this.rows[this.active]?.key) {
    const { plan, words } = this;
    if (!plan || !this.tree) return;
    const isOpen = (/** @type {PlanCall} */ call, /** @type {number} */ depth) =>
      words.length > 0 || (this.folds.get(call.key) ?? opensAtFirst(plan, call, depth));
    const isMatch = (/** @type {number} */ at) => plan.matches(at, words);
    const { rows, rowOf } = new PlanRows(plan, this.tree, isOpen, isMatch);
    Object.assign(this, { rows, rowOf });
    const at = rows.findIndex((row) => row.key === key);
    this.active = at < 0 ? Math.max(0, Math.min(this.active, rows.length - 1)) : at;
    this.inner.style.height = `${rows.length * VALUE_ROW}px`;
    this.grid.setAttribute("aria-rowcount", String(rows.length));
  }

  /** Lists the values that contain all words of a text, by default of the field. @param {string} text */
  search(text = this.find.value) {
    this.find.value = text;
    this.words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.list();
    this.move(this.active);
  }

  /** @param {boolean} open */
  foldAll(open) {
    if (this.tree) eachCall(this.tree, ({ key }) => key && this.folds.set(key, open));
    this.list();
    this.move(this.active);
  }

  /** Unfolds every call around a value. @param {number} at */
  reveal(at) {
    if (this.rows[this.rowOf.get(at) ?? -1]?.value === at) return;
    this.find.value = "";
    this.words = [];
    if (this.tree) {
      eachCall(this.tree, ({ key, members }) => {
        if (key && members.includes(at)) this.folds.set(key, true);
      });
    }
    this.list();
  }

  /** Selects a value; a negative index clears the selection. @param {number} at */
  pick(at) {
    this.picked = at;
    if (at >= 0) {
      this.reveal(at);
      this.active = this.rowOf.get(at) ?? this.active;
      scrollToRow(this.grid, VALUE_ROW, this.active);
    }
    this.showPicked();
    this.side.scrollTop = 0;
  }

  /** @param {string} name */
  pickByName(name) {
    const at = this.plan?.numbers.get(name);
    if (at !== undefined) this.pick(at);
    this.grid.focus();
  }

  /** @param {MouseEvent} e */
  click(e) {
    const node = e.target instanceof Element ? e.target.closest(".sv-vrow") : null;
    if (!node) return;
    this.active = Number(node.getAttribute("data-row"));
    this.enter(this.rows[this.active]);
  }

  /** Selects a value, or folds or unfolds a call. @param {PlanRow | undefined} row */
  enter(row) {
    if (!row) return;
    if (row.value >= 0) return this.pick(row.value);
    this.folds.set(row.key, !row.open);
    this.list();
    this.paint();
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    // Controls in the header handle their keys themselves.
    if (e.target !== this.grid || e.ctrlKey || e.metaKey || e.altKey) return;
    const row = this.rows[this.active];
    const page = Math.floor(this.grid.clientHeight / VALUE_ROW) - 2;
    const to = rowAfter(e, this.active, this.rows.length, page);
    if (to !== undefined) this.move(to);
    else if (e.key === "Enter" || e.key === " ") this.enter(row);
    else if (e.key === "Escape") this.pick(-1);
    else if (e.key === "ArrowRight" && row) {
      if (row.value < 0 && !row.open) this.enter(row);
      else this.move(this.active + 1);
    } else if (e.key === "ArrowLeft" && row) {
      if (row.value < 0 && row.open) this.enter(row);
      else this.move(this.parent(this.active));
    } else return;
    handled(e);
  }

  /** @param {number} to */
  move(to) {
    this.active = Math.max(0, Math.min(this.rows.length - 1, to));
    scrollToRow(this.grid, VALUE_ROW, this.active);
    this.paint();
  }

  /** Returns the index of the enclosing call's row. @param {number} at */
  parent(at) {
    const { depth } = this.rows[at];
    for (let i = at; i >= 0; i--) if (this.rows[i].depth < depth) return i;
    return at;
  }

  /** Creates the visible rows. */
  paint() {
    const { plan, grid, rows } = this;
    if (!plan || !grid.isConnected) return;
    const [first, last] = rowsInSight(grid, VALUE_ROW, rows.length);
    // Maps each value that passed axes on to the selected value to those axes.
    const sources = this.picked < 0 ? new Map() : plan.sources(this.picked);
    const visible = rows.slice(first, last);
    fill(this.inner, ...visible.map((row, i) => this.rowNode(plan, row, first + i, sources)));
    grid.setAttribute("aria-activedescendant", rows.length ? `${this.id}-${this.active}` : "");
  }

  /** @param {PlanData} plan @param {PlanRow} row @param {number} i @param {Map<number, number[]>} sources */
  rowNode(plan, row, i, sources) {
    const call = row.value < 0;
    const picked = !call && row.value === this.picked;
    const state = call
      ? { "aria-expanded": String(row.open) }
      : { "aria-selected": String(picked) };
    const members = call && row.open ? [] : row.members;
    const axes = new Set(members.flatMap((at) => sources.get(at) ?? []));
    const dots = [...axes].map((axis) => axisDot(axis));
    const marks = { "sv-vcall": call, "sv-vactive": i === this.active };
    const style = Object.entries(marks).flatMap(([name, on]) => (on ? name : []));
    return h(
      "div",
      {
        class: ["sv-vrow", ...style].join(" "),
        role: "row",
        id: `${this.id}-${i}`,
        "data-row": i,
        style: { top: `${i * VALUE_ROW}px` },
        "aria-level": row.depth + 1,
        "aria-posinset": row.place,
        "aria-setsize": row.size,
        "aria-rowindex": i + 1,
        ...state,
      },
      dots.length ? h("span", { class: "sv-vway" }, ...dots) : null,
      ...(call ? callCells(plan, row) : valueCells(plan, row)),
    );
  }

  showSide() {
    const { plan, picked } = this;
    if (!plan) return;
    if (picked < 0) return fill(this.side, mutedNote(HOW_PICK), ...planNotes(plan));
    const explanation = this.explanations.get(plan.values[picked].name);
    fill(this.side, ...valueDetails(plan, picked, explanation, (at) => this.pick(at)));
  }
}

/**
 * Whether a call starts unfolded.
 * @param {PlanData} plan
 * @param {PlanCall} call
 * @param {number} depth
 */
function opensAtFirst({ values: { length: count } }, { label, members }, depth) {
  if (label === "arguments") return members.length <= MOST_ARGUMENTS;
  if (count <= MOST_OPEN) return true;
  return depth === 0 && members.length <= MOST_OPEN && count <= 4 * MOST_OPEN;
}

/** @param {PlanData} plan */
function planNotes(plan) {
  const { notes, moreNotes } = plan.data;
  const loose = plan.loose.map(({ words }) => words);
  const omitted = loose.length - LISTED_ESTIMATES;
  const listed =
    loose.slice(0, LISTED_ESTIMATES).join(", ") + (omitted > 0 ? ` and ${omitted} more` : "");
  const texts = [
    [plan.data.words, plan.data.seconds].filter(Boolean).join(" · "),
    ...(loose.length ? [`Estimated collectives that belong to no listed value: ${listed}.`] : []),
    ...notes,
    ...(moreNotes ? [`and ${moreNotes} more notes`] : []),
  ];
  return texts.map((text) => h("p", { text }));
}
