// @ts-check
// The row of stages: requested, propagated, partitioned, compiled, ran, and changes between them.
import { button, h, setText, toggle } from "./dom.js";

/** @typedef {"live" | "estimate" | "failed" | "none"} SentStageState */

/**
 * Indices of two stages: -1 requested, 0 propagated, 1 partitioned, 2 compiled.
 * @typedef {[number, number]} StagePair
 */

/**
 * @typedef {object} Stages
 * @property {number[]} revisions
 * @property {string} target
 * @property {Stage[]} stages The stages propagated, partitioned, compiled and ran.
 * @property {StageChange[]} marks Summaries of the changes between two stages.
 * @property {import("./collectives.js").CollectiveChange[]} changes
 * @property {import("./collectives.js").Collective[][]} collectives The collectives of each stage.
 * @property {import("./collectives.js").Group[][]} groups Those of each stage that are alike.
 * @property {number[]} left_out For each stage, the number of collectives that are not listed.
 * @property {Record<string, number>} axes Name of a mesh axis -> its index.
 * @property {string[]} notes
 * @property {import("./headline.js").HeadlineData} headline
 * @property {import("./memory_panel.js").Memory} memory
 * @property {import("./report_tabs.js").Failure | null} error
 */

/** A stage; `title` has all details. @typedef {Record<"name" | "text" | "title", string> & {state: SentStageState}} Stage */

/** @typedef {{between: StagePair, text: string, tone: "same" | "changed" | "more", title: string}} StageChange */

/** The current background work, from `stages_view.py`. @typedef {{stage?: string}} Background */

/** @typedef {SentStageState | "old"} StageState */
/**
 * The stages, the current program and target, and the work in progress.
 * @typedef {{view: import("./view_data.js").View, stages: Stages, target: import("./messages").Target, live: boolean,
 *   report: import("./report_tabs.js").Report, background: Background}} KnownStages
 */

export const STAGE_NAMES = ["requested", "propagated", "partitioned", "compiled", "ran"];
export const OUT_OF_DATE = "Out of date: compile again";
/** Kinds of background work, in the order of the stages from propagated on. */
const UNDER_WAY = ["planning", "partitioning", "compiling"];
const RAN = 4;
const CLOCK_MS = 100;
const SHOWN_AFTER_S = 0.6; // most plans take less time than this, so they show no clock

/**
 * Returns the state of a stage, or "old" if the program or target was changed since.
 * @param {Stages} stages
 * @param {number} index 0 to 3: propagated, partitioned, compiled, ran
 * @param {number} revision of the program
 * @param {import("./messages").Target} target
 * @returns {StageState}
 */
export function stageState(stages, index, revision, { value: target }) {
  const state = stages.stages[index].state;
  if (state === "none") return state;
  const retargeted = index > 0 && stages.target !== target;
  return stages.revisions[index] !== revision || retargeted ? "old" : state;
}

/**
 * Whether something was computed for the current program and target.
 * @param {{revision?: number, target?: string}} of
 * @param {Pick<KnownStages, "view" | "target">} now
 */
export function isCurrent(of, { view, target }) {
  return of.revision === view.revision && of.target === target.value;
}

/**
 * Returns the changes between two stages, if they are known.
 * @param {Stages} stages
 * @param {number} from
 * @param {number} to -1 is requested, 0 propagated, and so on
 */
export function changeBetween(stages, from, to) {
  return stages.marks.find(({ between }) => between[0] === from && between[1] === to);
}

/** Shows how long the current work has been running. */
export class Clock {
  /** @param {(seconds: number) => void} show */
  constructor(show) {
    this.show = show;
    this.of = "";
    this.began = 0;
    this.timer = 0;
  }

  /** @param {string} of name of the work; a new name restarts the clock */
  run(of) {
    const began = of === this.of ? this.began : Date.now();
    this.stop();
    Object.assign(this, { of, began });
    const tick = () => this.show((Date.now() - began) / 1000);
    tick();
    this.timer = window.setInterval(tick, CLOCK_MS);
  }

  stop() {
    window.clearInterval(this.timer);
    this.of = "";
  }
}

