// @ts-check
// The arrays: a card each, and the fields of the one that is selected.
import { Field, answers } from "./controls.js";
import { OWN_KEYS, button, h, setText, toggle } from "./dom.js";
import { naturalOrder } from "./natural_order.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/** @typedef {import("./messages").ArrayField} ArrayField */
/** @typedef {ReturnType<ArrayCards["card"]>} Card */

export class ArrayCards {
  /**
   * @param {import("./explorer.js").Edit} edit
   * @param {(index: number) => void} select
   * @param {() => void} asked that all arrays are to be shown
   */
  constructor(edit, select, asked) {
    this.asked = asked;
    this.edit = edit;
    this.select = select;
    /** @returns {Field} */
    const field = (
      /** @type {string} */ label,
      /** @type {ArrayField} */ key,
      /** @type {{caption?: string, placeholder?: string}} */ options = {},
    ) => new Field(label, (t) => edit(key, t, this.selected), options);
    /** @type {Record<ArrayField, Field>} */
    this.fields = {
      name: field("Array name", "name", { caption: "name" }),
      dtype: field("Element type", "dtype", { caption: "type" }),
      shape: field("Array shape", "shape", { caption: "shape", placeholder: "512, 2048" }),
      logical: field("Logical axes", "logical", { caption: "axes", placeholder: "embed mlp" }),
      spec: field("PartitionSpec", "spec", { caption: "spec", placeholder: "from the rules" }),
    };
    this.form = h(
      "div",
      { class: "sv-form" },
      h("div", { class: "sv-pair" }, this.fields.name.node, this.fields.dtype.node),
      this.fields.shape.node,
      this.fields.logical.node,
      this.fields.spec.node,
    );
    this.list = h("div", { class: "sv-cards", role: "list", "aria-label": "Arrays" });
    /** What is selected once the kernel has answered: a second click is about that. */
    this.next = { selected: 0, count: 0 };
    this.add = button("+ array", () => this.addArray(), {
      class: "sv-link",
      "data-edit": "true",
      "aria-label": "Add an array",
    });
    this.remove = button("remove", () => this.removeArray(), {
      class: "sv-link",
      "data-edit": "true",
      "aria-label": "Remove the selected array",
    });
    /** Whether all arrays were asked for. */
    this.unfolded = false;
    this.others = button("More arrays", () => this.unfold(), {
      class: "sv-link sv-others",
      hidden: true,
    });
    this.none = h("p", { class: "sv-muted", text: "The program takes no arrays." });
    this.node = h(
      "div",
      { class: "sv-arrays" },
      h(
        "div",
        { class: "sv-headrow" },
        h("h3", { class: "sv-head", text: "Arrays" }),
        h("span", null, this.add, this.remove),
      ),
      this.none,
      this.list,
      this.others,
    );
    this.selected = 0;
    /** @type {Card[]} */ this.cards = [];
    /** @type {Set<string> | null} */ this.lit = null;
  }

  unfold() {
    this.unfolded = true;
    this.asked();
  }

  addArray() {
    this.unfolded = true;
    this.edit("add", null);
    this.next = { selected: this.next.count, count: this.next.count + 1 };
  }

  removeArray() {
    const { selected, count } = this.next;
    this.edit("remove", selected);
    if (count > 1) this.next = { selected: Math.min(selected, count - 2), count: count - 1 };
  }

  /**
   * The arrays that a value's axes came from stand out; null ends that.
   * @param {string[] | null} names
   */
  light(names) {
    this.lit = names && new Set(names);
    for (const card of this.cards) {
      toggle(card.node, "sv-lit", Boolean(this.lit?.has(card.name.textContent ?? "")));
    }
  }

