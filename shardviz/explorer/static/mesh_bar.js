// @ts-check
// The bar at the top: mesh, target, hosts, axis types, presets, and buttons such as undo.
import { axisColour } from "./colours.js";
import { Choice, Field } from "./controls.js";
import { axisDot, button, drawn, focusedNear } from "./dom.js";
import { enable, h, handled, iconButton, setIcon, toggle } from "./dom.js";

/** @import { Requests } from "./explorer.js" */
/** @import { Menus, Option, Target } from "./messages" */
/** @import { MeshAxis } from "./view_data.js" */

const OTHER = "…"; // this menu entry opens a text field
const MIXED = "mixed"; // value if axes have different types

export class MeshBar {
  /** @param {import("./highlight.js").Highlight} highlight @param {Requests} page */
  constructor(highlight, page) {
    this.page = page;
    const edit = page.edit.bind(page);
    this.highlight = highlight;
    /** Axis name -> its chip. @type {Map<string, AxisChip>} */
    this.chips = new Map();
    /** The mesh as text; shown as a pencil until the user types into it. */
    this.mesh = new Field("Mesh axes", (t) => edit("mesh", t), { placeholder: "data=4, model=2" });
    this.mesh.input.classList.add("sv-meshtext");
    this.mesh.node.classList.add("sv-icon");
    this.mesh.node.title = "Type the mesh: data=4, model=2";
    this.mesh.node.prepend(drawn("pencil"));
    const locked = { "data-edit": "true" };
    const add = iconButton("plus", "Add a mesh axis", () => edit("axis", null), locked);
    // In one element, so that neither has a row to itself.
    const tools = h("span", { class: "sv-axistools" }, this.mesh.node, add);
    this.axes = h("div", { class: "sv-axes" }, tools);
    this.hosts = new Field("Hosts", (t) => edit("hosts", t), { caption: "Hosts" });
    this.types = new Choice("Axis types", (v) => edit("types", v), "Axis types");
    this.target = new Choice("Target", (v) => this.pickTarget(v), "Target");
    const placeholder = "tpu:v5e:4x4";
    this.typed = new Field("Target by name", (t) => edit("target", t), { placeholder });
    this.typed.input.style.width = "11em";
    this.typed.node.hidden = true;
    this.presets = new Choice("Presets", (v) => edit("preset", v));
    this.presets.select.classList.add("sv-quiet");
    const more = [this.hosts.node, this.types.node, this.presets.node];
    const undo = { ...locked, title: "Undo (Ctrl+Z)" };
    const redo = { ...locked, title: "Redo (Ctrl+Shift+Z)" };
    this.undo = iconButton("undo", "Undo", () => page.act("undo"), undo);
    this.redo = iconButton("redo", "Redo", () => page.act("redo"), redo);
    this.full = iconButton("full", "Full screen", () => page.fullScreen());
    this.fold = iconButton("more", "Hosts, axis types and presets", () => this.unfold());
    this.fold.setAttribute("aria-expanded", "false");
    const saved = iconButton("save", "Save page", () => page.act("save"), locked);
    const code = iconButton("code", "Code", () => page.goTo({ view: "Program", tab: "Code" }));
    const all = [this.fold, this.undo, this.redo, code, saved];
    /** Buttons for the session, shown next to the tabs of the views. */
    this.actions = h("span", { class: "sv-right", role: "group" }, ...all, this.full);
    this.node = h(
      "header",
      { class: "sv-bar" },
      h("span", { class: "sv-brand", text: "shardviz" }),
      this.axes,
      h("div", { class: "sv-runson" }, this.target.node, this.typed.node),
      h("div", { class: "sv-more" }, ...more),
      // Errors have rows as wide as the bar, so that they cover nothing and are short.
      ...[this.mesh, this.hosts, this.typed].map(({ error }) => error),
    );
    highlight.listeners.push(() => this.markAxes());
  }

  /** Shows or hides the controls that a narrow page folds away. */
  unfold() {
    const on = this.node.classList.toggle("sv-unfolded");
    this.fold.setAttribute("aria-expanded", String(on));
  }

  /** @param {boolean} on whether the Explorer fills the screen */
  showFull(on) {
    setIcon(this.full, "full", on ? "Back into the page" : "Full screen");
  }

  /** @param {string} value */
  pickTarget(value) {
    this.typed.node.hidden = value !== OTHER;
    if (value === OTHER) {
      this.typed.input.value = "";
      this.typed.input.focus();
    } else this.page.edit("target", value);
  }

  /** @param {Target} target @param {Menus} menus @param {number} size of the mesh */
  showTarget(target, { here, targets }, size) {
    const { value, label } = target;
    const typing = !this.typed.node.hidden;
    const cpus = (/** @type {Option} */ option) =>
      option.value === "cpu"
        ? { ...option, label: `${option.label} × ${size.toLocaleString("en")}` }
        : option;
    const typed = label ? [{ value, label, title: label, group: here[0]?.group }] : [];
    const byName = { value: OTHER, label: "by name…", title: "Any chip and shape, or cpu:N." };
    const options = [...here.map(cpus), ...typed, ...targets, byName];
    this.target.sync(options, typing ? OTHER : value);
    this.target.select.title = target.words ?? "";
    this.typed.sync(this.typed.input.value, target.error);
  }