export class StageRow {
  /** @param {import("./program_panel.js").ProgramPanel} program */
  constructor(program) {
    this.cells = STAGE_NAMES.map((name, i) => stageCell(name, () => program.openStage(i)));
    this.changes = [0, 1, 2].map((i) => changeButton(() => program.openChange(i)));
    this.node = h("div", { class: "sv-stages", role: "group", "aria-label": "Stages" });
    this.cells.forEach((cell, i) => {
      this.node.append(cell.node);
      if (i < this.changes.length) this.node.append(this.changes[i].node);
    });
    this.at = 0;
    this.clock = new Clock((seconds) => {
      if (seconds > SHOWN_AFTER_S) setText(this.cells[this.at].text, `${seconds.toFixed(1)} s…`);
    });
  }

  /**
   * @param {KnownStages} current
   * @param {string} shown the stage or change shown in the open tab, such as "3" or "2-3"
   */
  show(current, shown) {
    const { view, stages, target } = current;
    const { noRun = "" } = target;
    const { broken, requested, requestedBytes } = view.program;
    const count = view.arrays.length;
    const arrays = `${count} ${count === 1 ? "array" : "arrays"}`;
    this.showCell(0, broken ? "failed" : "live", arrays, `${requested}\n${requestedBytes}`);
    stages.stages.forEach(({ state, text, title }, i) => {
      const where = i + 1 === RAN && state === "none" && noRun;
      const [words, why] = where ? ["not attached", noRun] : [text, title];
      this.showCell(i + 1, stageState(stages, i, view.revision, target), words, why);
    });
    this.showUnderWay(current);
    this.cells.forEach(({ node }, i) => {
      node.setAttribute("aria-pressed", String(shown === String(i)));
    });
    this.changes.forEach((_, i) => this.showChange(i, current, shown));
  }

  /** @param {number} i @param {StageState} state @param {string} text @param {string} title */
  showCell(i, state, text, title) {
    const { node, text: words } = this.cells[i];
    node.dataset.state = state;
    setText(words, text);
    const old = state === "old" ? OUT_OF_DATE : "";
    node.title = [old, title].filter(Boolean).join("\n");
    node.setAttribute("aria-label", [STAGE_NAMES[i], text, old].filter(Boolean).join(", "));
  }

  /** @param {number} i @param {KnownStages} known @param {string} shown */
  showChange(i, { view, stages, target }, shown) {
    const { node, text } = this.changes[i];
    const change = changeBetween(stages, i - 1, i);
    const words = change?.text ?? "";
    setText(text, words);
    node.disabled = !change;
    node.title = change?.title ?? "";
    const names = `From ${STAGE_NAMES[i]} to ${STAGE_NAMES[i + 1]}`;
    node.setAttribute("aria-label", `${names}: ${words || "not known yet"}`);
    node.setAttribute("aria-pressed", String(shown === `${i}-${i + 1}`));
    toggle(node, "sv-grown", change?.tone === "more");
    toggle(node, "sv-faded", stageState(stages, i, view.revision, target) === "old");
  }

  /** Shows the work in progress: the stage of a job, or background work with a clock. @param {KnownStages} known */
  showUnderWay({ background, stages, live, report }) {
    const running = report.state === "running";
    const name = running ? report.stage : (background.stage ?? "");
    const at = running ? report.at : 1 + UNDER_WAY.indexOf(name);
    this.cells.forEach(({ node }, i) => toggle(node, "sv-busy", live && i > 0 && i === at));
    if (!live || !at) return this.clock.stop();
    const { text } = this.cells[at];
    const waits = stages.stages[at - 1].state === "none";
    if (running || waits) setText(text, running ? name : `${name}…`);
    this.at = at;
    if (running)
      this.clock.stop(); // the status line shows the time of a job
    else this.clock.run(name);
  }
}

/** @param {string} name @param {() => void} open */
function stageCell(name, open) {
  const text = h("span", { class: "sv-stagetext" });
  const node = button("", open, { class: "sv-plain sv-stage", "aria-pressed": "false" });
  node.append(h("span", { class: "sv-stagename", text: name }), text);
  return { node, text };
}

/** @param {() => void} open */
function changeButton(open) {
  const text = h("span", { class: "sv-changetext" });
  const arrow = h("span", { text: "→", "aria-hidden": "true" });
  const node = button("", open, { class: "sv-plain sv-stagechange" });
  node.append(arrow, text, arrow.cloneNode(true));
  return { node, text };
}
