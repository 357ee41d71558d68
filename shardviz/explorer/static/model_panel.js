// @ts-check
// The Model view: a bar for memory, a tree of leaves, and the effects of constraints.
import { Choice, searchField } from "./controls.js";
import { button, fill, h, headCut, rowAfter, rowsInSight } from "./dom.js";
import { handled, onResize, scrollToRow, setText, toggle } from "./dom.js";
import { bytesText, entries, rowBytes, sortedRows, sumUp, tree, treeRows } from "./model_rows.js";
import { shardingBars } from "./sharding_bars.js";

/** @import { Entry, Order, Row } from "./model_rows.js" */

/**
 * The leaves of a model, from `model_view.py`.
 * @typedef {object} Leaves
 * @property {string[]} paths
 * @property {number[]} kinds For each leaf, the index of its kind.
 * @property {[name: string, leaves: number[]][]} folds Indices of leaves that differ only in their
 *   layer number.
 * @property {number[]} partners For each leaf that is an optimizer moment, the index of its
 *   parameter; otherwise -1. Empty if there are no moments.
 * @property {string[]} roles For each leaf, its group, such as `parameters`, or "". Empty if no
 *   group is known.
 * @property {string} words
 */

/**
 * The shardings of all kinds of leaves and totals of the model, from `model_view.py`.
 * @typedef {object} ModelData
 * @property {LeafKind[]} kinds
 * @property {[name: string, bytes: string][]} parts The largest groups of leaves with their bytes.
 * @property {string} words
 * @property {string} copies
 * @property {number} needed Share of the bar for bytes without copies.
 * @property {number} copied Share of the bar for copies.
 * @property {boolean} over
 * @property {number} capacity The memory of a device as a share of the bar, or 0 if unknown.
 * @property {ConstraintCall[]} constraints
 */

/**
 * @typedef {object} LeafKind
 * @property {string} short
 * @property {string[]} [names]
 * @property {string} spec
 * @property {[axis: number, size: number][][]} dims For each dimension: its axes as [index in the
 *   mesh, size].
 * @property {number} bytes
 * @property {string} [text]
 * @property {number} copies
 * @property {true} [lost] True if a rule would split the leaf further.
 * @property {string} [problem]
 * @property {string} [note]
 */

/**
 * A call in the program that constrains an activation's sharding, and its effect.
 * @typedef {Record<"where" | "effect" | "spec" | "text", string> & {warns: boolean}} ConstraintCall
 */

const LEAF_ROW = 26; // pixels, as in the style sheet
const MOST_AT_FIRST = 60; // rows; larger trees open with only the first level expanded
const LEAF_ORDERS = [
  { value: "tree", label: "as a tree" },
  { value: "bytes", label: "bytes per device" },
  { value: "copies", label: "copies" },
  { value: "name", label: "name" },
];
const CALLS = "constraints";

/** @param {number} bytes on each device */
const copiesWords = (bytes) => `${bytesText(bytes)} of copies`;

/** Two parts of a bar: needed bytes and copies. @param {number} needed @param {number} copied @param {boolean} [over] @param {boolean} [lost] */
function shareParts(needed, copied, over, lost) {
  const part = (/** @type {string} */ style, /** @type {number} */ share) =>
    h("span", { class: `sv-fill ${style}`, style: { width: `${share * 100}%` } });
  return [part(over ? "sv-over" : "", needed), part(`sv-copied${lost ? " sv-lost" : ""}`, copied)];
}

