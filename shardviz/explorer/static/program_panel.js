// @ts-check
// The Program view: the stages of a program, its least time, and tabs with details.
import { ChosenCollective, find } from "./chosen.js";
import { CollectivesPanel, failureNote, stateText } from "./collectives.js";
import { Choice, tabRow } from "./controls.js";
import { button, fill, h, iconButton, isNew, setText, toggle } from "./dom.js";
import { Headline } from "./headline.js";
import { MemoryPanel } from "./memory_panel.js";
import { outOfDate, reportTab } from "./report_tabs.js";
import { Player } from "./player.js";
import { Clock, OUT_OF_DATE, StageRow, isCurrent, stageState } from "./stages.js";
import { TimelinePanel } from "./timeline.js";
import { ValuesPanel } from "./values.js";
import { besideView } from "./views.js";

/** @import { Report } from "./report_tabs.js" */
/** @typedef {Pick<import("./messages").Traits, "menus" | "devices" | "explanation" | "movements" | "timeline" | "changes_data" | "problems_data">} Parts */
/**
 * The data that the panel shows.
 * @typedef {import("./stages.js").KnownStages & Parts & {code: Record<string, string>,
 *   plan: import("./plan_data.js").PlanView, theme: import("./colours.js").Theme}} Shown
 */

const MEASURE = "Measure: a run also times each operation; the Timeline tab shows the times";
const TABS = ["Timeline", "Collectives", "Values", "Memory", "Checks", "Code"];

export class ProgramPanel {
  /** @param {import("./highlight.js").Highlight} highlight @param {import("./explorer.js").Requests} page */
  constructor(highlight, page) {
    this.page = page;
    this.program = new Choice("Program", (v) => page.edit("program", v));
    this.compile = button("Compile", () => page.act("compile"), { "aria-label": "Compile" });
    const turn = () => this.measure.setAttribute("aria-pressed", String(!this.measures));
    this.measure = iconButton("timer", "Measure", turn, {
      "aria-pressed": "false",
      title: MEASURE,
    });
    const run = () => page.act(this.measures ? "measure" : "run");
    this.run = button("Run", run, { "aria-label": "Run" });
    this.cancel = button("Cancel", () => page.act("cancel"), { "aria-label": "Cancel" });
    this.status = h("span", { class: "sv-status sv-muted sv-cut", role: "status" });
    this.lost = h("div", { class: "sv-warn sv-lost", role: "status" });
    this.stages = new StageRow(this);
    this.headline = new Headline(this);
    this.chosen = new ChosenCollective(highlight, this);
    this.collectives = new CollectivesPanel(this);
    this.memory = new MemoryPanel(this);
    this.values = new ValuesPanel(page);
    this.timeline = new TimelinePanel(this);
    this.player = new Player({ close: () => this.closePlayer() });
    /** Why a page without a kernel has no plan. */
    this.never = "";
    /** Why the program has no plan, above the tabs that need one. */
    this.noPlan = { key: "", node: h("div", { class: "sv-noplan", hidden: true }) };
    /** True while the player is open. */
    this.playing = false;
    /** The collective, stages and target of the requested steps. @type {[string, object | null, string]} */
    this.playedOf = ["", null, ""];
    this.tabs = tabRow(TABS, { class: "sv-tabs" }, "sv-tab", (name) => this.open(name));
    this.body = h("div", { class: "sv-body", role: "tabpanel", tabindex: "0" });
    this.tab = "Timeline";
    this.picked = false;
    this.bodyKey = "";
    /** @type {Shown | null} */ this.shown = null;
    /** The revision whose effects were requested. */
    this.effectsOf = -1;
    this.codeAsked = false;
    this.clock = new Clock((seconds) =>
      setText(this.status, `${this.shown?.report.stage} ${seconds.toFixed(1)} s`),
    );
    this.drawnBy = "";
    this.beside = besideView();
    this.node = this.build();
  }

  build() {
    const buttons = [this.cancel, this.compile, this.run, this.measure];
    const actions = h("span", { class: "sv-actions" }, ...buttons);
    const tabs = h("div", { class: "sv-tabline" }, this.tabs.node, this.status, actions);
    const left = h("div", { class: "sv-programleft" }, tabs, this.noPlan.node, this.body);
    this.main = h("div", { class: "sv-programmain" }, left, this.beside);
    return h(
      "section",
      { class: "sv-view sv-program" },
      h("div", { class: "sv-progline" }, this.program.node, this.stages.node),
      this.lost,
      this.headline.node,
      this.main,
    );
  }

