// @ts-check
// The top: the mesh, the target, undo and redo, code, the saved page; hosts, types and presets.
import { Choice, Field } from "./controls.js";
import { button, fill, h, iconButton, toggle } from "./dom.js";

/** @typedef {import("./view_data.js").MeshAxis} MeshAxis */
/** @typedef {import("./messages").Target} Target */
/** @typedef {import("./messages").Option} Option */

const OTHER = "…"; // the choice that opens a field
export class MeshBar {
  /**
   * @param {import("./highlight.js").Highlight} highlight
   * @param {import("./explorer.js").Edit} edit
   * @param {{act: (kind: import("./messages").ActionKind) => void, code: () => void,
   *   full: () => void}} calls
   */
  constructor(highlight, edit, calls) {
    this.edit = edit;
    this.highlight = highlight;
    this.key = "";
    this.mesh = new Field("Mesh axes", (t) => edit("mesh", t), { placeholder: "data=4, model=2" });
    this.mesh.input.classList.add("sv-meshtext");
    this.axes = h("div", { class: "sv-axes" });
    this.addAxis = button("+", () => edit("axis", null), {
      class: "sv-tiny sv-addaxis",
      title: "Add a mesh axis of size 2",
      "aria-label": "Add a mesh axis",
      "data-edit": "true",
    });
    this.hosts = new Field("Hosts", (t) => edit("hosts", t), { caption: "Hosts" });
    this.types = new Choice("Axis types", (v) => edit("types", v), "Types");
    this.target = new Choice("Target", (v) => this.pickTarget(v));
    this.target.select.classList.add("sv-targets");
    this.typed = new Field("Target by name", (t) => edit("target", t), {
      width: "12em",
      placeholder: "tpu:v5e:4x4",
    });
    this.typed.node.hidden = true;
    this.targetNote = h("div", { class: "sv-targetnote", role: "status" });
    this.targetKey = "";
    this.presets = new Choice("Presets", (v) => edit("preset", v));
    this.presets.select.classList.add("sv-quiet");
    this.more = h("div", { class: "sv-more" }, this.hosts.node, this.types.node, this.presets.node);
    const locked = { "data-edit": "true" };
    this.undo = iconButton("undo", "Undo", () => calls.act("undo"), {
      ...locked,
      title: "Undo (Ctrl+Z)",
    });
    this.redo = iconButton("redo", "Redo", () => calls.act("redo"), {
      ...locked,
      title: "Redo (Ctrl+Shift+Z)",
    });
    this.full = iconButton("full", "Full screen", calls.full);
    this.fold = iconButton("more", "Hosts, axis types and presets", () => this.unfold());
    this.fold.setAttribute("aria-expanded", "false");
    const saved = iconButton("save", "Save page", () => calls.act("save"), locked);
    const all = [this.fold, this.undo, this.redo, iconButton("code", "Code", calls.code), saved];
    /** What can be done with the session; it stands beside the tabs of the views. */
    this.actions = h("span", { class: "sv-right", role: "group" }, ...all, this.full);
    /**
     * Of the menus, those on this machine first.
     * @type {Option[]}
     */
    this.targets = [];
    this.here = 0;
    this.node = h(
      "header",
      { class: "sv-bar" },
      h("span", { class: "sv-brand", text: "shardviz" }),
      this.mesh.node,
      this.axes,
      this.target.node,
      this.typed.node,
      this.more,
      this.targetNote,
    );
    highlight.listeners.push(() => this.markAxes());
  }

  /** Shows the controls that a narrow page hides. */
  unfold() {
    const on = this.node.classList.toggle("sv-unfolded");
    this.fold.setAttribute("aria-expanded", String(on));
  }

  /** @param {boolean} on whether the Explorer fills the screen */
  showFull(on) {
    const words = on ? "Back into the page" : "Full screen";
    this.full.setAttribute("aria-label", words);
    this.full.title = words;
  }

  /** @param {import("./messages").Answer} answer */
  showSteps({ undo, redo }) {
    for (const [node, on] of /** @type {const} */ ([
      [this.undo, undo],
      [this.redo, redo],
    ])) {
      if (node.dataset.locked) node.dataset.locked = String(!on);
      else node.disabled = !on;
    }
  }