export class ModelPanel {
  /** @param {import("./explorer.js").Requests} page */
  constructor(page) {
    this.page = page;
    /** @type {Leaves | null} */ this.leaves = null;
    /** @type {ModelData | null} */ this.data = null;
    /** @type {Entry[]} */ this.entries = [];
    /** @type {Row[]} */ this.rows = [];
    /** @type {Set<string>} */ this.closed = new Set();
    /** @type {Order} */ this.order = "tree";
    this.folded = true;
    this.picked = "";
    /** The leaf to select when the leaves arrive, or -1. */ this.leafToPick = -1;
    this.from = -1;
    this.to = -1;
    this.largestBytes = 1;
    this.title = h("b", { class: "sv-modelwords" });
    this.find = searchField("Find leaves", "Find", () => this.arrange());
    this.sort = new Choice("Sort leaves", (v) => {
      this.order = /** @type {Order} */ (v);
      this.arrange();
    });
    this.sort.sync(LEAF_ORDERS, this.order);
    this.sort.select.dataset.keep = "true";
    this.fold = button("Fold layers", () => this.foldLayers(), {
      class: "sv-link",
      "aria-pressed": "true",
    });
    const tools = h("span", { class: "sv-modeltools" }, this.fold, this.find, this.sort.node);
    this.bar = h("div", { class: "sv-membar sv-modelbar", role: "img", "aria-label": "Memory" });
    this.legend = h("div", { class: "sv-modellegend" });
    const memory = h("div", { class: "sv-modelmemory" }, this.bar, this.legend);
    const titles = ["array", "shape", "sharding", "spec", "per device", ""];
    const cells = titles.map((text) => h("span", { text, role: "columnheader" }));
    const head = h("div", { class: "sv-modelhead sv-modelrow", role: "row" }, ...cells);
    this.inner = h("div", { class: "sv-modelinner", role: "rowgroup" });
    const keydown = (/** @type {KeyboardEvent} */ e) => this.key(e);
    const on = { scroll: () => this.paint(), keydown };
    const about = {
      class: "sv-modellist",
      role: "treegrid",
      "aria-label": "Leaves",
      tabindex: "0",
    };
    this.list = h("div", { ...about, on }, head, this.inner);
    this.words = h("span");
    const inside = { class: "sv-button sv-small", "data-edit": "true" };
    this.toLayout = button("Open in Layout", () => this.openPicked("Layout"), inside);
    this.toRules = button("Fix…", () => this.openPicked("Rules"), inside);
    const foot = { class: "sv-modelfoot", role: "status" };
    this.foot = h("div", foot, this.words, this.toLayout, this.toRules);
    const top = h("div", { class: "sv-headrow" }, this.title, tools);
    this.node = h("div", { class: "sv-model" }, top, memory, this.list, this.foot);
    onResize(this.list, () => this.paint(true));
  }

  foldLayers() {
    this.folded = !this.folded;
    this.fold.setAttribute("aria-pressed", String(this.folded));
    this.leavesChanged();
    this.arrange();
  }

  /** Returns the kind of an entry's first leaf. @param {Entry} entry */
  kindOf({ leaf }) {
    const kind = this.data?.kinds[this.leaves?.kinds[leaf] ?? 0];
    return kind ?? { short: "", spec: "", dims: [], bytes: 0, copies: 0 };
  }

  /**
   * @param {Leaves | Record<string, never>} leaves
   * @param {ModelData | Record<string, never>} data
   */
  show(leaves, data) {
    if (!("paths" in leaves) || !("kinds" in data)) return;
    const isNewModel = this.leaves !== leaves;
    const changed = isNewModel || this.data !== data;
    this.leaves = /** @type {Leaves} */ (leaves);
    this.data = /** @type {ModelData} */ (data);
    if (!changed) return this.paint();
    if (isNewModel) this.leavesChanged();
    this.showMemory(this.data);
    setText(this.title, this.leaves.words);
    this.arrange();
    this.pickLeaf(this.leafToPick);
  }

  leavesChanged() {
    if (!this.leaves) return;
    this.entries = entries(this.leaves, this.folded);
    this.built = tree(this.entries, this.leaves.roles);
    this.fold.hidden = !this.leaves.folds.length;
    this.closed.clear();
    if (this.entries.length <= MOST_AT_FIRST) return;
    for (const chain of this.built.chains) {
      for (const { key, children } of chain.slice(1)) if (children.size) this.closed.add(key);
    }
  }

  /** Rebuilds the rows in the chosen order; during a search, lists only matches. */
  arrange() {
    const sought = this.find.value.trim().toLowerCase();
    const kind = (/** @type {Entry} */ entry) => this.kindOf(entry);
    const isMatch = (/** @type {Entry} */ entry) => this.matches(entry, sought);
    const shownEntries = sought ? this.entries.filter(isMatch) : this.entries;
    if (this.order === "tree") {
      const built =
        sought || !this.built ? tree(shownEntries, this.leaves?.roles ?? []) : this.built;
      sumUp(built, kind);
      this.rows = treeRows(built.root, sought ? new Set() : this.closed);
    } else this.rows = sortedRows(shownEntries, kind, this.order);
    const calls = this.data?.constraints ?? [];
    if (calls.length && !sought && this.order === "tree") this.addConstraints(calls);
    const leaves = this.rows.filter((row) => row.entry);
    this.largestBytes = leaves.reduce((most, row) => Math.max(most, row.bytes), 1);
    // Initially select the array with most copies, because a remedy may improve it.
    const most = leaves.reduce((most, row) => (row.copies > most.copies ? row : most), leaves[0]);
    if (!this.picked && most?.copies) this.picked = most.key;
    this.paint(true);
  }

  /** @param {Entry} entry @param {string} sought */
  matches(entry, sought) {
    const { spec, names = [], short } = this.kindOf(entry);
    return [entry.name, spec, short, ...names].some((text) => text.toLowerCase().includes(sought));
  }

