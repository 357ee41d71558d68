// @ts-check
// The bottom: the program, its rungs, and a tab for each thing one asks of it.
import { CollectivesPanel, failureNote } from "./collectives.js";
import { Choice, button, fill, h, setText, toggle } from "./dom.js";
import { memoryBody } from "./memory.js";
import { ShardRows } from "./rows.js";
import { RungRow } from "./rungs.js";
import { ValuesPanel } from "./values.js";

/** @typedef {import("./linked.js").Links} Links */

const TABS = ["Values", "Collectives", "Memory", "Checks", "Effects", "Cache", "Shards", "Code"];

export class ProgramPanel {
  /** @param {Links} links @param {(field: string, value: any) => void} edit @param {(kind: string) => void} act @param {{why: (name: string) => void, light: (names: string[] | null) => void, links: (key: string | null) => void, position: () => void}} calls */
  constructor(links, edit, act, calls) {
    this.program = new Choice("Program", (v) => edit("program", v), "Program");
    this.compile = button("Compile", () => act("compile"), { "aria-label": "Compile" });
    this.run = button("Run", () => act("run"), { class: "sv-button sv-primary", "aria-label": "Run" });
    this.cancel = button("Cancel", () => act("cancel"), { hidden: true, "aria-label": "Cancel" });
    this.status = h("span", { class: "sv-status", role: "status", "aria-live": "polite" });
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.lost = h("div", { class: "sv-warn sv-lost", role: "status" });
    this.rungs = new RungRow({ rung: (i) => this.openRung(i ? String(i) : ""), mark: (from, to) => this.openRung(from ? `${from}-${to}` : "") });
    this.collectives = new CollectivesPanel(links, { shown: () => this.refresh(), value: (name) => this.openValue(name), links: calls.links, position: calls.position });
    this.values = new ValuesPanel(calls);
    this.links = links;
    this.tabs = h("div", { class: "sv-tabs", role: "tablist", on: { keydown: (/** @type {KeyboardEvent} */ e) => this.tabKey(e) } });
    this.body = h("div", { class: "sv-body", role: "tabpanel", tabindex: "0", "data-lm-suppress-shortcuts": "true" });
    this.rows = new ShardRows(links);
    this.tab = "Collectives";
    this.node = h("footer", { class: "sv-program" },
      h("div", { class: "sv-headrow" }, this.program.node, this.status, h("span", { class: "sv-actions" }, this.cancel, this.compile, this.run)),
      this.error, this.lost, this.rungs.node, this.tabs, this.body);
    for (const name of TABS) this.tabs.append(h("button", { type: "button", role: "tab", class: "sv-tab", text: name, id: undefined, "data-lm-suppress-shortcuts": "true", on: { click: () => this.open(name) } }));
    /** @type {any} */ this.view = null;
    /** @type {any} */ this.report = null;
    /** @type {any} */ this.data = null;
    /** @type {any} */ this.background = null;
    /** @type {any} */ this.target = null;
    this.act = act;
    this.live = false;
    this.asked = -1;
    this.clock = 0;
    this.began = 0;
    this.job = 0;
    this.bodyKey = "";
  }

  /** @param {KeyboardEvent} e */
  tabKey(e) {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    e.preventDefault();
    e.stopPropagation();
    const next = (TABS.indexOf(this.tab) + step + TABS.length) % TABS.length;
    this.open(TABS[next]);
    /** @type {any} */ (this.tabs.children[next]).focus();
  }

  /** @param {string} name */
  open(name) {
    this.tab = name;
    this.bodyKey = "";
    this.refresh();
    this.ask();
  }

  /** A rung or what changed between two, in the tab Collectives; what was requested is in Values. @param {string} what */
  openRung(what) {
    // Why there is no plan, and what would be accepted, stands in the tab Values.
    if (what === "1" && this.data.rungs[0].state === "failed") what = "";
    const again = this.tab === "Collectives" && this.collectives.shown === what;
    this.open(what ? "Collectives" : "Values");
    // A second click lets go: the rungs side by side again.
    if (what) this.collectives.open(again ? "all" : what);
    this.refresh();
  }

  /** @param {string} name */
  openValue(name) {
    this.open("Values");
    const at = this.values.plan?.numbers.get(name);
    if (at !== undefined) this.values.pick(at);
    this.values.grid.focus();
  }

  /** Effects are read when somebody looks at them, and again when the program was edited. */
  ask() {
    if (this.tab !== "Effects" || !this.live || this.asked === this.view.revision) return;
    this.asked = this.view.revision;
    this.act("effects");
  }

