// @ts-check
// The Checks tab, with the report of a job, and the Code tab.
import { failureNote, muted, mutedNote, table } from "./collectives.js";
import { copyButton, h } from "./dom.js";
import { OUT_OF_DATE, isCurrent } from "./stages.js";

/** @import { Shown } from "./program_panel.js" */

/** @typedef {Record<"title" | "message" | "source", string>} Failure */

/**
 * @typedef {object} Report
 * @property {"none" | "running" | "done" | "failed"} state
 * @property {number} revision The revision of the program; -1 before the first report.
 * @property {string} target
 * @property {string} stage The current work of a running job, as text.
 * @property {number} at The index of the stage that the job has reached.
 * @property {number} started
 * @property {[string, string][]} times
 * @property {{ name: string; ok: boolean | null; detail: string }[]} checks
 * @property {string} verdict The result of a run, as text.
 * @property {string} passed
 * @property {string} [cancelled] The last job, if the user cancelled it; all other fields describe
 *   the report before it.
 * @property {Failure | null} error
 * @property {Effects} effects
 */

/**
 * @typedef {{ state: "none" | "reading"; revision: number } | { state: "done"; revision: number; problem: string } | EffectsFound} Effects
 */

/**
 * @typedef {{state: "done", revision: number, problem?: undefined, runs: boolean, sentence: string,
 *   rows: EffectRow[]}} EffectsFound
 */

/**
 * @typedef {Record<"name" | "note", string> & Record<"ordered" | "shardable", boolean> &
 *   {nesting: string[]}} EffectRow
 */

const ONLY_COMPILES = "The target is not attached, so programs can compile for it but not run.";

/** Result of a check -> symbol, style and name. @type {Record<string, string[]>} */
const MARKS = {
  true: ["✓", "sv-good", "holds"],
  false: ["✗", "sv-bad", "fails"],
  null: ["–", "sv-muted", "not checked"],
};

/** Returns a note if the program or its target was edited since the report. @param {Report} report @param {boolean} current */
export function outOfDate({ verdict, revision }, current) {
  if (current || revision < 0) return "";
  return verdict ? "Out of date: run again" : OUT_OF_DATE;
}

/** @param {string} tab @param {Shown} shown @returns {Node[]} */
export function reportTab(tab, shown) {
  const { report, code, target } = shown;
  if (tab === "Code") return codeTab(code);
  const old = outOfDate(report, isCurrent(report, shown));
  const checks = h("div", { class: old && "sv-faded" }, ...checksTab(report, target.noRun ?? ""));
  return [h("p", { class: "sv-warn sv-lost", text: old }), checks];
}

/** @param {Report} report @param {string} noRun why nothing can run @returns {Node[]} */
function checksTab({ state, times, checks, error, passed, effects }, noRun) {
  const hasReport = state !== "none" && Boolean(times.length);
  /** @type {Node[]} */
  const parts = error ? [failureNote(error.title, error.message, error.source)] : [];
  if (passed) parts.push(h("p", null, h("b", { text: passed })));
  else if (!error) {
    const progress = hasReport ? "Compiled, but not run. " : "Not run yet. ";
    const how = "Press Run to compare the prediction with a real run.";
    parts.push(mutedNote(progress + (noRun ? ONLY_COMPILES : how)));
  }
  parts.push(...effectsPart(effects));
  if (hasReport) parts.push(pairs(times));
  const rows = checks.map(({ ok, name, detail }) => {
    const [sign, style, word] = MARKS[`${ok}`];
    return tableRow([
      h("span", { class: style, text: sign, "aria-label": word }),
      name,
      muted(detail),
    ]);
  });
  if (rows.length) parts.push(table([], rows, "", "Checks"));
  return parts;
}

/** @param {Effects} effects @returns {Node[]} */
function effectsPart(effects) {
  if (effects.state !== "done") {
    return effects.state === "reading" ? [mutedNote("Reading the program's effects…")] : [];
  }
  if (effects.problem !== undefined) return [failureNote("", effects.problem, "")];
  const { runs, sentence, rows } = effects;
  const sign = h("b", { class: runs ? "sv-good" : "sv-bad", text: runs ? "✓ " : "✗ " });
  const parts = [h("p", null, sign, sentence)];
  if (!rows.length) return parts;
  const titles = ["effect", "ordered", "on many devices", "used in", ""];
  const yes = (/** @type {boolean} */ value) => (value ? "yes" : "no");
  const cells = rows.map((e) =>
    tableRow([e.name, yes(e.ordered), yes(e.shardable), e.nesting.join(", "), e.note]),
  );
  return [...parts, table(titles, cells)];
}

/** Shows each code below its title. @param {Record<string, string>} codes @returns {Node[]} */
function codeTab(codes) {
  return Object.entries(codes).map(([title, text]) => {
    const copy = copyButton("Copy", () => text, { class: "sv-button sv-copy" });
    copy.setAttribute("aria-label", `Copy: ${title}`);
    const about = { class: "sv-code sv-mono", text, tabindex: "0", "aria-label": title };
    return h("section", null, copy, h("h3", { class: "sv-head", text: title }), h("div", about));
  });
}

/** Shows names and values on one line. @param {[string, string][]} entries */
export function pairs(entries) {
  const parts = entries.map(([name, text]) => h("span", null, muted(`${name} `), text));
  return h("div", { class: "sv-times" }, ...parts);
}

/** @param {Array<Node | string>} cells */
function tableRow(cells) {
  return h("tr", null, ...cells.map((cell) => h("td", null, cell)));
}
