// @ts-check
// The entry point of the page: receives data from Python, sends intents, and draws the views.
// Pointing, zooming and switching tabs need no kernel.
import { ArrayCards } from "./array_cards.js";
import { dragAxes } from "./axis_drag.js";
import { Compare } from "./compare.js";
import { answers } from "./controls.js";
import { h, handled, setText, toggle } from "./dom.js";
import { Find, everything, readQuery } from "./find.js";
import { Highlight } from "./highlight.js";
import { IntentQueue } from "./intents.js";
import { keepLast } from "./keep_last.js";
import { KernelWatch } from "./kernel_watch.js";
import { MeshBar } from "./mesh_bar.js";
import { ModelPanel } from "./model_panel.js";
import { keptNumbers, readEdges, readPicture } from "./picture_data.js";
import { PicturePanel } from "./picture_panel.js";
import { Problems } from "./problems.js";
import { ProgramPanel } from "./program_panel.js";
import { RuleTable } from "./rule_table.js";
import { isDark, watchTheme } from "./theme.js";
import { readView } from "./view_data.js";
import { Views, besideView } from "./views.js";

/** @import { ActionKind, CustomMessage, EditValue, Intent, Model, Place, Traits } from "./messages" */
/** @import { View } from "./view_data.js" */
/**
 * What panels request from the page: edits, answers of the kernel, places to open.
 * @typedef {Pick<Page, "get" | "live" | "editable" | "highlight" | "cards" | "problems" | "edit" | "select" |
 *   "act" | "ask" | "goTo" | "goToField" | "fullScreen">} Requests
 */

/**
 * Text fields. Typed text is sent after a pause. Edits made while a field keeps the focus are
 * undone together.
 */
const TYPED = ["mesh", "hosts", "rules", "name", "dtype", "shape", "logical", "spec", "target"];

class Page {
  /** @param {Model} model @param {HTMLElement} el */
  constructor(model, el) {
    this.model = model;
    this.live = Boolean(model.send) && !model.get("offline");
    this.intents = new IntentQueue(model, () => {
      this.watch.answered(false);
      this.schedule();
    });
    this.scheduled = false;
    /** The array that the user clicked, until the kernel's answer selects it. @type {number | null} */
    this.chosen = null;
    /** The data of the current page. @type {View | null} */ this.view = null;
    /** The dimension to select in Rules after the kernel's answer. @type {number | null} */
    this.chosenDim = null;
    /**
     * Packed picture -> decoded picture, so that each picture is decoded once.
     * @type {WeakMap<import("./messages").PackedPicture, import("./picture_data.js").Picture>}
     */
    this.read = new WeakMap();
    this.devicesOf = deviceReader();
    this.linksOf = keepLast(drawnLinks);
    const highlight = (this.highlight = new Highlight());
    this.bar = new MeshBar(highlight, this);
    /** @type {ArrayCards} */ this.cards = new ArrayCards(this);
    this.rules = new RuleTable(this);
    this.leaves = new ModelPanel(this);
    this.panel = new PicturePanel(highlight, this);
    this.program = new ProgramPanel(highlight, this);
    /** @type {Problems} */ this.problems = new Problems(this);
    this.compare = new Compare(this);
    this.find = new Find({
      gather: () => this.named(),
      read: (query) =>
        readQuery(query, highlight, (pointing, array) => this.point(pointing, array)),
      ask: () => this.editable && this.act("leaves"),
    });
    this.bar.node.append(this.find.node);
    this.views = this.build();
    this.watch = new KernelWatch(model, () => this.schedule());
    /** Errors from the kernel, shown in every view. */
    this.failed = h("div", { class: "sv-error sv-failed", role: "alert" });
    this.root = h(
      "div",
      {
        class: "shardviz-explorer sv-page",
        spellcheck: "false",
        on: {
          keydown: (e) => this.key(e),
          focusin: (e) => this.focused(e),
          // The second click of a double click on Full screen meets text, and would select it.
          mousedown: (e) => e.detail > 1 && e.timeStamp - this.filledAt < 600 && e.preventDefault(),
          change: () => this.intents.commit(), // on Enter, or when the field is left
          fullscreenchange: () => this.showFull(this.root.matches(":fullscreen")),
        },
      },
      this.bar.node,
      this.views.node,
      this.compare.node,
      this.failed,
      this.watch.node,
      ...this.views.views.map(({ node }) => node),
    );
    this.filledAt = -1e3; // when the Explorer last began or ended to fill the screen, in ms
    /** Number of focus changes, which identifies edits that are undone together. */
    this.bursts = 0;
    dragAxes(this.root, this);
    // Listen in the capture phase, before a field handles the key.
    // In a saved page, the Explorer handles keys pressed anywhere.
    const inside = model.get("offline") ? document.documentElement : this.root;
    inside.addEventListener("keydown", (e) => this.find.shortcut(e), true);
    el.append(this.root);
    const sent = model.get("view");
    if (sent && "count" in sent && sent.opens) this.views.show(sent.opens);
  }

