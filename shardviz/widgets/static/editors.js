// @ts-check
// The left side and the top: mesh bar, array cards, rule table. Typing sends intents; what the
// kernel made of them comes back as the next view.
import { Choice, Field, Touched, answers, button, fill, h, setText, toggle } from "./dom.js";

/** @typedef {(field: string, value: any, array?: number) => void} Edit */

const OTHER = "…"; // the choice that opens a field

export class MeshBar {
  /**
   * @param {import("./linked.js").Links} links
   * @param {Edit} edit
   * @param {{save: () => void, theme: () => void}} actions
   */
  constructor(links, edit, actions) {
    this.edit = edit;
    this.links = links;
    this.key = "";
    this.mesh = new Field("Mesh axes", (t) => edit("mesh", t), {
      caption: "Mesh",
      width: "12.5em",
      placeholder: "data=4, model=2",
    });
    this.axes = h("div", { class: "sv-axes" });
    this.hosts = new Field("Hosts", (t) => edit("hosts", t), { caption: "Hosts", width: "3.2em" });
    this.types = new Choice("Axis types", (v) => edit("types", v), "Types");
    this.target = new Choice("Target", (v) => this.pickTarget(v), "Target");
    this.target.select.classList.add("sv-targets");
    this.typed = new Field("Target by name", (t) => edit("target", t), {
      width: "12em",
      placeholder: "tpu:v5e:4x4",
    });
    this.typed.node.hidden = true;
    this.typed.input.addEventListener("input", () => {
      this.leaving = false;
    });
    this.typed.input.addEventListener("change", () => {
      this.leaving = true;
      this.leave();
    });
    /** Whether a name was typed to its end, so that the menu can say it. */
    this.leaving = false;
    /** @type {any} */ this.said = null;
    this.targetNote = h("div", { class: "sv-targetnote", role: "status" });
    this.targetKey = "";
    this.presets = h("select", {
      class: "sv-select sv-quiet",
      "aria-label": "Presets",
      "data-lm-suppress-shortcuts": "true",
      on: {
        change: () => {
          edit("preset", this.presets.value);
          this.presets.value = "";
        },
      },
    });
    this.node = h(
      "header",
      { class: "sv-bar" },
      h("span", { class: "sv-brand", text: "shardviz" }),
      this.mesh.node,
      this.axes,
      this.hosts.node,
      this.types.node,
      this.target.node,
      this.typed.node,
      h(
        "span",
        { class: "sv-right" },
        this.presets,
        button("Save page", actions.save, { class: "sv-link", "aria-label": "Save page" }),
      ),
      this.targetNote,
    );
    links.listeners.push(() => this.markAxes());
  }

  /** @param {string} value */
  pickTarget(value) {
    this.leaving = false;
    this.typed.node.hidden = value !== OTHER;
    if (value === OTHER) {
      this.typed.input.value = "";
      this.typed.input.focus();
    } else this.edit("target", value);
  }

  /**
   * The target, what does not fit about it, and one click that makes it fit.
   * @param {any} target
   */
  showTarget(target) {
    const typing = !this.typed.node.hidden;
    this.target.sync(
      [
        ...target.options,
        { value: OTHER, label: "by name…", title: "Any chip and shape, or cpu:N." },
      ],
      typing ? OTHER : target.value,
    );
    this.target.select.title = target.words;
    this.typed.sync(this.typed.input.value, target.error);
    this.said = target;
    this.leave();
    const key = target.note + target.offer;
    if (key === this.targetKey) return;
    this.targetKey = key;
    fill(
      this.targetNote,
      ...(target.note
        ? [
            h("span", { text: target.note }),
            button(target.offer, () => this.edit("fit", null), { class: "sv-button sv-small" }),
          ]
        : []),
    );
  }

  /** Once the kernel has read a name that was typed, the menu says it in place of the field. */
  leave() {
    if (!this.leaving || !answers.settled || this.said.error) return;
    const focused = this.typed.input === /** @type {any} */ (this.node.getRootNode()).activeElement;
    this.leaving = false;
    this.typed.node.hidden = true;
    if (focused) this.target.select.focus();
    this.showTarget(this.said);
  }

  /** The axes over which the chosen collective runs stand out. */
  markAxes() {
    const axes = new Set(
      (this.links.team?.axes ?? []).map((/** @type {string} */ a) => a.split(":(")[0]),
    );
    for (const chip of this.axes.children)
      toggle(chip, "sv-team", axes.has(chip.getAttribute("data-axis") ?? ""));
  }