  /** Marks the mesh axes that the selected collective runs over. */
  markAxes() {
    const { collective } = this.highlight;
    const axes = new Set((collective?.axes ?? []).map((axis) => axis.split(":(")[0]));
    for (const [name, { node }] of this.chips) toggle(node, "sv-participates", axes.has(name));
  }

  /** @param {import("./view_data.js").View} view */
  show({ mesh, undo, redo }) {
    const menus = this.page.get("menus");
    enable(this.undo, Boolean(undo));
    enable(this.redo, Boolean(redo));
    if (mesh.hostsError && !this.node.classList.contains("sv-unfolded")) this.unfold();
    this.mesh.sync(mesh.text, mesh.error);
    this.hosts.sync(mesh.hosts, mesh.hostsError);
    this.hosts.input.readOnly = Boolean(mesh.hostsOf);
    this.hosts.node.title = mesh.hostsOf ?? "";
    this.hosts.input.style.width = `calc(${Math.max(2, mesh.hosts.length)}ch + 1.9em)`;
    const mixed = mesh.types === MIXED ? [{ value: MIXED, label: MIXED }] : [];
    this.types.sync([...menus.axisTypes, ...mixed], mesh.types);
    const size = mesh.axes.reduce((all, axis) => all * axis.size, 1);
    this.showTarget(this.page.get("target"), menus, size);
    this.showAxes(mesh.axes, menus.axisTypes);
    const presets = menus.presets.flatMap(({ group, options }) =>
      options.map((option) => ({ ...option, group })),
    );
    this.presets.sync([{ value: "", label: "Presets" }, ...presets], "");
  }

  /** @param {MeshAxis[]} axes @param {Option[]} types */
  showAxes(axes, types) {
    const nodes = axes.map((axis, number) => {
      const chip = this.chips.get(axis.name) ?? new AxisChip(axis.name, this.page);
      this.chips.set(axis.name, chip);
      const words = types.find(({ value }) => value === axis.type)?.title ?? axis.type;
      chip.show(axis, number, words);
      return chip.node;
    });
    const shown = [...this.axes.querySelectorAll(".sv-chip")];
    if (nodes.length === shown.length && nodes.every((node, i) => node === shown[i])) return;
    const focused = focusedNear(this.axes);
    const at = shown.findIndex((chip) => chip.contains(focused));
    for (const chip of shown) chip.remove();
    this.axes.prepend(...nodes);
    // Moving an element blurs it, so focus it again; if it was removed, focus a neighbour.
    const next = focused?.isConnected ? focused : nodes[Math.min(at, nodes.length - 1)];
    if (at >= 0 && next instanceof HTMLElement) next.focus();
    this.markAxes();
  }
}

/**
 * A mesh axis with an editable size. On the chip, Enter focuses the size, Delete removes the axis,
 * and Alt with an arrow key moves the axis.
 */
class AxisChip {
  /** @param {string} name @param {Requests} page */
  constructor(name, page) {
    this.name = name;
    this.page = page;
    this.place = 0;
    this.meshSize = "";
    this.dot = axisDot("");
    this.size = new Field(`Size of ${name}`, () => {});
    const { input } = this.size;
    input.tabIndex = -1;
    input.addEventListener("focus", () => input.select());
    input.addEventListener("change", () => this.take(input.value));
    input.addEventListener("keydown", (e) => this.typing(e));
    const words = `Remove axis ${name}`;
    const about = { class: "sv-tiny", tabindex: -1, title: words, "aria-label": words };
    const off = { ...about, "data-edit": "true" };
    const remove = button("×", () => page.edit("remove_axis", name), off);
    const parts = [this.dot, h("b", { text: name }), this.size.node, remove];
    const props = { class: "sv-chip", role: "group", tabindex: 0, "data-axis": name };
    const on = { keydown: (/** @type {KeyboardEvent} */ e) => this.key(e) };
    this.node = h("span", { ...props, on }, ...parts);
  }

  /** @param {MeshAxis} axis @param {number} number @param {string} words about the axis type */
  show({ size }, number, words) {
    this.place = number;
    this.meshSize = String(size);
    this.dot.style.setProperty("--sv-axis-colour", axisColour(number));
    this.node.title = `${this.name}: ${size.toLocaleString("en")}-way, ${words}`;
    this.node.setAttribute("aria-label", this.node.title);
    this.size.sync(this.meshSize);
    this.size.input.style.width = `calc(${this.meshSize.length}ch + 10px)`;
  }

  /** @param {string} text */
  take(text) {
    this.size.state.touched = true;
    this.size.input.value = text;
    this.page.edit("size", [this.name, text]);
  }

  /** Handles keys in the size field: Escape restores the size, arrow keys double or halve it. @param {KeyboardEvent} e */
  typing({ key }) {
    const { input } = this.size;
    if (key === "Escape") input.value = this.meshSize;
    if (key === "Escape" || key === "Enter") this.node.focus();
    if (key === "ArrowUp") this.take(String(2 * Number(input.value)));
    if (key === "ArrowDown") this.take(String(Math.ceil(Number(input.value) / 2)));
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const to = { ArrowLeft: this.place - 1, ArrowRight: this.place + 1 }[e.key];
    if (e.target !== this.node) return;
    if (e.key === "Enter") this.size.input.focus();
    else if (e.key === "Delete") this.page.edit("remove_axis", this.name);
    else if (to !== undefined && e.altKey) this.page.edit("move_axis", [this.name, to]);
    else return;
    handled(e);
  }
}