  build() {
    const about = { class: "sv-left", "aria-label": "Arrays and specs" };
    const sidebar = h("aside", about, this.cards.node);
    const layout = h("section", { class: "sv-view sv-layout" }, sidebar, this.panel.node);
    const beside = besideView();
    const rules = h("section", { class: "sv-view sv-rulesview" }, this.rules.node, beside);
    const besideModel = besideView();
    const model = h("section", { class: "sv-view sv-rulesview" }, this.leaves.node, besideModel);
    /** View -> the element that contains the pictures in that view. @type {Record<import("./views.js").ViewName, Element>} */
    this.places = {
      Layout: layout,
      Rules: beside,
      Model: besideModel,
      Program: this.program.beside,
    };
    /** @type {import("./views.js").OneView[]} */
    const tabs = [
      { name: "Layout", node: layout, words: "Which device holds what" },
      { name: "Rules", node: rules, words: "Why a dimension is split or not" },
      { name: "Model", node: model, words: "All leaves" },
      { name: "Program", node: this.program.node, words: "The stages of the program" },
    ];
    const views = new Views(tabs, (name) => this.opened(name));
    views.node.append(this.problems.node, this.compare.pin, this.bar.actions);
    return views;
  }

  /** @param {import("./views.js").ViewName} name */
  opened(name) {
    this.places?.[name]?.append(this.panel.node);
    this.panel.inProgram = name === "Program";
    this.ask("show", name);
    this.schedule();
  }

  /** Opens a view, and selects the array, dimension, leaf, collective, line, tab or axis of the place. @param {Partial<Place>} place */
  goTo({ view = this.views.open, array, dim, leaf, collective, line, tab, axis }) {
    this.views.show(view);
    if (leaf !== undefined && view !== "Model") {
      this.edit("open", leaf);
      this.chosenDim = dim ?? null;
    }
    if (leaf !== undefined && view === "Model") this.leaves.pickLeaf(leaf);
    if (array !== undefined) this.select(array);
    if (array !== undefined && dim !== undefined) this.rules.choose(array, dim);
    if (collective !== undefined) this.program.openCollective(collective);
    if (line !== undefined) this.program.openLine(line);
    if (tab !== undefined) this.program.open(tab);
    if (axis !== undefined) this.bar.chips.get(axis)?.node.focus();
  }

  /** Focuses the first field with invalid text, in the given array or on the page. @param {number} [array] */
  goToField(array) {
    if (array !== undefined) this.goTo({ view: "Layout", array });
    else if (this.view?.rules.error) this.views.show("Rules");
    // Wait for the next frame: drawing the page fills the array's fields.
    requestAnimationFrame(() => {
      const inside = array === undefined ? this.root : this.cards.node;
      const field = inside.querySelector('[aria-invalid="true"]');
      if (field instanceof HTMLElement) field.focus();
    });
  }

  /** Opens Layout, and pins the highlight to a device or a block of an array. @param {import("./highlight.js").Pointing} pointing @param {number} [array] */
  point(pointing, array) {
    this.goTo({ view: "Layout", array });
    this.highlight.point(pointing, true);
  }

  /** Returns all items that Find can search by name. */
  named() {
    const { view, program, editable } = this;
    if (!view) return [];
    const act = (/** @type {ActionKind} */ kind) => () => this.act(kind);
    const commands = {
      Code: () => this.goTo({ view: "Program", tab: "Code" }),
      "Full screen": () => this.fullScreen(),
      ...(editable && { Undo: act("undo"), Redo: act("redo"), "Save page": act("save") }),
      ...(editable && { "Save picture (SVG)": act("picture") }),
      ...(editable && { Compile: act("compile"), "Pin as A": act("pin") }),
      ...(editable && !this.get("target").noRun && { Run: act("run") }),
    };
    const { paths = [] } = this.get("leaves");
    return everything(view, paths, program, (place) => this.goTo(place), commands);
  }

  /** Whether the Explorer fills the screen or its frame. */
  get full() {
    return this.root.classList.contains("sv-fullscreen");
  }