  /**
   * @param {any} view
   * @param {any} target
   * @param {any} theme
   */
  show(view, target, theme) {
    const mesh = view.mesh;
    this.mesh.sync(mesh.text, mesh.error);
    this.hosts.sync(mesh.hosts, mesh.hostsError);
    this.types.sync(
      mesh.typeOptions.map((/** @type {string} */ t) => ({ value: t, label: t })),
      mesh.types,
    );
    this.showTarget(target);
    const key = JSON.stringify(mesh.axes) + theme.name;
    if (key !== this.key) {
      this.key = key;
      fill(
        this.axes,
        ...mesh.axes.map((/** @type {any} */ a, /** @type {number} */ i) =>
          this.chip(mesh.axes, a, i),
        ),
      );
      this.markAxes();
    }
    if (!this.presets.options.length) {
      fill(
        this.presets,
        h("option", { value: "", text: "Presets" }),
        ...mesh.presets.map((/** @type {any} */ g) =>
          h(
            "optgroup",
            { label: g.group },
            ...g.options.map((/** @type {any} */ o) =>
              h("option", { value: o.value, text: o.label, title: o.title }),
            ),
          ),
        ),
      );
    }
  }

  /**
   * One axis, with steps to half and double its size.
   * @param {any[]} axes
   * @param {any} axis
   * @param {number} index
   */
  chip(axes, axis, index) {
    const resize = (/** @type {number} */ size) => {
      const text = axes
        .map(
          (a, i) =>
            `${/^[^\s=:,;'"]+$/.test(a.name) ? a.name : `'${a.name}'`}=${i === index ? size : a.size}`,
        )
        .join(", ");
      this.mesh.input.value = text;
      this.mesh.state.touched = true;
      this.edit("mesh", text);
    };
    return h(
      "span",
      { class: "sv-chip", title: `${axis.type} axis`, "data-axis": axis.name },
      h("b", { text: axis.name }),
      h("span", { text: String(axis.size) }),
      button("−", () => resize(Math.max(1, Math.floor(axis.size / 2))), {
        class: "sv-tiny",
        "aria-label": `Halve axis ${axis.name}`,
      }),
      button("+", () => resize(axis.size * 2), {
        class: "sv-tiny",
        "aria-label": `Double axis ${axis.name}`,
      }),
    );
  }
}