  /** @param {import("./view_data.js").View} view */
  show(view) {
    const moved = this.selected !== view.selected;
    const { selected } = view;
    if (answers.settled) this.next = { selected, count: view.arrays.length };
    this.selected = selected;
    while (this.cards.length > view.arrays.length) this.cards.pop()?.node.remove();
    while (this.cards.length < view.arrays.length) this.cards.push(this.card(this.cards.length));
    view.arrays.forEach((a, i) => this.fillCard(this.cards[i], a, i === view.selected));
    this.arrange(view.arrays.map(({ name }) => name));
    this.showOthers(view);
    const current = this.cards[view.selected];
    this.none.hidden = Boolean(current);
    if (!this.remove.dataset.locked) this.remove.disabled = !current;
    if (!current) return this.form.remove();
    if (this.form.parentNode !== current.node) current.node.append(this.form);
    this.showForm(view.arrays[view.selected], moved);
    if (moved) current.node.scrollIntoView({ block: "nearest" });
  }

  /** Puts the cards in order; moving one takes the focus from its fields. @param {string[]} names */
  arrange(names) {
    const nodes = naturalOrder(names).map((i) => this.cards[i].node);
    const typing = this.form.contains(document.activeElement);
    if (typing || nodes.every((node, place) => node === this.list.children[place])) return;
    this.list.append(...nodes);
  }

  /** What else there is, in a line until somebody asks for it. @param {import("./view_data.js").View} view */
  showOthers({ brief, arrays, selected, program }) {
    const folded = brief && !this.unfolded && arrays.length > 1;
    toggle(this.node, "sv-brief", folded);
    this.others.hidden = !folded;
    const names = arrays.filter((_, i) => i !== selected).map(({ name }) => name);
    const of = program.value ? ` of ${program.value}` : "";
    setText(this.others, `▸ ${names.length} more arrays${of}: ${names.join(", ")}`);
  }

  /** @param {ArrayView} array @param {boolean} moved whether another array was selected before */
  showForm(array, moved) {
    for (const key of /** @type {ArrayField[]} */ (Object.keys(this.fields))) {
      const field = this.fields[key];
      if (moved) field.input.blur();
      field.sync(array.fields[key].text, array.fields[key].error);
    }
    this.fields.spec.input.placeholder =
      array.noRules || array.typedSpec ? "None: no dimension is split" : array.spec;
  }

  /** @param {number} index */
  card(index) {
    const parts = {
      name: h("b"),
      type: h("span", { class: "sv-type sv-mono" }),
      logical: h("span", { class: "sv-mono" }),
      spec: h("span", { class: "sv-mono sv-right" }),
      summary: h("div", { class: "sv-summary" }),
      warn: h("div", { class: "sv-warn" }),
      problem: h("div", { class: "sv-error" }),
    };
    const head = h(
      "button",
      {
        type: "button",
        class: "sv-cardhead",
        ...OWN_KEYS,
        on: { click: () => this.select(index) },
      },
      h("div", { class: "sv-line" }, parts.name, parts.type),
      h("div", { class: "sv-line" }, parts.logical, parts.spec),
      parts.summary,
    );
    const node = h("div", { class: "sv-card", role: "listitem" }, head, parts.warn, parts.problem);
    this.list.append(node);
    return { node, head, ...parts };
  }

  /**
   * @param {Card} card
   * @param {ArrayView} a
   * @param {boolean} selected
   */
  fillCard(card, a, selected) {
    toggle(card.node, "sv-selected", selected);
    card.head.setAttribute("aria-pressed", String(selected));
    setText(card.name, a.name);
    toggle(card.node, "sv-lit", Boolean(this.lit?.has(a.name)));
    setText(card.type, a.short);
    setText(card.logical, a.logical || (a.rank ? "no logical axes" : "scalar"));
    setText(card.spec, a.spec);
    toggle(card.spec, "sv-typed", Boolean(a.typedSpec));
    setText(card.summary, a.problem ? "" : [a.bytes, a.summary].filter(Boolean).join(" · "));
    setText(card.warn, a.warnings.join(" "));
    setText(card.problem, a.problem);
  }
}