  /**
   * Toggles the browser's full screen mode. An overlay would not work in front ends that clip
   * outputs. If a frame does not allow full screen, the Explorer fills the frame.
   */
  async fullScreen() {
    this.filledAt = performance.now();
    if (this.root.matches(":fullscreen")) return document.exitFullscreen();
    if (this.full) return this.showFull(false);
    try {
      await this.root.requestFullscreen();
    } catch {
      this.showFull(true);
    }
  }

  /** @param {boolean} on */
  showFull(on) {
    this.filledAt = performance.now();
    toggle(this.root, "sv-fullscreen", on);
    this.bar.showFull(on);
  }

  /** Takes the keys of the focused element from JupyterLab's shortcuts. @param {FocusEvent} e */
  focused({ target }) {
    this.bursts++;
    if (target instanceof Element) target.setAttribute("data-lm-suppress-shortcuts", "true");
  }

  /** Handles the keys for undo and redo, except in text fields, which have their own undo. @param {KeyboardEvent} e */
  key(e) {
    const field = e.target instanceof Element && e.target.closest("input, textarea, select");
    if (e.key === "Escape" && this.full && !field) return this.fullScreen();
    if (field || !this.editable || !(e.ctrlKey || e.metaKey) || e.altKey) return;
    const again = e.key.toLowerCase() === "y" || (e.shiftKey && e.key.toLowerCase() === "z");
    if (!again && e.key.toLowerCase() !== "z") return;
    handled(e);
    this.act(again ? "redo" : "undo");
  }

  /**
   * Handles a beat, which repeats the number of the last answer: answers can get lost during a
   * reload.
   * @param {{seq?: number, client?: string}} beat
   */
  hear({ seq, client }) {
    if (seq === undefined || client === undefined || !this.intents.pending) return;
    this.intents.receive({ seq, client, revision: 0 });
    if (!this.intents.pending) this.schedule();
  }

  /** Whether a kernel answers. */
  get editable() {
    return this.live && !this.watch.gone;
  }

  /** @param {Intent} intent */
  send(intent) {
    this.unsettle();
    this.intents.send(intent);
  }

  /** @param {ActionKind} kind */
  act(kind) {
    this.send({ kind });
  }

  /** Requests something from the kernel by its name. @param {Extract<Intent, {value: string | null}>["kind"]} kind @param {string | null} value */
  ask(kind, value) {
    if (this.live) this.send({ kind, value });
  }

  /** Marks the page as waiting for an answer. */
  unsettle() {
    this.root.dataset.settled = "false";
    answers.settled = false;
  }

  /** @param {string} field @param {EditValue} value @param {number} [array] */
  edit(field, value, array) {
    if (!this.editable) return;
    const target = array === undefined ? {} : { array };
    /** @type {Intent} */
    const intent = { kind: "edit", field, value, ...target };
    if (!TYPED.includes(field)) return this.send(intent);
    this.unsettle();
    // Include the client id, because a reloaded page restarts its count.
    const burst = `${this.intents.client}:${field}:${array}:${this.bursts}`;
    this.intents.hold({ ...intent, burst });
  }

  /** Shows another array immediately, even if the kernel is busy. @param {number} index */
  select(index) {
    this.chosen = index;
    this.cards.next.selected = index;
    this.edit("select", index);
    this.schedule();
  }

