// @ts-check
// The bottom: the program, its stages, and a tab for each kind of question about it.
import { CollectivesPanel } from "./collectives.js";
import { Choice, tabRow } from "./controls.js";
import { OWN_KEYS, button, fill, h, setText, toggle } from "./dom.js";
import { reportTab, reportTabKey } from "./report_tabs.js";
import { Player } from "./player.js";
import { ShardTable } from "./shard_table.js";
import { StageRow } from "./stages.js";
import { TimelinePanel } from "./timeline.js";
import { ValuesPanel } from "./values.js";
import { besideView } from "./views.js";

/** @typedef {import("./messages").ActionKind} ActionKind */
/** @typedef {import("./messages").Report} Report */
/**
 * What the panel tells the page: an edit, an action, a value whose explanation is needed, a
 * collective whose links are to be drawn, arrays to light up, devices to be drawn by position, what
 * is to be played.
 * @typedef {{edit: import("./explorer.js").Edit, act: (kind: ActionKind) => void,
 *   why: (name: string) => void, links: (key: string | null) => void,
 *   light: (names: string[] | null) => void, position: () => void, play: (key: string) => void}} Calls
 */
/**
 * What the panel shows.
 * @typedef {import("./stages.js").KnownStages & {report: Report, code: string, noRun: string,
 *   theme: import("./colours.js").Theme, movements: import("./messages").Movements,
 *   timeline: import("./messages").Timeline}} Shown
 * @typedef {{view: import("./view_data.js").View, menus: import("./messages").Menus, live: boolean,
 *   devices: import("./messages").Devices, report: Report, code: string,
 *   stages: import("./messages").Stages, plan: import("./messages").PlanView,
 *   explanation: import("./messages").Traits["explanation"],
 *   background: import("./messages").Background, theme: import("./colours.js").Theme,
 *   movements: import("./messages").Movements, timeline: import("./messages").Timeline,
 *   target: import("./messages").Target}} Sent
 */

const TABS = [
  "Timeline",
  "Values",
  "Collectives",
  "Memory",
  "Checks",
  "Effects",
  "Cache",
  "Shards",
  "Code",
];
const JOB_CLOCK_MS = 100;

export class ProgramPanel {
  /** @param {import("./highlight.js").Highlight} highlight @param {Calls} calls */
  constructor(highlight, calls) {
    const { edit, act } = calls;
    this.act = act;
    this.program = new Choice("Program", (v) => edit("program", v), "Program");
    const primary = { class: "sv-button sv-primary", "aria-label": "Run" };
    this.compile = button("Compile", () => act("compile"), { "aria-label": "Compile" });
    this.run = button("Run", () => act("run"), primary);
    this.cancel = button("Cancel", () => act("cancel"), { hidden: true, "aria-label": "Cancel" });
    this.status = h("span", { class: "sv-status", role: "status", "aria-live": "polite" });
    this.lost = h("div", { class: "sv-warn sv-lost", role: "status" });
    this.stages = new StageRow(
      (i) => this.openStage(i ? String(i) : ""),
      (from, to) => this.openStage(from ? `${from}-${to}` : ""),
    );
    this.collectives = new CollectivesPanel(highlight, {
      shown: () => this.refresh(),
      value: (name) => this.openValue(name),
      links: calls.links,
      play: (key) => this.openPlayer(key),
      position: calls.position,
    });
    this.values = new ValuesPanel(calls);
    this.timeline = new TimelinePanel({
      value: (name) => this.openValue(name),
      collective: (key) => this.openCollective(key),
      target: (target) => edit("target", target),
    });
    this.player = new Player({
      close: () => this.closePlayer(),
      play: (key) => this.openPlayer(key),
    });
    this.askPlay = calls.play;
    /** Whether the player is open, and what the steps that were asked for are of. */
    this.playing = false;
    /** @type {[string, object | null, string]} */ this.playedOf = ["", null, ""];
    this.shards = new ShardTable(highlight);
    this.tabs = tabRow(TABS, { class: "sv-tabs" }, "sv-tab", (name) => this.open(name));
    this.body = h("div", { class: "sv-body", role: "tabpanel", tabindex: "0", ...OWN_KEYS });
    this.tab = "Collectives";
    this.bodyKey = "";
    /** @type {Shown | null} */ this.shown = null;
    /** The revision whose effects were asked for. */
    this.effectsOf = -1;
    this.codeAsked = false;
    this.clock = 0;
    this.job = { began: 0, started: 0 };
    this.noRun = h("span", { class: "sv-muted sv-norun", hidden: true });
    this.beside = besideView();
    this.node = this.build();
  }

  build() {
    const { cancel, compile, run, noRun } = this;
    const actions = h("span", { class: "sv-actions" }, noRun, cancel, compile, run);
    const left = h("div", { class: "sv-programleft" }, this.tabs.node, this.body);
    return h(
      "section",
      { class: "sv-view sv-program" },
      h("div", { class: "sv-headrow" }, this.program.node, this.status, actions),
      this.lost,
      this.stages.node,
      h("div", { class: "sv-programmain" }, left, this.beside),
    );
  }

  /** @param {string} name */
  open(name) {
    this.playing = false;
    this.tab = name;
    this.bodyKey = "";
    this.refresh();
    this.askForContent();
  }

  /**
   * Opens a stage, or what changed between two, in the tab Collectives; what was requested is in
   * the tab Values.
   * @param {string} what "" for requested, "1" and so on, or "1-2"
   */
  openStage(what) {
    // Why there is no plan, and what would be accepted, is in the tab Values.
    const refused = what === "1" && this.shown?.stages.stages[0].state === "failed";
    if (!what || refused) return this.open("Values");
    const again = this.tab === "Collectives" && this.collectives.shown === what;
    this.open("Collectives");
    // A second click shows the stages side by side again.
    this.collectives.open(again ? "all" : what);
    this.refresh();
  }