  /** Whether a run also measures. */
  get measures() {
    return this.measure.getAttribute("aria-pressed") === "true";
  }

  /** @param {string} name */
  open(name) {
    this.playing = false;
    this.picked = true;
    this.tab = name;
    this.bodyKey = "";
    this.refresh();
    this.askForContent();
  }

  /** Opens what a part of the headline is about. @param {string} part "memory", "compute", ..., or a collective's key */
  openPart(part) {
    if (part.includes(":")) return this.openCollective(part);
    if (part === "collectives") {
      // The bar is that of the plan, or of the compile.
      this.open("Collectives");
      this.collectives.open(this.headline.byPlan ? "1" : "");
      return this.refresh();
    }
    this.open(part === "peak" ? "Memory" : "Timeline");
    if (part !== "peak") this.timeline.chooseLongest(part);
  }

  /** Shows the changes from a stage to the next. @param {number} from 0 for requested */
  openChange(from) {
    if (from) this.openCollectives(`${from}-${from + 1}`);
    else this.open("Values");
  }

  /** Opens the tab of a stage. @param {number} index 0 for requested, 1 for propagated, ... */
  openStage(index) {
    // If planning failed, open the Values tab, which explains why and shows edits that jax accepts.
    const refused = index === 1 && this.shown?.stages.stages[0].state === "failed";
    if (index === 0 || refused) return this.open("Values");
    if (index === 4) return this.open("Checks");
    this.openCollectives(String(index));
  }

  /** Shows the collectives of a stage or changes between stages; on a second click, the latest stage. @param {string} asked */
  openCollectives(asked) {
    const again = this.tab === "Collectives" && this.collectives.asked === asked;
    this.open("Collectives");
    this.collectives.open(again ? "" : asked);
    this.refresh();
  }

  /** Shows a collective in its table. @param {string} key stage and index, such as "2:0" */
  openCollective(key) {
    this.open("Collectives");
    this.collectives.open(String(Number(key[0]) + 1));
    this.choose(key);
    this.collectives.focus();
    document.activeElement?.scrollIntoView({ block: "nearest" });
  }

  /** Selects a collective, or none. @param {string | null} key */
  choose(key) {
    if (this.shown) this.chosen.choose(this.shown.stages, key);
    this.refresh();
  }

  /** Shows the values of a source line. @param {string} line */
  openLine(line) {
    this.open("Values");
    this.values.search(line);
  }

  /** Returns what Find can find: text -> the first such collective of the latest stage, and lines of code. */
  found() {
    const { values, shown } = this;
    /** @type {Map<string, string>} */
    const collectives = new Map();
    const lines = new Set(values.old ? [] : values.plan?.values.map(({ source }) => source));
    const known = (/** @type {number} */ i) =>
      shown && /live|estimate/.test(stageState(shown.stages, i, shown.view.revision, shown.target));
    const stage = [2, 1, 0].find(known) ?? -1;
    for (const c of shown?.stages.collectives?.[stage] ?? []) {
      const name = [`${c.kind} over ${c.axes.join(" × ")}`, c.bytes, c.source].join(" · ");
      if (!collectives.has(name)) collectives.set(name, `${stage}:${c.number}`);
    }
    lines.delete("");
    return { collectives, lines };
  }

  /** Whether there is space to show the devices next to the table. */
  get hasSpaceBeside() {
    return !this.main?.classList.contains("sv-withlinks") && this.beside.offsetParent !== null;
  }

  /** Shows the devices by position, with the links of the selected collective. */
  showLinks() {
    const beside = this.hasSpaceBeside;
    const on = !beside && (this.main?.classList.toggle("sv-withlinks") ?? false);
    this.chosen.links.setAttribute("aria-pressed", String(on));
    if ((on || beside) && this.drawnBy !== "position") this.page.edit("by", "position");
  }

  /** Opens the player in place of the tab, with the steps of a collective or a value. @param {string} key */
  openPlayer(key) {
    this.playing = true;
    this.player.open(key);
    this.playedOf = ["", null, ""];
    this.refresh();
    this.player.picture.node.focus({ preventScroll: true });
  }

