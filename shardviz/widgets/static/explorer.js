// @ts-check
// The Explorer's entry: takes the kernel's views, sends intents, keeps what is pointed at.
// Pointing, zooming and stepping through tabs never leave the page.
import { ArrayCards, MeshBar, RuleTable } from "./editors.js";
import { answers, h, toggle } from "./dom.js";
import { Links } from "./linked.js";
import { ProgramPanel } from "./program.js";
import { Stage } from "./stage.js";
import { readNumbers, readPicture } from "./wire.js";

/**
 * Typing sends one intent at a time; while it is under way only the newest text of each field is
 * kept.
 */
class Intents {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    // Several views may share one model: each listens for answers to its own intents.
    this.client = Math.random().toString(36).slice(2);
    this.sent = 0;
    this.answered = 0;
    /** @type {Map<string, any>} */ this.waiting = new Map();
  }

  /** @param {any} intent */
  send(intent) {
    const key = `${intent.kind}:${intent.field ?? ""}:${intent.array ?? ""}`;
    this.waiting.delete(key);
    this.waiting.set(key, intent);
    this.flush();
  }

  /**
   * Takes note of a view's answer; whether everything that was sent is answered.
   * @param {any} view
   */
  heard(view) {
    if (view.client === this.client) this.answered = Math.max(this.answered, view.seq);
    return this.answered >= this.sent && !this.waiting.size;
  }

  /** @param {number} seq */
  done(seq) {
    this.answered = Math.max(this.answered, seq);
    this.flush();
  }

  flush() {
    if (this.sent > this.answered || !this.waiting.size) return;
    const intents = [...this.waiting.values()];
    this.waiting.clear();
    this.model.send({ client: this.client, seq: ++this.sent, intents });
    // A kernel that is busy with a cell answers late; a lost answer must not lock the page.
    window.clearTimeout(this.timer);
    const mine = this.sent;
    this.timer = window.setTimeout(() => this.done(mine), 4000);
  }
}

/**
 * Whether what stands around the widget is dark.
 * @param {HTMLElement} node
 */
