// @ts-check
// One card per array. The selected card has the text fields, and the axes of each dimension.
import { Choice, Field, answers } from "./controls.js";
import { axisDot, axisTag, button, enable, fill, h } from "./dom.js";
import { headCut, isNew, setText, toggle } from "./dom.js";
import { naturalOrder } from "./natural_order.js";

/** @import { ArrayField } from "./messages" */
/** @import { ArrayView } from "./view_data.js" */
/** @typedef {ReturnType<ArrayCards["card"]>} Card */

/** Field -> its accessible name, caption and placeholder. */
const ARRAY_FIELDS = {
  name: ["Array name", "", "name"],
  dtype: ["Element type", "", "type"],
  shape: ["Array shape", "shape", "embed:512 mlp:2048"],
  logical: ["Logical axes", "axes", "embed mlp"],
  spec: ["PartitionSpec", "spec", ""],
};

export class ArrayCards {
  /** @param {import("./explorer.js").Requests} page */
  constructor(page) {
    this.page = page;
    const field = (/** @type {keyof typeof ARRAY_FIELDS} */ key) => {
      const [label, caption, placeholder] = ARRAY_FIELDS[key];
      const options = { caption, placeholder, long: key !== "dtype" };
      return new Field(label, (t) => page.edit(key, t, this.selected), options);
    };
    const [name, dtype] = [field("name"), field("dtype")];
    const [shape, logical, spec] = [field("shape"), field("logical"), field("spec")];
    this.fields = { name, dtype, shape, logical, spec };
    /** @type {ReturnType<ArrayCards["dimension"]>[]} */ this.rows = [];
    this.dims = h("div", { role: "list", "aria-label": "Dimensions" });
    const pair = h("div", { class: "sv-pair" }, name.node, dtype.node);
    const nodes = [pair, shape.node, logical.node, this.dims, spec.node];
    this.form = h("div", { class: "sv-form" }, ...nodes);
    this.list = h("div", { class: "sv-cards", role: "list", "aria-label": "Arrays" });
    /** Selection and array count expected after the kernel's next answer, for further clicks. */
    this.next = { selected: 0, count: 0 };
    const link = { class: "sv-link", "data-edit": "true" };
    const adds = { ...link, "aria-label": "Add an array" };
    const add = button("+ array", () => this.addArray(), adds);
    const removes = { ...link, "aria-label": "Remove the selected array" };
    this.remove = button("remove", () => this.removeArray(), removes);
    this.none = h("span", { class: "sv-muted" });
    const title = h("h3", { class: "sv-head", text: "Arrays" });
    const edits = h("span", null, add, this.remove);
    const head = h("div", { class: "sv-headrow" }, title, this.none, edits);
    this.hints = h("div", { class: "sv-hints", role: "note", "aria-label": "What else to open" });
    this.node = h("div", { class: "sv-arrays" }, head, this.list, this.hints);
    this.selected = 0;
    /** @type {Card[]} */ this.cards = [];
  }

  addArray() {
    this.page.edit("add", null);
    this.next = { selected: this.next.count, count: this.next.count + 1 };
  }

  removeArray() {
    const { selected, count } = this.next;
    this.page.edit("remove", selected);
    if (count > 1) this.next = { selected: Math.min(selected, count - 2), count: count - 1 };
  }

  /** @param {import("./view_data.js").View} view */
  show(view) {
    const moved = this.selected !== view.selected;
    const { selected } = view;
    const hints = (view.undo ? [] : view.hints).map(([name, code]) => [
      h("div", { class: "sv-muted", text: name }),
      h("div", { class: "sv-mono", text: code }),
    ]);
    fill(this.hints, ...hints.flat());
    if (answers.settled) this.next = { selected, count: view.arrays.length };
    this.selected = selected;
    while (this.cards.length > view.arrays.length) this.cards.pop()?.node.remove();
    while (this.cards.length < view.arrays.length) this.cards.push(this.card(this.cards.length));
    const axes = view.mesh.axes.map(({ name }) => name);
    view.arrays.forEach((a, i) => this.fillCard(this.cards[i], a, i === view.selected, axes));
    this.arrange(view.arrays.map(({ name }) => name));
    const current = this.cards[view.selected];
    this.none.hidden = Boolean(current) && !view.beside;
    const beside = `${view.beside.toLocaleString("en")} more in Model`;
    setText(this.none, current ? beside : "The program takes no arrays.");
    enable(this.remove, Boolean(current));
    if (!current) return this.form.remove();
    if (this.form.parentNode !== current.node) current.node.append(this.form);
    this.showForm(view.arrays[view.selected], moved);
    this.showDims(view.arrays[view.selected], view.mesh.axes);
    if (moved) current.node.scrollIntoView({ block: "nearest" });
  }

  /** Sorts the cards, except while the user types, because moving a card blurs its fields. @param {string[]} names */
  arrange(names) {
    const nodes = naturalOrder(names).map((i) => this.cards[i].node);
    const typing = this.form.contains(document.activeElement);
    if (typing || nodes.every((node, place) => node === this.list.children[place])) return;
    this.list.append(...nodes);
  }