  /** @param {{view: any, report: any, live: boolean, place: any, rungs: any, plan: any, story: any, background: any, target: any}} shown */
  show({ view, report, live, place, rungs, plan, story, background, target }) {
    Object.assign(this, { view, report, live, data: rungs, background, target });
    this.program.sync(view.program.options, view.program.value);
    setText(this.error, [view.program.error, ...view.notes].filter(Boolean).join(" "));
    setText(this.lost, view.program.lost);
    const running = report.state === "running";
    for (const b of [this.compile, this.run]) b.disabled = running || !live;
    this.cancel.hidden = !running;
    this.tick(report);
    this.collectives.offer(live && place.places && place.by !== "position");
    this.values.show(plan);
    this.values.showStory(story);
    this.refresh();
    this.ask();
  }

  /** The rungs and the open tab, from what is known. */
  refresh() {
    if (!this.view) return;
    const shown = this.tab === "Collectives" ? this.collectives.shown : "";
    this.rungs.show(this.view, this.data, this.background, this.target.value, this.live, shown);
    this.showBody();
  }

  /** The stage and a clock while something runs. @param {any} report */
  tick(report) {
    window.clearInterval(this.clock);
    if (report.state !== "running") {
      this.began = 0;
      setText(this.status, report.stale ? `${report.verdict ? `${report.verdict} · ` : ""}stale: the program was edited since` : report.verdict);
      toggle(this.status, "sv-warn", Boolean(report.stale));
      return;
    }
    if (!this.began || this.job !== report.started) { this.began = Date.now(); this.job = report.started; }
    const say = () => setText(this.status, `${report.stage} · ${((Date.now() - this.began) / 1000).toFixed(1)} s`);
    say();
    toggle(this.status, "sv-warn", false);
    this.clock = window.setInterval(say, 100);
  }

  showBody() {
    [...this.tabs.children].forEach((t, i) => {
      const on = TABS[i] === this.tab;
      t.setAttribute("aria-selected", String(on));
      t.setAttribute("tabindex", on ? "0" : "-1");
    });
    this.body.setAttribute("aria-label", `Tab ${this.tab}`);
    const panel = { Shards: this.rows, Values: this.values, Collectives: this.collectives }[this.tab];
    if (panel) {
      const fresh = this.body.firstChild !== panel.node;
      if (fresh) fill(this.body, panel.node);
      if (panel === this.rows) this.rows.show(this.view);
      else if (panel === this.collectives) this.collectives.show(this.data, this.view, this.target.value);
      else if (fresh) this.values.paint();
      return;
    }
    const { code, ...rest } = this.report, key = this.tab + JSON.stringify(this.tab === "Code" ? code : [{ ...rest, stage: "" }, this.tab === "Memory" ? this.data.memory : null]);
    if (key === this.bodyKey) return;
    this.bodyKey = key;
    fill(this.body, ...(this.tab === "Code" ? codeBody(code) : reportBody(this.tab, this.report, this.act, this.data)));
  }

  destroy() {
    window.clearInterval(this.clock);
    this.rungs.destroy();
    this.values.destroy();
  }
}

/** @param {string} tab @param {any} report @param {(kind: string) => void} act @param {any} data the rungs @returns {Node[]} */
function reportBody(tab, report, act, data) {
  if (tab === "Effects") return effectsBody(report.effects, act);
  if (tab === "Cache") return cacheBody(report.cache);
  if (tab === "Memory") return memoryBody(data.memory, data.rungs[2].state !== "none");
  const parts = [];
  if (report.error) parts.push(failureNote(report.error.title, report.error.message, report.error.source));
  if (report.state === "none" || (report.state === "running" && !report.times.length)) parts.push(h("p", { class: "sv-muted", text: "Not run yet: press Run to hold the prediction against what happens." }));
  else parts.push(...checksBody(report));
  return parts;
}

/** @param {any} report */
function checksBody(report) {
  const mark = (/** @type {any} */ ok) => (ok === true ? ["✓", "sv-good", "holds"] : ok === false ? ["✗", "sv-bad", "fails"] : ["–", "sv-muted", "not checked"]);
  const parts = [];
  if (report.times.length) parts.push(h("div", { class: "sv-times" }, ...report.times.map((/** @type {any} */ t) => h("span", null, h("span", { class: "sv-muted", text: `${t[0]} ` }), t[1]))));
  if (!report.checks.length && !report.error) parts.push(h("p", { class: "sv-muted", text: "Compiled, and nothing was executed: press Run to hold the prediction against what happens." }));
  parts.push(h("table", { class: "sv-table" }, h("tbody", null, ...report.checks.map((/** @type {any} */ c) => {
    const [sign, cls, word] = mark(c.ok);
    return h("tr", null, h("td", { class: cls, text: sign, "aria-label": word }), h("td", { text: c.name }), h("td", { class: "sv-muted", text: c.detail }));
  }))));
  return parts;
}