  closePlayer() {
    this.playing = false;
    this.player.transport.stop();
    this.refresh();
    this.body.focus({ preventScroll: true });
  }

  /**
   * Requests the steps to play, unless they were already requested for the current stages.
   * @param {Shown} shown
   */
  askForSteps({ live, stages, target: { value: target } }) {
    const { key } = this.player;
    const [of, at, on] = this.playedOf;
    if (!live || (of === key && at === stages && on === target)) return;
    this.playedOf = [key, stages, target];
    this.page.ask("play", key);
  }

  /** @param {string} name */
  openValue(name) {
    this.open("Values");
    this.values.pickByName(name);
  }

  /**
   * Requests the code or the effects if their tab is open. Effects are requested again after every
   * edit of the program.
   */
  askForContent() {
    const { shown } = this;
    if (this.tab === "Code" && shown?.live && !("JAX" in shown.code) && !this.codeAsked) {
      this.codeAsked = true;
      this.page.act("code");
    }
    if (this.tab !== "Checks" || !shown?.live || this.effectsOf === shown.view.revision) return;
    this.effectsOf = shown.view.revision;
    this.page.act("effects");
  }

  /** @param {Shown} shown */
  show(shown) {
    this.shown = shown;
    const { view, menus, report, live, devices, plan, explanation, movements, timeline } = shown;
    // Described hardware cannot run programs.
    const { noRun = "" } = shown.target;
    this.chosen.canPlay = (key) => live || Boolean(movements[key]);
    // Until the user chooses a tab, show a compile error, or the timeline if there are times.
    const failed = shown.stages.error && !isOutOfDate(shown);
    const untimed = isCurrent(shown.timeline, shown) && !("lanes" in timeline);
    if (!this.picked) this.tab = failed || untimed ? "Collectives" : "Timeline";
    const { program } = view;
    this.program.sync(menus.programs, program.value);
    this.program.node.title = program.value;
    setText(this.lost, program.lost ?? "");
    const running = report.state === "running";
    for (const control of [this.compile, this.run, this.measure]) {
      control.hidden = running;
      control.disabled = !live;
    }
    this.measure.disabled = this.run.disabled ||= Boolean(noRun);
    this.run.title = noRun;
    this.cancel.hidden = !running;
    this.drawnBy = devices.by;
    const linksVisible = this.hasSpaceBeside && devices.by === "position";
    this.chosen.links.hidden = !live || Boolean(devices.no_positions) || linksVisible;
    this.never = live ? "" : stateText(shown.stages, 0);
    this.values.show(plan, hasNoPlan(shown), this.never);
    toggle(this.values.node, "sv-vold", isOutOfDate(shown, 0));
    const why = /** @type {import("./value_details.js").Explanation} */ (explanation);
    if (why.value) this.values.showExplanation(why);
    this.refresh();
    this.askForContent();
  }

  /** Shows changes that would remove the selected collective or lower peak memory. */
  showChanges() {
    if (!this.shown) return;
    const { changes_data: data, live } = this.shown;
    const current = isCurrent(data, this.shown);
    this.chosen.changes.of = this.chosen.key ?? "";
    for (const { changes } of [this.chosen, this.memory]) changes.show(data, current, live);
  }

  /** Shows the selected collective in the open tab. @param {Shown} shown */
  showChosen(shown) {
    const { stages } = shown;
    const { chosen, timeline } = this;
    if (!find(stages, chosen.key) && chosen.key !== null && timeline.indexOf(chosen.key) < 0) {
      chosen.choose(stages, null);
    }
    const { key } = chosen;
    timeline.pick(key, Boolean(find(stages, key)));
    chosen.show(stages, isOutOfDate(shown, Number(key?.[0] ?? 0)), timeline.timeOf(key));
  }

  /** Updates the stages, the headline and the open tab. */
  refresh() {
    const { shown } = this;
    if (!shown) return;
    const { stages, view, target } = shown;
    this.showChosen(shown);
    if (this.tab === "Collectives") {
      this.collectives.show(stages, view.revision, target, this.chosen.key);
    }
    const about = { Collectives: this.collectives.shown, Checks: "4" }[this.tab] ?? "";
    this.stages.show(shown, about);
    const { report } = shown;
    const old = isOutOfDate(shown);
    const none = shown.live ? null : undefined;
    this.planned = isCurrent(shown.timeline, shown) ? shown.timeline.headline : none;
    this.headline.show(stages.headline, this.planned, stages.axes, old, shown.live);
    this.showStatus(report, old ? OUT_OF_DATE : outOfDate(report, isCurrent(report, shown)));
    this.showChanges();
    this.showNoPlan(shown);
    this.tabs.mark(this.tab);
    this.body.setAttribute("aria-label", `Tab ${this.tab}`);
    this.showBody(shown);
  }