  /** @param {ArrayView} array @param {boolean} moved whether another array was selected before */
  showForm(array, moved) {
    for (const key of /** @type {ArrayField[]} */ (Object.keys(ARRAY_FIELDS))) {
      const field = this.fields[key];
      if (moved) field.input.blur();
      field.sync(array.fields[key].text, array.fields[key].error);
    }
    // The dimensions above have the axes that the rules give them.
    this.fields.spec.input.placeholder =
      array.noRules || array.typedSpec ? "None: no dimension is split" : "by the rules";
  }

  /**
   * Shows the dimensions of the selected array, with the axes that split them.
   * @param {ArrayView} array
   * @param {import("./view_data.js").MeshAxis[]} mesh
   */
  showDims({ dims, names, shape }, mesh) {
    const used = new Set(dims.flatMap(({ axes }) => axes));
    const free = mesh.filter(({ name }) => !used.has(name));
    const options = free.map(({ name, size }) => ({ value: name, label: `${name} ${size}` }));
    while (this.rows.length < dims.length) this.rows.push(this.dimension(this.rows.length));
    this.rows.forEach((row, dim) => {
      row.node.hidden = dim >= dims.length;
      const { axes } = dims[dim] ?? { axes: [] };
      setText(row.name, names[dim] ?? "");
      row.name.title = names[dim] ?? "";
      setText(row.size, (shape[dim] ?? 0).toLocaleString("en"));
      row.add.sync([{ value: "", label: "+" }, ...options], "");
      row.add.node.hidden = !free.length;
      const numbers = axes.map((axis) => mesh.findIndex(({ name }) => name === axis));
      if (!isNew(row, [axes, numbers])) return;
      fill(row.tags, ...axes.map((axis, i) => this.tag(axis, numbers[i], dim)));
    });
  }

  /** @param {number} dim */
  dimension(dim) {
    const split = (/** @type {string} */ axis) =>
      this.page.edit("split", [dim, axis, true], this.selected);
    const row = {
      name: h("b", { class: "sv-cut" }),
      size: h("span", { class: "sv-mono" }),
      tags: h("span"),
    };
    const add = new Choice(`Split dimension ${dim} over`, split);
    add.select.title = "Split it over one more mesh axis";
    const number = h("span", { class: "sv-muted", text: String(dim) });
    const parts = [number, row.name, row.size, row.tags, add.node];
    const node = h("div", { class: "sv-dimrow", role: "listitem", "data-drop-dim": dim }, ...parts);
    this.dims.append(node);
    return { ...row, add, node, key: "" };
  }

  /** @param {string} axis @param {number} number @param {number} dim the dimension that the axis splits */
  tag(axis, number, dim) {
    const node = axisTag(axis, number);
    Object.assign(node.dataset, { axis, dim: String(dim) });
    const off = () => this.page.edit("split", [dim, axis, false], this.selected);
    const title = `Do not split dimension ${dim} over ${axis}`;
    const props = { class: "sv-tiny", title, "aria-label": title, "data-edit": "true" };
    node.append(button("×", off, props));
    return node;
  }

  /** @param {number} index */
  card(index) {
    const parts = {
      name: h("b"),
      layers: h("span", { class: "sv-muted" }),
      type: h("span", { class: "sv-type sv-mono sv-muted" }),
      spec: h("div", { class: "sv-mono sv-muted sv-cardspec" }),
      summary: h("div", { class: "sv-muted" }),
      warn: h("div", { class: "sv-warn" }),
      problem: h("div", { class: "sv-error" }),
    };
    const head = button("", () => this.page.select(index), { class: "sv-plain sv-cardhead" });
    const line = h("div", { class: "sv-line" }, parts.name, parts.layers, parts.type);
    head.append(line, parts.spec, parts.summary);
    const node = h("div", { class: "sv-card", role: "listitem" }, head, parts.warn, parts.problem);
    this.list.append(node);
    return { node, head, axes: "", ...parts };
  }

  /**
   * @param {Card} card
   * @param {ArrayView} a
   * @param {boolean} selected
   * @param {string[]} axes of the mesh
   */
  fillCard(card, a, selected, axes) {
    toggle(card.node, "sv-selected", selected);
    card.head.setAttribute("aria-pressed", String(selected));
    card.node.hidden = a.folded;
    headCut(card.name, a.title);
    setText(card.layers, a.layers);
    card.head.title = [a.name, a.short, a.spec].join("  ");
    setText(card.type, selected ? a.bytes : a.short);
    const spec = a.spec || "no spec";
    if (card.spec.textContent !== spec || card.axes !== axes.join()) {
      const used = axes.flatMap((axis, i) =>
        a.dims.some((dim) => dim.axes.includes(axis)) ? i : [],
      );
      fill(card.spec, ...used.map((number) => axisDot(number)), spec);
      card.axes = axes.join();
    }
    toggle(card.spec, "sv-typed", Boolean(a.typedSpec));
    setText(card.summary, selected && !a.problem ? a.summary : "");
    setText(card.warn, a.warnings.join(" "));
    setText(card.problem, a.problem);
  }
}
