// @ts-check
// The row of stages: requested, propagated, partitioned, compiled, and what changed between two.
import { OWN_KEYS, h, setText, toggle } from "./dom.js";

/** @typedef {import("./messages").Stages} Stages */
/** @typedef {import("./messages").StageState | "old"} StageState */
/**
 * The stages, which program and target are current, and what is under way.
 * @typedef {{view: import("./view_data.js").View, stages: Stages, target: string, live: boolean,
 *   background: import("./messages").Background}} KnownStages
 */

export const STAGE_NAMES = ["requested", "propagated", "partitioned", "compiled"];
/** @type {Record<StageState, string>} */
const BADGES = { live: "", estimate: "estimate", old: "old", failed: "failed", none: "" };
/** What is under way in the background, by what Python calls it: which stage, and in words. */
const UNDER_WAY = new Map([
  ["planning", { at: 1, text: "being planned…" }],
  ["partitioning", { at: 2, text: "being partitioned…" }],
  ["compiling", { at: 3, text: "being compiled…" }],
]);
const CLOCK_MS = 200;
const SHOWN_AFTER_S = 0.6; // most plans are ready before anybody could read a clock

/**
 * The state of a stage: what the kernel knows of it, or that the program was edited since.
 * @param {Stages} stages
 * @param {number} index 0 to 2: propagated, partitioned, compiled
 * @param {number} revision of the program
 * @param {string} target
 * @returns {StageState}
 */
export function stageState(stages, index, revision, target) {
  const known = stages.stages[index].state;
  if (known === "none") return known;
  const retargeted = index > 0 && stages.target !== target;
  return stages.revisions[index] !== revision || retargeted ? "old" : known;
}

/**
 * What changed between two stages, if that is known.
 * @param {Stages} stages
 * @param {number} from
 * @param {number} to -1 is requested, 0 propagated, and so on
 */
export function changeBetween(stages, from, to) {
  return stages.marks.find(({ between }) => between[0] === from && between[1] === to);
}

export class StageRow {
  /**
   * @param {(index: number) => void} openStage
   * @param {(from: number, to: number) => void} openChange indices count from requested
   */
  constructor(openStage, openChange) {
    this.cells = STAGE_NAMES.map((name, i) => stageCell(name, () => openStage(i)));
    this.changes = [0, 1, 2].map((i) => changeButton(() => openChange(i, i + 1)));
    this.node = h("div", { class: "sv-stages", role: "group", "aria-label": "Stages" });
    this.cells.forEach((cell, i) => {
      this.node.append(cell.node);
      if (i < this.changes.length) this.node.append(this.changes[i].node);
    });
    this.clock = 0;
    this.underWay = "";
    this.began = 0;
  }

  /**
   * @param {KnownStages} known
   * @param {string} shown which stage or change the table below shows
   */
  show(known, shown) {
    const { view, stages, target } = known;
    const { broken, requested, requestedBytes } = view.program;
    this.showCell(0, broken ? "failed" : "live", requested, "", requestedBytes);
    stages.stages.forEach(({ text, took, more }, i) => {
      this.showCell(i + 1, stageState(stages, i, view.revision, target), text, took, more);
    });
    this.showUnderWay(known);
    this.cells.forEach(({ node }, i) => {
      toggle(node, "sv-on", shown === String(i));
      node.setAttribute("aria-pressed", String(shown === String(i)));
    });
    this.changes.forEach((_, i) => this.showChange(i, known, shown));
  }

  /**
   * @param {number} i
   * @param {StageState} state
   * @param {string} text
   * @param {string} took
   * @param {string} more
   */
  showCell(i, state, text, took, more) {
    const cell = this.cells[i];
    cell.node.dataset.state = state;
    setText(cell.took, took);
    setText(cell.badge, BADGES[state]);
    setText(cell.text, text);
    setText(cell.more, more);
    cell.node.title = [text, more].filter(Boolean).join("\n");
  }

  /** @param {number} i @param {KnownStages} known @param {string} shown */
  showChange(i, { view, stages, target }, shown) {
    const { node, text } = this.changes[i];
    const direct = changeBetween(stages, i - 1, i);
    // Where the partitioner's answer is missing, the end is compared with the estimate.
    const found = direct ?? (i === 2 ? changeBetween(stages, 0, 2) : undefined);
    const words = found ? (direct ? "" : "since the estimate: ") + found.text : "";
    setText(text, words);
    node.disabled = !found;
    node.title = found?.title ?? "";
    const names = `From ${STAGE_NAMES[i]} to ${STAGE_NAMES[i + 1]}`;
    node.setAttribute("aria-label", `${names}: ${words || "not known yet"}`);
    toggle(node, "sv-changed", found?.tone === "changed");
    toggle(node, "sv-grown", found?.tone === "more");
    toggle(node, "sv-on", shown === `${i}-${i + 1}`);
    toggle(node, "sv-faded", stageState(stages, i, view.revision, target) === "old");
  }

  /** What is under way in the background, with a clock. @param {KnownStages} known */
  showUnderWay({ background, stages, live }) {
    const name = background.stage ?? "";
    const job = live ? UNDER_WAY.get(name) : undefined;
    this.cells.forEach(({ node }, i) => toggle(node, "sv-busy", i === job?.at));
    if (name !== this.underWay) {
      this.underWay = name;
      this.began = Date.now();
    }
    window.clearInterval(this.clock);
    if (!job) return;
    const cell = this.cells[job.at];
    if (stages.stages[job.at - 1].state === "none") setText(cell.text, job.text);
    const showTime = () => {
      const seconds = (Date.now() - this.began) / 1000;
      if (seconds > SHOWN_AFTER_S) setText(cell.took, `${seconds.toFixed(1)} s…`);
    };
    this.clock = window.setInterval(showTime, CLOCK_MS);
  }

  destroy() {
    window.clearInterval(this.clock);
  }
}

/** @param {string} name @param {() => void} open */
function stageCell(name, open) {
  const took = h("span", { class: "sv-stagetook" });
  const badge = h("span", { class: "sv-stagebadge" });
  const text = h("span", { class: "sv-stagetext" });
  const more = h("span", { class: "sv-stagemore" });
  const title = h(
    "span",
    { class: "sv-stagetitle" },
    h("span", { class: "sv-stagedot" }),
    h("span", { class: "sv-stagename", text: name }),
    took,
    badge,
  );
  const node = h(
    "button",
    {
      type: "button",
      class: "sv-stage",
      ...OWN_KEYS,
      "aria-pressed": "false",
      on: { click: open },
    },
    title,
    text,
    more,
  );
  return { node, took, badge, text, more };
}

/** @param {() => void} open */
function changeButton(open) {
  const text = h("span", { class: "sv-changetext" });
  const arrow = h("span", { class: "sv-changearrow", "aria-hidden": "true" });
  const props = { type: "button", class: "sv-stagechange", ...OWN_KEYS, on: { click: open } };
  return { node: h("button", props, arrow, text), text };
}