  /** Schedules one redraw for all traits of an answer, before the next frame. */
  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    queueMicrotask(() => this.draw());
  }

  /** Returns the kernel's view, with the array that the user clicked in the meantime selected. @param {View} view */
  withChosen(view) {
    const { chosen } = this;
    const differs = chosen !== null && chosen < view.arrays.length && view.selected !== chosen;
    if (differs && (!this.live || this.intents.pending)) return { ...view, selected: chosen };
    if (this.live) this.chosen = null;
    return view;
  }

  draw() {
    this.scheduled = false;
    const sent = readView((name) => this.get(name));
    if (!sent) return;
    const view = (this.view = this.withChosen(sent));
    answers.settled = this.intents.receive(view);
    if (view.client === this.intents.client) this.watch.answered(true);
    /** @type {"dark" | "light"} */
    const name = isDark() ? "dark" : "light";
    const theme = { ...this.get("palette")[name], name };
    this.root.dataset.theme = name;
    const devices = this.devicesOf(this.get("devices"));
    const { highlight } = this;
    highlight.axisNames = view.mesh.axes.map((axis) => axis.name);
    const sizes = view.mesh.axes.map((axis) => axis.size);
    highlight.setMesh(sizes, devices.ids, devices.hosts);
    highlight.setArrays(view.arrays);
    this.bar.show(view);
    this.problems.show(view);
    this.find.show(this.get("leaves"));
    this.compare.show(view);
    setText(this.failed, [...(view.failed ?? []), ...view.notes].join(" "));
    this.cards.show(view);
    this.rules.show(view);
    const pictures = view.arrays.map(({ picture }) => (picture ? this.picture(picture) : null));
    const links = this.linksOf(this.get("link_data"));
    this.panel.show({ view, devices, arrays: pictures, links, theme });
    if (this.views.open === "Model") this.leaves.show(this.get("leaves"), this.get("model_data"));
    this.showProgram(view, theme);
    if (answers.settled && this.chosenDim !== null) {
      this.rules.choose(view.selected, this.chosenDim);
      this.chosenDim = null;
    }
    this.lock(!this.editable);
    this.finish(view);
  }

  /** @param {import("./messages").PackedPicture} packed */
  picture(packed) {
    const unpacked = this.read.get(packed) ?? readPicture(packed);
    this.read.set(packed, unpacked);
    return unpacked;
  }

  /** @param {View} view @param {import("./colours.js").Theme} theme */
  showProgram(view, theme) {
    this.program.show({
      view,
      live: this.editable,
      devices: this.get("devices"),
      menus: this.get("menus"),
      report: this.get("report_data"),
      code: this.get("code_data"),
      stages: this.get("stages_data"),
      plan: this.get("plan_data"),
      timeline: this.get("timeline"),
      explanation: this.get("explanation"),
      background: this.get("background"),
      target: this.get("target"),
      theme,
      movements: this.get("movements"),
      changes_data: this.get("changes_data"),
      problems_data: this.get("problems_data"),
    });
  }

  /** Enables or disables all controls that need a kernel. @param {boolean} on */
  lock(on) {
    toggle(this.root, "sv-locked", on);
    const controls = "input, textarea, select, [data-edit]";
    for (const control of this.root.querySelectorAll(on ? controls : "[data-locked]")) {
      if (!(control instanceof HTMLElement) || control.dataset.keep) continue;
      const was = control.dataset.locked ?? String(control.hasAttribute("disabled"));
      control.toggleAttribute("disabled", on || was === "true");
      if (on) control.dataset.locked = was;
      else delete control.dataset.locked;
    }
  }

  /** Marks the page as drawn, sends waiting intents, and dispatches `shardviz:painted`. @param {View} view */
  finish({ seq }) {
    this.root.dataset.settled = String(answers.settled);
    this.root.dataset.seq = String(seq);
    this.intents.flush();
    const painted = new CustomEvent("shardviz:painted", { bubbles: true, detail: { seq } });
    requestAnimationFrame(() => this.root.dispatchEvent(painted));
  }

  /** @template {keyof Traits} K @param {K} name @returns {Traits[K]} */
  get(name) {
    return this.model.get(name) ?? /** @type {Traits[K]} */ ({});
  }

  destroy() {
    this.intents.stop();
    this.watch.stop();
    this.program.destroy();
    this.root.remove();
  }
}

/** Returns a function that decodes the devices; it keeps its last result. */
function deviceReader() {
  const [idsOf, hostsOf] = [keptNumbers(), keptNumbers()];
  return keepLast((/** @type {Traits["devices"]} */ devices) => {
    const { picture, ids = [0, 1], hosts = 0, size, buffers = [], ...words } = devices;
    return {
      ...words,
      picture: readPicture(picture),
      ids: idsOf(ids, buffers, size),
      hosts: hostsOf(hosts, buffers, size),
    };
  });
}

/** @param {Traits["link_data"]} links */
function drawnLinks({ key = "", words = "", edges = undefined, buffers = [] }) {
  return { key, words, edges: readEdges(edges, buffers) };
}

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const page = new Page(model, el);
  const draw = () => page.schedule();
  const traits = model.get("drawn") ?? [];
  for (const name of traits) model.on(`change:${name}`, draw);
  const hear = (/** @type {CustomMessage} */ message) => {
    page.watch.hear();
    if (message.kind === "alive") {
      page.hear(message);
      page.watch.line = message.line ?? page.watch.line;
    }
    if (message.kind === "file") download(message.name, message.text, message.media);
  };
  model.on("msg:custom", hear);
  const unwatch = watchTheme(draw);
  draw();
  // From now on, the kernel plans the program after every edit.
  if (page.live) page.act("plan");
  return () => {
    for (const name of traits) model.off?.(`change:${name}`, draw);
    model.off?.("msg:custom", hear);
    unwatch();
    page.destroy();
  };
}

/** @param {string} name @param {string} text @param {string} type */
function download(name, text, type) {
  const file = new Blob([text], { type });
  const link = h("a", { download: name, href: URL.createObjectURL(file) });
  document.body.append(link);
  link.click();
  link.remove();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export default { render };