/** @param {string[]} titles @param {Array<Array<Node | string>>} rows */
function table(titles, rows) {
  return h("table", { class: "sv-table" }, h("thead", null, h("tr", null, ...titles.map((t) => h("th", { text: t, scope: "col" })))),
    h("tbody", null, ...rows.map((row) => h("tr", null, ...row.map((cell) => h("td", null, cell))))));
}

/** @param {any} effects @param {(kind: string) => void} act @returns {Node[]} */
function effectsBody(effects, act) {
  if (effects.state !== "done") return [h("p", { class: "sv-muted", text: effects.state === "reading" ? "Reading the program's effects…" : "Effects are read from a live kernel." })];
  if (effects.problem) return [h("div", { class: "sv-failure", role: "alert" }, h("span", { class: "sv-prewrap", text: effects.problem }))];
  const parts = [h("p", null, h("b", { class: effects.runs ? "sv-good" : "sv-bad", text: effects.runs ? "✓ " : "✗ " }), effects.sentence)];
  if (effects.rows.length) parts.push(table(["effect", "ordered", "on many devices", "allowed in", "inside", ""], effects.rows.map((/** @type {any} */ e) =>
    [e.name, e.ordered ? "yes" : "no", e.shardable ? "yes" : "no", e.where, e.nesting.join(", "), e.note])));
  else parts.push(h("p", { class: "sv-muted", text: "It has no effects: it only computes." }));
  for (const token of effects.tokens) parts.push(h("div", { class: "sv-mono sv-muted", text: token }));
  if (effects.note) parts.push(h("p", { class: "sv-muted", text: effects.note }));
  if (effects.rows.length && effects.runs) parts.push(...observedBody(effects, act));
  return parts;
}

/** The order in which effects really happened, up to the barrier. @param {any} effects @param {(kind: string) => void} act @returns {Node[]} */
function observedBody(effects, act) {
  const watch = button(effects.watching ? "Running…" : "Run and write down the order", () => act("observe"), { class: "sv-button sv-watch" });
  watch.disabled = Boolean(effects.watching);
  const parts = [h("div", { class: "sv-times" }, watch)];
  if (effects.failed) parts.push(h("div", { class: "sv-failure", role: "alert" }, h("span", { class: "sv-prewrap", text: effects.failed })));
  if (!effects.observed) return parts;
  if (!effects.observed.length && !effects.failed) parts.push(h("p", { class: "sv-muted", text: "Nothing happened before the barrier." }));
  const rows = effects.observed.map((/** @type {any} */ e) => [String(e.number + 1), e.device === null ? "–" : String(e.device), e.ordered ? "ordered" : h("span", { class: "sv-warn", text: "unordered" }), e.name, h("code", { text: `${e.what} ${e.values}` })]);
  if (rows.length) parts.push(table(["happened", "device", "order", "effect", "what"], rows), h("p", { class: "sv-muted", text: "Up to the barrier. Unordered events may come in another order the next time; ordered ones keep theirs on each device." }));
  return parts;
}

/** @param {any} cache @returns {Node[]} */
function cacheBody(cache) {
  const parts = [h("div", { class: "sv-times" }, ...[["executables", `${cache.rows.length} of ${cache.size}`], ["hits", cache.hits], ["misses", cache.misses]].map(([k, v]) => h("span", null, h("span", { class: "sv-muted", text: `${k} ` }), String(v))))];
  const known = (cache.history ?? []).map((/** @type {any} */ r) => [r.what, h("span", { class: r.found === "hit" ? "sv-good" : "", text: r.found }), r.why, h("span", { class: "sv-muted", text: r.jax })]);
  if (known.length) parts.push(table(["what", "cache", "why it compiled", "jax's own caches could not spare"], known));
  if (cache.rows.length) parts.push(table(["program", "key", "compiled in", "hits", "waited"], cache.rows.map((/** @type {any} */ r) => [r.name, h("code", { text: r.key }), r.compile, String(r.hits), String(r.waited)])));
  else parts.push(h("p", { class: "sv-muted", text: known.length ? "Nothing of it was kept." : "Nothing was compiled yet. What is compiled once is kept, and found again by its fingerprint." }));
  return parts;
}

/** @param {string} code @returns {Node[]} */
function codeBody(code) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Select the text and copy it";
    }
    window.setTimeout(() => { copy.textContent = "Copy"; }, 1600);
  }, { class: "sv-button sv-copy" });
  return [copy, h("pre", { class: "sv-code sv-mono", text: code, tabindex: "0" })];
}
