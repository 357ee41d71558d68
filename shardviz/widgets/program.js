// @ts-check
// The bottom: the program, its rungs, and a tab for each thing one asks of it.
import { Choice, button, fill, h, setText, toggle } from "./dom.js";
import { ShardRows } from "./rows.js";

/** @typedef {import("./linked.js").Links} Links */

const TABS = ["Checks", "Collectives", "Memory", "Effects", "Cache", "Shards", "Code"];

export class ProgramPanel {
  /** @param {Links} links @param {(field: string, value: any) => void} edit @param {(kind: string) => void} act */
  constructor(links, edit, act) {
    this.program = new Choice("Program", (v) => edit("program", v), "Program");
    this.compile = button("Compile", () => act("compile"), { "aria-label": "Compile" });
    this.run = button("Run", () => act("run"), { class: "sv-button sv-primary", "aria-label": "Run" });
    this.cancel = button("Cancel", () => act("cancel"), { hidden: true, "aria-label": "Cancel" });
    this.status = h("span", { class: "sv-status", role: "status", "aria-live": "polite" });
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.rungs = h("div", { class: "sv-rungs" });
    this.requested = rung("Requested");
    this.compiled = rung("Compiled");
    fill(this.rungs, this.requested.node, this.compiled.node);
    this.tabs = h("div", { class: "sv-tabs", role: "tablist", on: { keydown: (/** @type {KeyboardEvent} */ e) => this.tabKey(e) } });
    this.body = h("div", { class: "sv-body", role: "tabpanel", tabindex: "0", "data-lm-suppress-shortcuts": "true" });
    this.rows = new ShardRows(links);
    this.tab = "Checks";
    this.node = h("footer", { class: "sv-program" },
      h("div", { class: "sv-headrow" }, this.program.node, this.status, h("span", { class: "sv-space" }), this.cancel, this.compile, this.run),
      this.error, this.rungs, this.tabs, this.body);
    for (const name of TABS) this.tabs.append(h("button", { type: "button", role: "tab", class: "sv-tab", text: name, id: undefined, "data-lm-suppress-shortcuts": "true", on: { click: () => this.open(name) } }));
    /** @type {any} */ this.view = null;
    /** @type {any} */ this.report = null;
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
    this.showBody();
    this.ask();
  }

  /** Effects are read when somebody looks at them, and again when the program was edited. */
  ask() {
    if (this.tab !== "Effects" || !this.live || this.asked === this.view.revision) return;
    this.asked = this.view.revision;
    this.act("effects");
  }

  /** @param {any} view @param {any} report @param {boolean} live whether there is a kernel */
  show(view, report, live) {
    this.view = view;
    this.report = report;
    this.live = live;
    this.program.sync(view.program.options, view.program.value);
    setText(this.error, [view.program.error, ...view.notes].filter(Boolean).join(" "));
    const running = report.state === "running";
    for (const b of [this.compile, this.run]) b.disabled = running || !live;
    this.cancel.hidden = !running;
    this.tick(report);
    setText(this.requested.text, view.program.requested);
    setText(this.requested.more, view.program.requestedBytes);
    toggle(this.requested.node, "sv-broken", view.program.problems.length > 0);
    setText(this.compiled.title, report.rung.title);
    setText(this.compiled.text, report.rung.text);
    setText(this.compiled.more, report.rung.more);
    toggle(this.compiled.node, "sv-on", report.state === "done");
    toggle(this.compiled.node, "sv-broken", report.state === "failed");
    toggle(this.compiled.node, "sv-old", Boolean(report.stale));
    this.showBody();
    this.ask();
  }

