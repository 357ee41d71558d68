// @ts-check
// A field that finds an array by typing: a list opens under it, of what has all the words.
import { keepKey } from "./controls.js";
import { OWN_KEYS, fill, h } from "./dom.js";

const MOST_SHOWN = 60;

/** What can be chosen: its name, what stands beside it, and what happens then. @typedef {{name: string, note: string, pick: () => void}} Choosable */

export class ArrayPicker {
  /** @param {string} label */
  constructor(label) {
    /** @type {() => Choosable[]} */ this.all = () => [];
    this.name = "";
    this.at = 0;
    /** @type {Choosable[]} */ this.found = [];
    this.list = h("div", {
      class: "sv-picklist",
      role: "listbox",
      "aria-label": label,
      hidden: true,
    });
    this.input = h("input", {
      class: "sv-input sv-picker",
      role: "combobox",
      "aria-label": label,
      "aria-expanded": "false",
      "aria-autocomplete": "list",
      spellcheck: "false",
      autocomplete: "off",
      "data-keep": "true",
      ...OWN_KEYS,
      on: {
        focus: () => this.input.select(),
        click: () => this.open(""),
        input: () => this.open(this.input.value),
        blur: () => this.close(),
        keydown: (e) => this.pressed(e),
      },
    });
    this.node = h("span", { class: "sv-pick" }, this.input, this.list);
  }

  /** @param {string} name @param {() => Choosable[]} all what there is, asked for when it opens */
  show(name, all) {
    this.name = name;
    this.all = all;
    if (this.list.hidden) this.input.value = name;
  }

  /** @param {string} text */
  open(text) {
    const words = text.toLowerCase().split(/[\s/]+/);
    const has = (/** @type {Choosable} */ { name, note }) =>
      words.every((word) => `${name} ${note}`.toLowerCase().includes(word));
    const found = this.all().filter(has);
    this.found = found.slice(0, MOST_SHOWN);
    this.at = Math.max(
      0,
      this.found.findIndex(({ name }) => name === this.name),
    );
    const rows = this.found.map((one, i) => {
      // A press, since a click comes after the field has lost the focus.
      const on = { pointerdown: (/** @type {Event} */ e) => this.pick(i, e) };
      const note = h("span", { class: "sv-mono sv-muted", text: one.note });
      return h(
        "div",
        { class: "sv-pickrow", role: "option", on },
        h("span", { text: one.name }),
        note,
      );
    });
    const left = found.length - rows.length;
    const more = left > 0 ? `${left.toLocaleString("en")} more: type a part of the name` : "";
    const words_ = found.length ? more : "No array is called so.";
    fill(this.list, ...rows, ...(words_ ? [h("p", { class: "sv-muted", text: words_ })] : []));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.mark();
  }

  mark() {
    [...this.list.querySelectorAll("[role=option]")].forEach((row, i) => {
      row.setAttribute("aria-selected", String(i === this.at));
      if (i === this.at) row.scrollIntoView({ block: "nearest" });
    });
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.value = this.name;
  }

  /** @param {number} i @param {Event} e */
  pick(i, e) {
    e.preventDefault();
    const one = this.found[i];
    if (!one) return;
    this.name = one.name;
    this.close();
    one.pick();
  }

  /** @param {KeyboardEvent} e */
  pressed(e) {
    keepKey(e);
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (e.key === "Escape") return this.close();
    if (e.key === "Enter" && !this.list.hidden) return this.pick(this.at, e);
    if (!step) return;
    e.preventDefault();
    if (this.list.hidden) return this.open("");
    this.at = Math.max(0, Math.min(this.found.length - 1, this.at + step));
    this.mark();
  }
}