  /** @param {ConstraintCall[]} calls */
  addConstraints(calls) {
    const none = { depth: 0, entry: null, bytes: 0, copies: 0, left: 0 };
    const open = !this.closed.has(CALLS);
    const label = "activations";
    this.rows.push({ ...none, key: CALLS, label, open, count: calls.length });
    if (!open) return;
    calls.forEach((call, i) => {
      const about = { key: `${CALLS}:${i}`, label: call.where, call };
      this.rows.push({ ...none, ...about, depth: 1, open: false, count: 1 });
    });
  }

  /** @param {ModelData} data */
  showMemory({ parts, words, copies, needed, copied, over, capacity }) {
    const limit = h("span", { class: "sv-memcap", style: { left: `${capacity * 100}%` } });
    const pieces = shareParts(needed, copied, over);
    fill(this.bar, ...pieces, ...(capacity > 0 && capacity < 1 ? [limit] : []));
    toggle(this.bar, "sv-over", over);
    this.bar.setAttribute("aria-label", [words, copies].filter(Boolean).join(", "));
    const total = h("b", { class: over ? "sv-bad" : "", text: words });
    const named = parts.length > 1 ? parts.map((part) => part.join(" ")) : [];
    const rest = [copies, ...named].filter(Boolean);
    fill(this.legend, total, ...rest.map((text) => h("span", { class: "sv-muted", text })));
  }

  /** Creates the visible rows. @param {boolean} [anew] true to rebuild existing rows */
  paint(anew = false) {
    const { list, inner } = this;
    if (!list.clientHeight) return;
    inner.style.height = `${this.rows.length * LEAF_ROW}px`;
    const [first, last] = rowsInSight(list, LEAF_ROW, this.rows.length);
    if (!anew && this.from === first && this.to === last) return;
    this.from = first;
    this.to = last;
    fill(inner, ...this.rows.slice(first, last).map((row, i) => this.row(row, first + i)));
    this.showFoot();
  }

  /** @param {Row} row @param {number} index */
  row(row, index) {
    const { entry, call } = row;
    if (call) return this.constraintRow(row, call, index);
    const kind = entry && this.kindOf(entry);
    const sign = entry || !row.count ? "" : row.open ? "▾" : "▸";
    const many = (entry?.count ?? 0) > 1 ? ` × ${entry?.count}` : "";
    const twist = h("span", { class: "sv-twist", text: sign });
    const name = headCut(h("span"), row.label + many);
    const label = h("span", { class: "sv-leafname", title: entry?.name ?? row.label }, twist, name);
    label.style.paddingLeft = `${row.depth * 12}px`;
    if (!kind) {
      const noun = row.key === CALLS ? "constraint" : "array";
      const many = `${row.count.toLocaleString("en")} ${noun}${row.count === 1 ? "" : "s"}`;
      const count = h("span", { class: "sv-muted", text: many });
      const size = row.bytes || row.left ? rowBytes(row) : "";
      const title = row.left ? `${row.left.toLocaleString("en")} not counted` : "";
      const text = h("span", { class: "sv-modelbytes", text: size, title });
      return this.line(row, index, label, count, text);
    }
    // Red marks failures, amber marks losses. A name without a rule can be intentional.
    const differs = entry ? this.difference(entry.leaf) : "";
    const spec = kind.problem ? "cannot be laid out" : kind.spec || "not known";
    const style = kind.problem ? " sv-bad" : differs ? " sv-warn" : "";
    const specNode = h("span", { class: `sv-mono${style}`, text: spec });
    specNode.title = [spec, kind.problem, kind.note, differs, kind.names?.join(" · ")]
      .filter(Boolean)
      .join("\n");
    return this.line(
      row,
      index,
      label,
      h("span", { class: "sv-mono sv-muted", text: kind.short, title: kind.short }),
      this.bars(kind),
      specNode,
      h("span", { class: "sv-modelbytes", text: rowBytes(row) }),
      this.share(row, kind),
    );
  }

  /** A bar for a leaf's bytes per device, with its copies. @param {Row} row @param {LeafKind} kind */
  share({ bytes, copies }, { lost }) {
    const title = copies ? copiesWords(copies) : "";
    const [needed, copied] = [bytes - copies, copies].map((size) => size / this.largestBytes);
    const parts = shareParts(needed, copied, false, lost);
    return h("span", { class: "sv-share", title }, ...parts);
  }

  /** @param {LeafKind} kind */
  bars(kind) {
    const dims = kind.dims.map((splits) =>
      splits.map(([axis, parts]) => ({ axis, parts, text: "" })),
    );
    const bars = shardingBars(dims, 80, 10);
    return h("span", { class: "sv-modelbars", "aria-hidden": "true" }, dims.length ? bars : null);
  }