  /**
   * Shows the result of the last job, or the running job with its time.
   * @param {Report} report
   * @param {string} old a note that the program was edited since the job
   */
  showStatus(report, old) {
    const running = report.state === "running";
    toggle(this.status, "sv-warn", Boolean(old) && !running);
    if (running) return this.clock.run(String(report.started));
    this.clock.stop();
    const last = report.cancelled ?? (old || report.verdict);
    this.status.title = last;
    setText(this.status, last);
  }

  /** Lists why the program cannot be planned: its inputs, or else the error. @param {Shown} shown */
  showNoPlan(shown) {
    const { problems_data: problems, stages, view, live } = shown;
    const { noPlan } = this;
    noPlan.node.hidden = !hasNoPlan(shown) || this.playing || /Checks|Code/.test(this.tab);
    const current = problems.revision === view.revision ? problems.rows : [];
    const rows = current.filter(({ code }) => code === "no layout");
    const [{ title }] = stages.stages;
    if (!isNew(noPlan, [rows, title, live])) return;
    const list = rows.map((problem) => this.page.problems.row(problem, live));
    const error = failureNote("No plan", list.length ? "" : title, "");
    fill(noPlan.node, error);
    if (list.length) error.append(h("div", { role: "list" }, ...list));
  }

  /** Shows a panel in the body; returns true if the body did not show it before. @param {HTMLElement} panel */
  put(panel) {
    if (this.body.firstChild === panel) return false;
    fill(this.body, panel);
    return true;
  }

  /** Shows the selected collective at the end of a panel. @param {HTMLElement} panel */
  putChosen(panel) {
    if (panel.lastChild !== this.chosen.node) panel.append(this.chosen.node);
  }

  /** @param {Shown} shown */
  showBody(shown) {
    toggle(this.node, "sv-playing", this.playing);
    if (this.playing) {
      this.bodyKey = "";
      this.put(this.player.node);
      toggle(this.player.node, "sv-faded", isOutOfDate(shown, Number(this.player.key[0]) || 0));
      this.askForSteps(shown);
      return this.player.show(shown.movements, shown.theme);
    }
    if (this.tab === "Collectives") {
      if (this.put(this.collectives.node)) this.collectives.draw();
      return this.putChosen(this.collectives.node);
    }
    if (this.tab === "Timeline") {
      this.put(this.timeline.node);
      const { timeline } = shown;
      const words = { words: this.never };
      this.timeline.show(isCurrent(timeline, shown) ? timeline : words, shown.theme);
      return this.putChosen(this.timeline.node);
    }
    if (this.tab === "Values") {
      if (this.put(this.values.node)) this.values.paint();
      return;
    }
    if (this.tab === "Memory") {
      if (this.put(this.memory.node)) this.bodyKey = "";
      const { memory } = shown.stages;
      const estimate = isOutOfDate(shown, 0) ? null : memory.estimate;
      return this.memory.show(memory, isOutOfDate(shown), this.planned, estimate);
    }
    const { report, code, target } = shown;
    const current = isCurrent(report, shown);
    const key = JSON.stringify([this.tab, code, { ...report, stage: "" }, target.noRun, current]);
    if (key === this.bodyKey) return;
    this.bodyKey = key;
    fill(this.body, ...reportTab(this.tab, shown));
  }

  destroy() {
    this.clock.stop();
    this.stages.clock.stop();
    this.player.transport.destroy();
  }
}

/** True if the program or its target was edited since a stage; 2 is the compile. @param {Shown} shown @param {number} [stage] */
function isOutOfDate({ stages, view, target }, stage = 2) {
  return stageState(stages, stage, view.revision, target) === "old";
}

/** Whether the current program cannot be planned. @param {Shown} shown */
function hasNoPlan({ stages, view, target }) {
  return stageState(stages, 0, view.revision, target) === "failed";
}