  /** Shows a collective of the plan. @param {string} key */
  openCollective(key) {
    this.open("Collectives");
    this.collectives.open("1");
    this.collectives.choose(key);
  }

  /** Plays the steps of a collective or of a value, in the place of the tab. @param {string} key */
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
   * Asks for the steps that are played: again where the program or what is known of it changed.
   * @param {Shown} shown
   */
  askForSteps({ live, stages, target }) {
    const { key } = this.player;
    const [of, at, on] = this.playedOf;
    if (!live || (of === key && at === stages && on === target)) return;
    this.playedOf = [key, stages, target];
    this.askPlay(this.player.key);
  }

  /** @param {string} name */
  openValue(name) {
    this.open("Values");
    this.values.pickByName(name);
  }

  /**
   * Code is made once somebody looks at it. Effects are read when somebody looks at them, and again
   * when the program was edited.
   */
  askForContent() {
    const { shown } = this;
    if (this.tab === "Code" && shown?.live && !shown.code && !this.codeAsked) {
      this.codeAsked = true;
      this.act("code");
    }
    if (this.tab !== "Effects" || !shown?.live || this.effectsOf === shown.view.revision) return;
    this.effectsOf = shown.view.revision;
    this.act("effects");
  }

  /** @param {Sent} sent */
  show({ view, menus, report, code, live, devices, stages, plan, explanation, ...sent }) {
    const { background, target, theme, movements, timeline } = sent;
    // Nothing runs on hardware that is only described: the reason stands in the place of the button.
    const { noRun = "" } = target;
    const now = { background, target: target.value, noRun, theme, movements, timeline };
    this.shown = { view, report, code, live, stages, ...now };
    const canPlay = (/** @type {string} */ key) => live || Boolean(movements[key]);
    this.collectives.canPlay = canPlay;
    const { program } = view;
    this.program.sync(menus.programs, program.value);
    setText(this.lost, program.lost ?? "");
    const running = report.state === "running";
    this.compile.disabled = running || !live;
    this.run.disabled = running || !live || Boolean(noRun);
    this.run.title = noRun;
    this.noRun.hidden = !noRun;
    setText(this.noRun, noRun ? "described: compiles, cannot run" : "");
    this.noRun.title = noRun;
    this.cancel.hidden = !running;
    this.showStatus(report, view.revision);
    this.collectives.offerPositions(live && !devices.no_positions && devices.by !== "position");
    this.values.show(plan);
    if (explanation.value) {
      this.values.showExplanation(/** @type {import("./messages").Explanation} */ (explanation));
    }
    this.refresh();
    this.askForContent();
  }

  /** The stages and the open tab, from what is known. */
  refresh() {
    if (!this.shown) return;
    this.stages.show(this.shown, this.tab === "Collectives" ? this.collectives.shown : "");
    this.tabs.mark(this.tab);
    this.body.setAttribute("aria-label", `Tab ${this.tab}`);
    this.showBody(this.shown);
  }

  /**
   * What became of the last job; or what runs, and for how long.
   * @param {Report} report
   * @param {number} revision of the program now
   */
  showStatus(report, revision) {
    window.clearInterval(this.clock);
    const running = report.state === "running";
    const edited = report.revision >= 0 && report.revision !== revision;
    toggle(this.status, "sv-warn", edited && !running);
    if (!running) {
      this.job.began = 0;
      const stale = edited ? "stale: the program was edited since" : "";
      const words = [report.cancelled ?? "", report.verdict, stale];
      return setText(this.status, words.filter(Boolean).join(" · "));
    }
    if (!this.job.began || this.job.started !== report.started) {
      this.job = { began: Date.now(), started: report.started };
    }
    const showTime = () => {
      const seconds = ((Date.now() - this.job.began) / 1000).toFixed(1);
      setText(this.status, `${report.stage} · ${seconds} s`);
    };
    showTime();
    this.clock = window.setInterval(showTime, JOB_CLOCK_MS);
  }

  /** Puts a panel into the body; whether it was not there. @param {HTMLElement} panel */
  put(panel) {
    if (this.body.firstChild === panel) return false;
    fill(this.body, panel);
    return true;
  }

  /** @param {Shown} shown */
  showBody(shown) {
    const { view, report, code, stages, target, noRun } = shown;
    toggle(this.node, "sv-playing", this.playing);
    if (this.playing) {
      this.bodyKey = "";
      this.put(this.player.node);
      this.askForSteps(shown);
      return this.player.show(shown.movements, shown.theme);
    }
    if (this.tab === "Shards") {
      this.put(this.shards.node);
      return this.shards.show(view.arrays);
    }
    if (this.tab === "Collectives") {
      this.put(this.collectives.node);
      return this.collectives.show(stages, view.revision, target);
    }
    if (this.tab === "Timeline") {
      this.put(this.timeline.node);
      return this.timeline.show(shown.timeline, shown.theme, shown.live);
    }
    if (this.tab === "Values") {
      if (this.put(this.values.node)) this.values.paint();
      return;
    }
    const key = reportTabKey(this.tab, report, code, stages, noRun);
    if (key === this.bodyKey) return;
    this.bodyKey = key;
    fill(this.body, ...reportTab(this.tab, report, code, stages, noRun));
  }

  destroy() {
    window.clearInterval(this.clock);
    this.stages.destroy();
    this.values.destroy();
    this.timeline.destroy();
    this.player.destroy();
  }
}
