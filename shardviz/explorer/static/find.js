// @ts-check
// Finds arrays, rules, mesh axes, devices, collectives, lines, views and commands by name.
import { button, fill, h, handled, headCut, setText } from "./dom.js";
import { named } from "./highlight.js";
import { Popover } from "./popover.js";

/**
 * An item that can be found: kind, name, searchable text, and action on Enter.
 * @typedef {{kind: string, name: string, text: string, go?: () => void}} Item
 * @typedef {import("./view_data.js").View} View
 */

const MOST_FOUND = 50;
const MAC = /Mac|iP(hone|ad)/.test(navigator.platform);

/** @param {string} kind @param {string} name @param {() => void} go @returns {Item} */
export const item = (kind, name, go) => {
  const plain = plainPath(name);
  const text = `${name} ${kind}${plain === name ? "" : ` ${plain}`}`;
  return { kind, name, text: text.toLowerCase(), go };
};

/** Writes `params['w1']`, `params/w1` and `params.w1` in the same way. @param {string} text */
function plainPath(text) {
  return text
    .split(/[\][/."']+/)
    .filter(Boolean)
    .join(".");
}

/**
 * Returns all items that can be found by name.
 * @param {import("./view_data.js").View} view
 * @param {string[]} leaves the paths of a model's leaves
 * @param {import("./program_panel.js").ProgramPanel} program
 * @param {(place: Partial<import("./messages").Place>) => void} to
 * @param {Record<string, () => void>} commands
 */
export function everything({ arrays, rules, mesh }, leaves, program, to, commands) {
  const items = Object.entries(commands).map(([name, act]) => item("command", name, act));
  const views = /** @type {const} */ (["Layout", "Rules", "Model", "Program"]);
  for (const view of views) items.push(item("view", view, () => to({ view })));
  for (const { textContent: tab } of program.tabs.tabs) {
    if (tab) items.push(item("tab of Program", tab, () => to({ view: "Program", tab })));
  }
  for (const { name: axis, size } of mesh.axes) {
    items.push(item("mesh axis", `${axis}=${size}`, () => to({ axis })));
  }
  arrays.forEach(({ name, names }, array) => {
    items.push(item("array", name, () => to({ view: "Layout", array })));
    names.forEach((axis, dim) => {
      if (axis)
        items.push(item("dimension", `${name}.${axis}`, () => to({ view: "Rules", array, dim })));
    });
  });
  const lines = rules.text.split("\n").filter((line) => line.trim() && !/^\s*#/.test(line));
  lines.forEach((line, i) => {
    items.push(item("rule", `rule ${i + 1}  ${line.trim()}`, () => to({ view: "Rules" })));
  });
  const names = new Set(arrays.map(({ name }) => name));
  leaves.forEach((path, leaf) => {
    if (!names.has(path)) items.push(item("leaf", path, () => to({ view: "Model", leaf })));
  });
  const { collectives, lines: sources } = program.found();
  for (const [name, collective] of collectives) {
    items.push(item("collective", name, () => to({ view: "Program", collective })));
  }
  for (const line of sources) items.push(item("line", line, () => to({ view: "Program", line })));
  return items;
}

export class Find {
  /**
   * @param {{gather: () => Item[], read: (query: string) => Item | null, ask: () => void}} calls
   *   `gather` returns all items; `read` parses a device or an array element; `ask` requests the
   * model's leaves from the kernel
   * @param {{name?: string, field?: string, hint?: string}} [words] texts of the button and the
   *   field
   */
  constructor(calls, words = {}) {
    const { name = "Find anything", field = "Find" } = words;
    const { hint = "an array, all-reduce, block.py:59, device 3, w[37, 1200]" } = words;
    this.calls = calls;
    /** @type {unknown} */ this.leaves = null;
    /** @type {Item[]} */ this.items = [];
    /** @type {Item[]} */ this.shownItems = [];
    this.at = 0;
    const id = `sv-find-${Math.random().toString(36).slice(2, 9)}`;
    const keys = MAC ? "⌘K" : "Ctrl K";
    this.opener = button("Find", () => this.open(), {
      class: "sv-button sv-findbutton sv-cut",
      "aria-label": name,
      "aria-haspopup": "dialog",
      "aria-keyshortcuts": words.name ? null : "Control+K Meta+K",
    });
    this.opener.prepend(h("span", { class: "sv-keys", text: `${keys} ` }));
    this.input = h("input", {
      class: "sv-input",
      role: "combobox",
      "aria-label": field,
      "aria-expanded": "true",
      "aria-controls": id,
      "aria-autocomplete": "list",
      autocomplete: "off",
      placeholder: hint,
      "data-keep": "true",
      on: { input: () => this.filter(), keydown: (e) => this.key(e) },
    });
    this.list = h("div", { class: "sv-found", role: "listbox", id, "aria-label": "Found" });
    this.moreNote = h("div", { class: "sv-muted", role: "status" });
    this.popover = new Popover(name, "sv-findbox");
    this.popover.node.append(this.input, this.list, this.moreNote);
    this.node = h("div", { class: "sv-findplace" }, this.opener, this.popover.node);
  }

  open() {
    this.input.value = "";
    this.items = this.calls.gather();
    this.filter();
    this.popover.open(this.input);
    this.calls.ask();
  }

  /** Adds the model's leaves if they arrive while the list is open. @param {unknown} leaves */
  show(leaves) {
    if (this.leaves === leaves) return;
    this.leaves = leaves;
    if (this.popover.node.hidden) return;
    this.items = this.calls.gather();
    this.filter();
  }

  /** Lists items that contain all typed words; names that start with the typed text come first. */
  filter() {
    const query = this.input.value.trim().toLowerCase();
    // A path may be written as Python has it, params['w1'].
    const words = query.split(/\s+/).map((word) => (/^\w+\[/.test(word) ? plainPath(word) : word));
    /** @type {[rank: number, one: Item][]} */
    const matches = [];
    for (const item of this.items) {
      if (!words.every((word) => item.text.includes(word))) continue;
      const at = item.text.indexOf(words[0]);
      const begins = at === 0 || !/[a-z0-9]/.test(item.text[at - 1]);
      const exact = item.name.toLowerCase() === query;
      matches.push([exact ? 0 : at === 0 ? 1 : begins ? 2 : 3, item]);
    }
    matches.sort((a, b) => a[0] - b[0] || a[1].name.length - b[1].name.length);
    const special = this.calls.read(this.input.value.trim());
    const all = matches.map(([, one]) => one);
    this.shownItems = [...(special ? [special] : []), ...all.slice(0, MOST_FOUND)];
    const hidden = all.length - MOST_FOUND;
    setText(
      this.moreNote,
      this.shownItems.length ? (hidden > 0 ? `${hidden} more` : "") : "Nothing found",
    );
    this.at = 0;
    this.paint();
  }

  paint() {
    const options = this.shownItems.map(({ kind, name, go }, i) =>
      h(
        "div",
        {
          role: "option",
          id: `${this.list.id}-${i}`,
          class: "sv-foundrow",
          "aria-disabled": go ? null : "true",
          // Keep the focus in the input.
          on: { mousedown: (e) => e.preventDefault(), click: () => this.choose(i) },
        },
        headCut(h("span", { title: name }), name),
        h("span", { class: "sv-muted", text: kind }),
      ),
    );
    fill(this.list, ...options);
    this.mark();
  }

  mark() {
    [...this.list.children].forEach((row, i) => {
      row.setAttribute("aria-selected", String(i === this.at));
    });
    const row = this.list.children[this.at];
    if (row) this.input.setAttribute("aria-activedescendant", row.id);
    else this.input.removeAttribute("aria-activedescendant");
    row?.scrollIntoView({ block: "nearest" });
  }

  /** @param {number} i */
  choose(i) {
    const go = this.shownItems[i]?.go;
    if (!go) return;
    this.popover.close(true);
    go();
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[e.key];
    if (e.key === "Enter") this.choose(this.at);
    else if (step) {
      this.at = Math.max(0, Math.min(this.shownItems.length - 1, this.at + step));
      this.mark();
    } else if (e.key === "Escape") return;
    else return e.stopPropagation();
    handled(e);
  }

  /** Opens Find on Ctrl+K or Cmd+K, anywhere in the Explorer. @param {KeyboardEvent} e */
  shortcut(e) {
    if (e.key.toLowerCase() !== "k" || !(e.ctrlKey || e.metaKey) || e.altKey || e.shiftKey) return;
    handled(e);
    this.open();
  }
}

/**
 * Finds a device by id, or the block that has an array element, from typed text.
 * @param {string} query `device 553`, `w[37, 1200]`
 * @param {import("./highlight.js").Highlight} highlight
 * @param {(at: import("./highlight.js").Pointing, array?: number) => void} point
 * @returns {Item | null}
 */
export function readQuery(query, highlight, point) {
  const device = /^device\s+(\d{1,9})$/i.exec(query);
  if (device) {
    const at = highlight.ids.indexOf(Number(device[1]));
    if (at < 0) return message(`The mesh has no device ${device[1]}`);
    return { ...message(`device ${device[1]}`), go: () => point({ kind: "device", at }) };
  }
  const element = /^(.+?)\s*\[([\d\s,]*)\]$/.exec(query);
  if (!element) return null;
  const array = arrayNamed(highlight.arrays, element[1]);
  if (array < 0) return message(`No array is called ${element[1]}`);
  const index = element[2]
    .split(",")
    .filter((text) => text.trim())
    .map(Number);
  const arrayView = highlight.arrays[array];
  const { counts, shard, name, rank } = arrayView;
  if (!counts || !shard) return message(`${name} cannot be laid out`);
  if (index.length !== rank) return message(`${name} has ${rank} dimensions`);
  const wrong = index.findIndex((i, dim) => i >= counts[dim] * shard[dim]);
  if (wrong >= 0) {
    const size = (counts[wrong] * shard[wrong]).toLocaleString("en");
    return message(`Dimension ${wrong} of ${name} has size ${size}`);
  }
  const group = index.reduce((all, i, dim) => all * counts[dim] + Math.floor(i / shard[dim]), 0);
  const holders = highlight.holders(array, group).map((at) => highlight.ids[at]);
  const where = `${name}[${highlight.indexText(arrayView, group)}]`;
  const text = `${name}[${index.join(", ")}] is in ${where}, on ${named(holders)}`;
  return { ...message(text), go: () => point({ kind: "block", array, group }, array) };
}

/**
 * Returns the index of an array by its name or, if no other array ends like that, by the end of its
 * path, such as `w1` for `params.w1`; otherwise -1.
 * @param {import("./view_data.js").View["arrays"]} arrays
 * @param {string} text
 */
function arrayNamed(arrays, text) {
  const at = arrays.findIndex(({ name }) => name === text);
  const end = `.${plainPath(text)}`;
  const alike = arrays.filter(({ name }) => `.${plainPath(name)}`.endsWith(end));
  return at < 0 && alike.length === 1 ? arrays.indexOf(alike[0]) : at;
}

/** @param {string} name @returns {Item} */
const message = (name) => ({ kind: "", name, text: "" });