function isDark(node) {
  const body = document.body;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.dataset.vscodeThemeKind) return body.dataset.vscodeThemeKind.includes("dark");
  if (document.documentElement.dataset.theme)
    return document.documentElement.dataset.theme === "dark";
  if (document.documentElement.classList.contains("dark") || body.classList.contains("dark"))
    return true;
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const live = typeof model.send === "function" && !model.get("offline");
  const intents = new Intents(model),
    links = new Links();
  /**
   * @param {string} field
   * @param {any} value
   * @param {number} [array]
   */
  const edit = (field, value, array) => {
    if (live) tell({ kind: "edit", field, value, ...(array === undefined ? {} : { array }) });
  };
  const tell = (/** @type {any} */ intent) => {
    root.dataset.settled = "false";
    answers.settled = false; // no view has answered this yet
    intents.send(intent);
  };
  /** @type {number | null} */
  let chosen = null;
  const select = (/** @type {number} */ index) => {
    chosen = index;
    if (live) edit("select", index);
    schedule();
  };
  const bar = new MeshBar(links, edit, {
    save: () => tell({ kind: "save" }),
    theme: () => schedule(),
  });
  const cards = new ArrayCards(edit, select),
    rules = new RuleTable(edit);
  const stage = new Stage(
    links,
    (field, value) => (field === "select" ? select(value) : edit(field, value)),
    live,
  );
  const panel = new ProgramPanel(links, edit, (kind) => tell({ kind }), {
    why: (value) => {
      if (live) tell({ kind: "why", value });
    },
    light: (names) => cards.light(names),
    links: (key) => {
      if (live) tell({ kind: "links", value: key });
    },
    position: () => edit("by", "position"),
  });
  const root = h(
    "div",
    { class: "shardviz-explorer", "data-lm-suppress-shortcuts": "true" },
    bar.node,
    h(
      "div",
      { class: "sv-main" },
      h("aside", { class: "sv-left" }, cards.node, rules.node),
      stage.node,
    ),
    panel.node,
  );
  toggle(root, "sv-offline", !live);
  el.append(root);

  /** @type {any} */ let known = {};
  let asked = false;
  const pictures = () => {
    const shown = model.get("pictures");
    if (known.shown !== shown)
      known = {
        ...known,
        shown,
        list: shown.arrays.map((/** @type {any} */ p) => (p ? readPicture(p) : null)),
      };
    const devices = model.get("devices");
    if (known.devices !== devices)
      known = {
        ...known,
        devices,
        picture: readPicture(devices.picture),
        ids: readNumbers(devices.ids, devices.size),
        hosts: devices.hosts.byteLength
          ? readNumbers(devices.hosts, 0)
          : new Int32Array(devices.size),
      };
    const drawn = model.get("link_data") ?? {};
    if (known.drawn !== drawn)
      known = {
        ...known,
        drawn,
        links: { ...drawn, picture: drawn.picture ? readPicture(drawn.picture) : null },
      };
    return known;
  };

  function draw() {
    asked = false;
    let view = model.get("view");
    if (!view || !view.mesh) return;
    if (
      chosen !== null &&
      chosen < view.arrays.length &&
      view.selected !== chosen &&
      (!live || intents.sent > intents.answered)
    )
      view = { ...view, selected: chosen };
    else if (live) chosen = null;
    answers.settled = intents.heard(view);
    const dark = isDark(root),
      theme = { ...model.get("palette")[dark ? "dark" : "light"], name: dark ? "dark" : "light" };
    root.dataset.theme = theme.name;
    const { devices, list, picture, ids, hosts, links: drawn } = pictures();
    links.hues = theme.groups;
    links.axisNames = view.mesh.axes.map((/** @type {any} */ a) => a.name);
    links.setMesh(
      view.mesh.axes.map((/** @type {any} */ a) => a.size),
      ids,
      hosts,
    );
    links.setArrays(view.arrays);
    bar.show(view, model.get("target"), theme);
    cards.show(view);
    rules.show(view);
    stage.show(view, devices, picture, list, drawn, theme);
    panel.show({
      view,
      live,
      place: devices,
      report: model.get("report_data"),
      rungs: model.get("rungs_data"),
      plan: model.get("plan_data"),
      story: model.get("story"),
      background: model.get("background") ?? {},
      target: model.get("target"),
    });
    // Some controls only change what is looked at: they need no kernel.
    if (!live)
      for (const control of root.querySelectorAll("input, textarea, select"))
        if (!(/** @type {HTMLElement} */ (control).dataset.keep))
          control.setAttribute("disabled", "");
    root.dataset.settled = String(answers.settled);
    root.dataset.seq = String(view.seq);
    intents.flush();
    const seq = view.seq;
    requestAnimationFrame(() =>
      root.dispatchEvent(new CustomEvent("shardviz:painted", { bubbles: true, detail: { seq } })),
    );
  }

  function schedule() {
    if (asked) return;
    asked = true;
    // Once for all traits of an answer, and before the next frame begins rather than in it.
    queueMicrotask(draw);
  }

  const names = [
    "view",
    "pictures",
    "devices",
    "report_data",
    "target",
    "rungs_data",
    "plan_data",
    "story",
    "background",
    "link_data",
  ];
  for (const name of names) model.on(`change:${name}`, schedule);
  model.on("msg:custom", (/** @type {any} */ message) => {
    if (message.kind === "page") download(message.name, message.html);
  });
  const watch = new MutationObserver(schedule);
  watch.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind", "class"],
  });
  watch.observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme", "class"],
  });
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", schedule);
  schedule();
  // Somebody looks: from now on the program is planned after every edit.
  if (live) tell({ kind: "plan" });
  return () => {
    for (const name of names) model.off?.(`change:${name}`, schedule);
    watch.disconnect();
    scheme.removeEventListener("change", schedule);
    stage.destroy();
    panel.destroy();
    root.remove();
  };
}

/** @param {string} name @param {string} html */
function download(name, html) {
  const link = h("a", {
    download: name,
    href: URL.createObjectURL(new Blob([html], { type: "text/html" })),
  });
  document.body.append(link);
  link.click();
  link.remove();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export default { render };