  /** The stage and a clock while something runs. @param {any} report */
  tick(report) {
    window.clearInterval(this.clock);
    if (report.state !== "running") {
      this.began = 0;
      setText(this.status, report.stale ? "stale: the program was edited since" : "");
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
    this.body.setAttribute("aria-label", this.tab);
    if (this.tab === "Shards") {
      if (this.body.firstChild !== this.rows.node) fill(this.body, this.rows.node);
      this.rows.show(this.view);
      return;
    }
    const { code, ...rest } = this.report, key = this.tab + JSON.stringify(this.tab === "Code" ? code : { ...rest, stage: "" });
    if (key === this.bodyKey) return;
    this.bodyKey = key;
    fill(this.body, ...(this.tab === "Code" ? codeBody(code) : reportBody(this.tab, this.report, this.act)));
  }

  destroy() {
    window.clearInterval(this.clock);
  }
}

/** @param {string} name */
function rung(name) {
  const title = h("div", { class: "sv-rungtitle", text: name }), text = h("div", { class: "sv-rungtext" }), more = h("span", { class: "sv-rungmore" });
  return { title, text, more, node: h("div", { class: "sv-rung" }, title, h("div", { class: "sv-line" }, text, more)) };
}

/** @param {string} tab @param {any} report @param {(kind: string) => void} act @returns {Node[]} */
function reportBody(tab, report, act) {
  const parts = [];
  if (tab === "Effects") return effectsBody(report.effects, act);
  if (tab === "Cache") return cacheBody(report.cache);
  if (report.error) parts.push(h("div", { class: "sv-failure", role: "alert" }, h("b", { text: `${report.error.title}. ` }), h("span", { class: "sv-prewrap", text: report.error.message }), report.error.source ? h("code", { text: report.error.source }) : null));
  if (report.state === "none" || (report.state === "running" && !report.rung.more)) parts.push(h("p", { class: "sv-muted", text: "Not compiled yet: press Compile, or Run to see it happen." }));
  else if (tab === "Checks") parts.push(...checksBody(report));
  else if (tab === "Collectives") parts.push(collectivesBody(report));
  else parts.push(...memoryBody(report));
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

/** @param {any} report */
function collectivesBody(report) {
  if (!report.collectives.length) return h("p", { class: "sv-muted", text: report.error ? "No compiled program to read." : "No collectives: no device needs another's data." });
  const head = h("tr", null, ...["bytes a device", "kind", "over", "cause", "line"].map((t) => h("th", { text: t, scope: "col" })));
  return h("table", { class: "sv-table" }, h("thead", null, head), h("tbody", null, ...report.collectives.map((/** @type {any} */ c) => h("tr", null,
    h("td", null, bar(c.share), c.bytes), h("td", null, c.kind, ...c.tags.map((/** @type {string} */ t) => h("span", { class: "sv-tag", text: t }))),
    h("td", null, ...c.axes.map((/** @type {string} */ a) => h("span", { class: "sv-tag", text: a }))), h("td", { class: "sv-cause", text: c.cause, title: c.op }), h("td", { class: "sv-mono sv-muted", text: c.source })))));
}

/** @param {any} report */
function memoryBody(report) {
  if (!report.memory.length) return [h("p", { class: "sv-muted", text: "The compiler gave no memory figures." })];
  return [h("table", { class: "sv-table" }, h("tbody", null, ...report.memory.map((/** @type {any} */ m) => h("tr", null, h("td", null, bar(m.share), m.bytes), h("td", { text: m.name }), h("td", { class: "sv-muted", text: m.note }))))),
    h("div", { class: "sv-times" }, ...report.cost.map((/** @type {any} */ c) => h("span", null, h("span", { class: "sv-muted", text: `${c[0]} ` }), c[1])))];
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
  if (effects.rows.length) parts.push(table(["effect", "ordered", "on many devices", "allowed in", "stands in", ""], effects.rows.map((/** @type {any} */ e) =>
    [e.name, e.ordered ? "yes" : "no", e.shardable ? "yes" : "no", e.where, e.stands.join(", "), e.note])));
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

/** @param {number} share of the longest bar */
function bar(share) {
  return h("span", { class: "sv-barcell" }, h("span", { class: "sv-fill", style: { width: `${Math.max(2, share * 100)}%` } }));
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