export class ArrayCards {
  /** @param {Edit} edit @param {(index: number) => void} select */
  constructor(edit, select) {
    this.edit = edit;
    this.select = select;
    const field = (
      /** @type {string} */ label,
      /** @type {string} */ key,
      /** @type {any} */ o = {},
    ) => new Field(label, (t) => edit(key, t, this.selected), { caption: label, ...o });
    this.fields = {
      name: field("Array name", "name", { caption: "Name" }),
      dtype: field("Element type", "dtype", { caption: "Type" }),
      shape: field("Array shape", "shape", { placeholder: "512, 2048" }),
      logical: field("Logical axes", "logical", { placeholder: "embed mlp" }),
      spec: field("PartitionSpec", "spec", { placeholder: "from the rules" }),
    };
    // The same layout in every dialect that can say it.
    this.also = h("div", { class: "sv-also", "aria-label": "The same layout in other words" });
    this.form = h(
      "div",
      { class: "sv-form" },
      h("div", { class: "sv-pair" }, this.fields.name.node, this.fields.dtype.node),
      this.fields.shape.node,
      this.fields.logical.node,
      this.fields.spec.node,
      this.also,
    );
    this.list = h("div", { class: "sv-cards", role: "list", "aria-label": "Arrays" });
    this.add = button("+ array", () => edit("add", null), {
      class: "sv-link",
      "aria-label": "Add an array",
    });
    this.remove = button("remove", () => edit("remove", this.selected), {
      class: "sv-link",
      "aria-label": "Remove the selected array",
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
    );
    this.selected = 0;
    /** @type {any[]} */ this.cards = [];
    /** @type {Set<string> | null} */ this.lit = null;
  }

  /**
   * The arrays that a value's axes came from stand out; null lets go.
   * @param {string[] | null} names
   */
  light(names) {
    this.lit = names && new Set(names);
    for (const card of this.cards)
      toggle(card.node, "sv-lit", Boolean(this.lit?.has(card.name.textContent)));
  }

  /** @param {any} view */
  show(view) {
    const moved = this.selected !== view.selected;
    this.selected = view.selected;
    while (this.cards.length > view.arrays.length) this.cards.pop().node.remove();
    while (this.cards.length < view.arrays.length) this.cards.push(this.card(this.cards.length));
    view.arrays.forEach((/** @type {any} */ a, /** @type {number} */ i) =>
      this.fillCard(this.cards[i], a, i === view.selected),
    );
    const current = this.cards[view.selected];
    this.none.hidden = Boolean(current);
    this.remove.disabled = !current;
    if (!current) return this.form.remove();
    if (this.form.parentNode !== current.node) current.node.append(this.form);
    const fields = view.arrays[view.selected].fields;
    for (const [key, field] of Object.entries(this.fields)) {
      if (moved) field.input.blur();
      field.sync(fields[key].text, fields[key].error);
    }
    const said = view.arrays[view.selected];
    const also = (said.also ?? []).filter((/** @type {string[]} */ a) => a[1] !== said.spec);
    fill(
      this.also,
      ...also.map((/** @type {string[]} */ a) =>
        h("div", { class: "sv-mono", text: a[1], title: `${a[0]}: ${a[1]}` }),
      ),
    );
    this.fields.spec.input.placeholder = said.byRules ? said.spec : "None: every dimension whole";
    if (moved) current.node.scrollIntoView({ block: "nearest" });
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
        "data-lm-suppress-shortcuts": "true",
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
   * @param {any} card
   * @param {any} a
   * @param {boolean} selected
   */
  fillCard(card, a, selected) {
    toggle(card.node, "sv-selected", selected);
    card.head.setAttribute("aria-pressed", String(selected));
    setText(card.name, a.name);
    toggle(card.node, "sv-lit", Boolean(this.lit?.has(a.name)));
    setText(card.type, `${a.short} · ${a.bytes}`);
    setText(card.logical, a.logical || (a.rank ? "no logical axes" : "scalar"));
    setText(card.spec, a.spec);
    toggle(card.spec, "sv-typed", a.typedSpec);
    setText(card.summary, a.problem ? "" : (a.summary ?? ""));
    setText(card.warn, a.warnings.join(" "));
    setText(card.problem, a.problem);
  }
}

export class RuleTable {
  /** @param {Edit} edit */
  constructor(edit) {
    this.state = new Touched();
    this.dialect = new Choice("Dialect", (v) => edit("dialect", v));
    this.text = h("textarea", {
      class: "sv-rules sv-mono",
      "aria-label": "Rules",
      spellcheck: "false",
      wrap: "off",
      autocapitalize: "off",
      "data-lm-suppress-shortcuts": "true",
      placeholder: "batch -> data",
      on: {
        input: () => {
          this.state.touched = true;
          this.grow();
          edit("rules", this.text.value);
        },
        change: () => edit("tidy", null),
        keydown: (/** @type {any} */ e) => e.stopPropagation(),
      },
    });
    this.rows = h("div", { class: "sv-rulerows" });
    this.sheet = h("div", { class: "sv-sheet" }, this.rows, this.text);
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.node = h(
      "div",
      { class: "sv-rulebox" },
      h(
        "div",
        { class: "sv-headrow" },
        h("h3", { class: "sv-head", text: "Rules" }),
        this.dialect.node,
      ),
      h("div", { class: "sv-scroll" }, this.sheet),
      this.error,
    );
    this.key = "";
  }

  grow() {
    const lines = this.text.value.split("\n").length;
    this.text.rows = lines;
    this.sheet.style.setProperty("--sv-lines", String(lines));
  }

  /** @param {any} view */
  show(view) {
    const rules = view.rules;
    if (this.text.value !== rules.text && this.state.yields(this.text))
      this.text.value = rules.text;
    this.grow();
    this.dialect.sync(
      rules.dialects.map((/** @type {string} */ d) => ({ value: d, label: d })),
      rules.dialect,
    );
    setText(this.error, rules.error);
    this.text.setAttribute("aria-invalid", rules.error ? "true" : "false");
    toggle(this.sheet, "sv-unaligned", !rules.aligned);
    // While a line is being typed the table as it was stays beside it, pale.
    if (rules.error) return;
    const key = JSON.stringify(rules.aligned ? rules.rows : []);
    if (key === this.key) return;
    this.key = key;
    fill(
      this.rows,
      ...(rules.aligned ? rules.rows : []).map((/** @type {any} */ r, /** @type {number} */ i) =>
        ruleRow(r, i),
      ),
    );
  }
}

/** @param {any} row @param {number} index */
function ruleRow(row, index) {
  const who = row.decides || row.whole,
    right = who
      ? h("span", { class: row.broken ? "sv-bad" : "sv-good", text: who, title: who })
      : row.never
        ? h("span", { class: "sv-warn", text: "never fires" })
        : h("span");
  return h(
    "div",
    { class: "sv-rulerow", style: { "--sv-line": row.line } },
    h("span", { class: "sv-number", text: String(index + 1) }),
    h("span", {
      class: `sv-note${row.broken ? " sv-bad" : ""}`,
      text: row.note,
      title: row.more || row.note,
    }),
    h(
      "span",
      { class: "sv-who" },
      right,
      row.whole && !row.decides ? h("span", { class: "sv-muted", text: "whole" }) : null,
    ),
  );
}