  /** Describes how a moment's sharding differs from its parameter's; "" if it doesn't. @param {number} leaf */
  difference(leaf) {
    const partner = this.leaves?.partners[leaf] ?? -1;
    if (partner < 0) return "";
    const kind = this.kindOf({ leaf, name: "", count: 1 });
    const partnerKind = this.kindOf({ leaf: partner, name: "", count: 1 });
    return kind.spec === partnerKind.spec ? "" : `Its parameter is split as ${partnerKind.spec}.`;
  }

  /** @param {Row} row @param {ConstraintCall} call @param {number} index */
  constraintRow(row, call, index) {
    const label = h("span", { text: call.where, title: call.text });
    label.style.paddingLeft = "32px";
    const style = call.warns ? "sv-warn" : "sv-muted";
    const effect = h("span", { class: style, text: call.effect, title: call.text });
    const spec = h("span", { class: "sv-mono", text: call.spec });
    return this.line(row, index, label, effect, h("span"), spec, h("span"), h("span"));
  }

  /** @param {Row} row @param {number} index @param {...HTMLElement} cells */
  line(row, index, ...cells) {
    const on = row.key === this.picked;
    const branch = !row.entry && !row.call;
    for (const cell of cells) cell.setAttribute("role", "gridcell");
    return h(
      "div",
      {
        class: "sv-modelrow",
        role: "row",
        style: { top: `${index * LEAF_ROW}px` },
        "aria-level": String(row.depth + 1),
        "aria-selected": String(on),
        "aria-expanded": branch ? String(row.open) : null,
        on: { click: () => this.pick(row), dblclick: () => this.openPicked("Layout") },
      },
      ...cells,
    );
  }

  /** @param {Row} row */
  pick(row) {
    if (!row.entry && !row.call) this.turn(row, row.open);
    this.picked = row.key;
    this.paint(true);
  }

  /** Selects a leaf, as soon as the leaves have arrived. @param {number} leaf */
  pickLeaf(leaf) {
    this.leafToPick = leaf;
    if (!this.leaves || !this.data || leaf < 0) return;
    this.leafToPick = -1;
    // Folded layers share the row of their first leaf, so unfold them.
    if (this.folded && !this.entries.some((entry) => entry.leaf === leaf)) this.foldLayers();
    this.find.value = "";
    this.closed.clear();
    this.arrange();
    const at = this.rows.findIndex(({ entry }) => entry?.leaf === leaf);
    if (at < 0) return;
    this.picked = this.rows[at].key;
    scrollToRow(this.list, LEAF_ROW, at);
    this.paint(true);
  }

  /** Expands or collapses a branch. @param {Row} row @param {boolean} close */
  turn(row, close) {
    if (close) this.closed.add(row.key);
    else this.closed.delete(row.key);
    this.arrange();
  }

  /** @param {"Layout" | "Rules"} view */
  openPicked(view) {
    const row = this.rows.find(({ key }) => key === this.picked);
    if (row?.entry) this.page.goTo({ view, leaf: row.entry.leaf });
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const at = this.rows.findIndex(({ key }) => key === this.picked);
    const row = this.rows[at];
    const page = Math.floor(this.list.clientHeight / LEAF_ROW) - 2;
    const to = rowAfter(e, at, this.rows.length, page);
    if (to !== undefined) {
      this.picked = this.rows[to]?.key ?? "";
      scrollToRow(this.list, LEAF_ROW, to);
    } else if (row && !row.entry && (e.key === "ArrowRight" || e.key === "ArrowLeft")) {
      this.turn(row, e.key === "ArrowLeft");
    } else if (row?.entry && e.key === "Enter") this.openPicked("Layout");
    else return;
    handled(e);
    this.paint(true);
  }

  /** Shows a sentence about the selected row. */
  showFoot() {
    const { words } = this;
    const row = this.rows.find(({ key }) => key === this.picked);
    const kind = row?.entry ? this.kindOf(row.entry) : null;
    this.toLayout.hidden = this.toRules.hidden = !kind;
    const call = row?.call;
    if (call) return fill(words, h("b", { text: call.where }), `: ${call.text} `);
    if (!row || !kind) {
      const how = "Choose an array to see how it is split; a double click opens it in Layout.";
      return fill(words, h("span", { class: "sv-muted", text: how }));
    }
    const copies = kind.copies ? `, ${copiesWords(kind.copies)}` : "";
    const size = kind.text ? `, ${kind.text} on each device${copies}.` : ".";
    const names = kind.names ? ` (${kind.names.join(", ")})` : "";
    const differs = row.entry ? this.difference(row.entry.leaf) : "";
    const notes = [kind.problem ?? "", kind.note ?? "", differs].filter(Boolean).join(" ");
    const spec = h("code", { text: kind.spec || "not known" });
    fill(words, h("b", { text: row.entry?.name }), `${names}: `, spec, `${size} ${notes} `);
  }
}