  /** @param {string} value */
  pickTarget(value) {
    this.typed.node.hidden = value !== OTHER;
    if (value === OTHER) {
      this.typed.input.value = "";
      this.typed.input.focus();
    } else this.edit("target", value);
  }

  /**
   * The target, what does not fit about it, and one click that makes it fit.
   * @param {Target} target
   */
  showTarget(target) {
    const { value, label, note = "", offer = "" } = target;
    const typing = !this.typed.node.hidden;
    this.target.sync(
      [
        ...this.targets.slice(0, this.here),
        ...(label ? [{ value, label, title: label, group: this.targets[0]?.group }] : []),
        ...this.targets.slice(this.here),
        { value: OTHER, label: "by name…", title: "Any chip and shape, or cpu:N." },
      ],
      typing ? OTHER : value,
    );
    this.target.select.title = target.words ?? "";
    this.typed.sync(this.typed.input.value, target.error);
    const key = note + offer;
    if (key === this.targetKey) return;
    this.targetKey = key;
    const fit = button(offer, () => this.edit("fit", null), { class: "sv-button sv-small" });
    const words = note ? [h("span", { text: note })] : [];
    fill(this.targetNote, ...words, ...(offer ? [fit] : []));
  }

  /** The axes over which the chosen collective runs stand out. */
  markAxes() {
    const { collective } = this.highlight;
    const axes = new Set((collective?.axes ?? []).map((axis) => axis.split(":(")[0]));
    for (const chip of this.axes.children) {
      toggle(chip, "sv-participates", axes.has(chip.getAttribute("data-axis") ?? ""));
    }
  }

  /**
   * @param {import("./view_data.js").View} view
   * @param {Target} target
   * @param {import("./messages").Menus} menus
   * @param {string} theme its name
   */
  show({ mesh, ...answer }, target, menus, theme) {
    this.showSteps(answer);
    if (mesh.hostsError && !this.node.classList.contains("sv-unfolded")) this.unfold();
    this.here = menus.here.length;
    const size = mesh.axes.reduce((all, axis) => all * axis.size, 1);
    const cpus = (/** @type {Option} */ option) =>
      option.value === "cpu"
        ? { ...option, label: `${option.label} × ${size.toLocaleString("en")}` }
        : option;
    this.targets = [...menus.here.map(cpus), ...menus.targets];
    this.mesh.sync(mesh.text, mesh.error);
    this.hosts.sync(mesh.hosts, mesh.hostsError);
    this.hosts.input.readOnly = Boolean(mesh.hostsOf);
    this.hosts.node.title = mesh.hostsOf ?? "";
    this.hosts.input.style.width = `calc(${Math.max(2, mesh.hosts.length)}ch + 1.9em)`;
    this.types.sync(
      [...new Set([...menus.axisTypes, mesh.types])].map((t) => ({ value: t, label: t })),
      mesh.types,
    );
    this.showTarget(target);
    const key = JSON.stringify(mesh.axes) + theme;
    if (key !== this.key) {
      this.key = key;
      fill(this.axes, ...mesh.axes.map((axis) => this.chip(axis)), this.addAxis);
      this.markAxes();
    }
    const presets = menus.presets.flatMap(({ group, options }) =>
      options.map((option) => ({ ...option, group })),
    );
    this.presets.sync([{ value: "", label: "Presets" }, ...presets], "");
  }

  /**
   * One axis, with steps to half and double its size.
   * @param {MeshAxis} axis
   */
  chip(axis) {
    return h(
      "span",
      { class: "sv-chip", title: `${axis.type} axis`, "data-axis": axis.name },
      h("b", { text: axis.name }),
      h("span", { text: String(axis.size) }),
      button("−", () => this.edit("halve", axis.name), {
        class: "sv-tiny",
        "data-edit": "true",
        "aria-label": `Halve axis ${axis.name}`,
      }),
      button("+", () => this.edit("double", axis.name), {
        class: "sv-tiny",
        "data-edit": "true",
        "aria-label": `Double axis ${axis.name}`,
      }),
    );
  }
}
