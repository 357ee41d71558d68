// @ts-check
// The tabs Memory, Checks and Code: what a device holds, a job and its report, the program as code.
import { failureNote, muted, mutedNote, shareBar, table } from "./collectives.js";
import { copyButton, h } from "./dom.js";

/** @import { Memory, Report } from "./messages" */
/** @import { Shown } from "./program_panel.js" */

/** What bounds an operation, by the part of the least time that a bar of the headline shows. */
const BOUNDS = new Map([
  ["memory", "HBM"],
  ["compute", "FLOP/s"],
]);
const SHADES = ["100%", "65%", "40%", "22%"]; // of the parts of a memory bar
const ONLY_COMPILES = "Can compile for it; not attached, so cannot run.";

/** The sign of a check, its style and its name. @type {Record<string, string[]>} */
const MARKS = {
  true: ["✓", "sv-good", "holds"],
  false: ["✗", "sv-bad", "fails"],
  null: ["–", "sv-muted", "not checked"],
};

/** That the program was edited since it ran. @param {Report} report @param {number} revision */
export function runAgain({ verdict, revision: of }, revision) {
  return verdict && of !== revision ? "Out of date: run again" : "";
}

/**
 * What a tab's content depends on.
 * @param {string} tab
 * @param {Shown} shown
 * @param {string} part of the least time, whose operations are shown
 */
export function reportTabKey(tab, { report, code, stages, target }, part) {
  if (tab === "Code") return tab + code;
  const { memory } = stages;
  return (
    tab +
    JSON.stringify(tab === "Memory" ? [memory, part] : [{ ...report, stage: "" }, target.noRun])
  );
}

/** @param {string} tab @param {Shown} shown @param {string} part @returns {Node[]} */
export function reportTab(tab, { view, report, code, stages, target }, part) {
  if (tab === "Code") return codeTab(code);
  if (tab === "Memory") return memoryTab(stages.memory, stages.stages[2].state !== "none", part);
  const old = h("p", { class: "sv-warn sv-lost", text: runAgain(report, view.revision) });
  return [old, ...checksTab(report, target.noRun ?? ""), cacheLine(report.cache)];
}

/** @param {Memory} memory @param {boolean} known @param {string} part @returns {Node[]} */
function memoryTab(memory, known, part) {
  if (!known) return [mutedNote("Not compiled yet: press Compile to see what each device holds.")];
  const parts = memory.parts.length
    ? memoryBar(memory)
    : [mutedNote("The compiler gave no memory figures.")];
  if (memory.cost.length) parts.push(pairs(memory.cost));
  const bound = BOUNDS.get(part);
  const some = memory.operations.filter((one) => !bound || one.bound === bound);
  if (some.length) parts.push(leastTimes(some));
  else if (bound) parts.push(mutedNote(`No operation is known to be bound by ${bound}.`));
  return parts;
}

/** The memory of one device as a bar, its parts side by side. @param {Memory} memory */
function memoryBar({ parts, sentence, over, capacity = 0, target = "" }) {
  const pieces = parts.map(({ name, bytes, share }, i) => {
    const style = { width: `${share * 100}%`, "--sv-shade": SHADES[i] };
    return h("span", { class: "sv-mempart", style, title: `${name}: ${bytes}` });
  });
  const style = { left: `${capacity * 100}%` };
  const limit = h("span", { class: "sv-memcap", style, title: "the capacity of the device" });
  const about = { class: over ? "sv-membar sv-over" : "sv-membar", role: "img" };
  const dots = parts.map((_, i) =>
    h("span", { class: "sv-memdot", style: { "--sv-shade": SHADES[i] } }),
  );
  return [
    h("p", { class: over ? "sv-bad" : "" }, h("b", { text: sentence }), muted(`  ${target}`)),
    h(
      "div",
      { ...about, "aria-label": sentence },
      ...pieces,
      capacity > 0 && capacity < 1 && limit,
    ),
    pairs(
      parts.map(({ name, bytes }) => [name, bytes]),
      dots,
    ),
  ];
}

/** @param {import("./messages").LeastTime[]} times */
function leastTimes(times) {
  const rows = times.map(({ name, seconds, share, bound, source }) =>
    tableRow([
      h("span", { class: "sv-cbytes" }, shareBar(share), seconds),
      h("span", { text: name, title: name }),
      muted(bound),
      h("code", { class: "sv-muted", text: source }),
    ]),
  );
  const titles = ["least time", "operation, as if XLA fused nothing", "bound by", "line"];
  return table(titles, rows, "sv-least");
}

/** @param {Report} report @param {string} noRun why nothing can run @returns {Node[]} */
function checksTab({ state, times, checks, error, passed, effects }, noRun) {
  const known = state !== "none" && Boolean(times.length);
  /** @type {Node[]} */
  const parts = error ? [failureNote(error.title, error.message, error.source)] : [];
  if (passed) parts.push(h("p", null, h("b", { text: passed })));
  else if (!error) {
    const done = known ? "Compiled, and nothing was executed. " : "Not run yet. ";
    const how = "Press Run to compare the prediction with what happens.";
    parts.push(mutedNote(done + (noRun ? ONLY_COMPILES : how)));
  }
  parts.push(...effectsPart(effects));
  if (known) parts.push(pairs(times));
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

/** @param {import("./messages").Effects} effects @returns {Node[]} */
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

/** How many executables are kept. @param {import("./messages").Cache} cache */
function cacheLine({ kept, size, hits, misses }) {
  return mutedNote(`${kept} of ${size} executables kept · ${hits} hits, ${misses} misses`);
}

/** @param {string} code @returns {Node[]} */
function codeTab(code) {
  const copy = copyButton("Copy", () => code, { class: "sv-button sv-copy" });
  return [copy, h("pre", { class: "sv-code sv-mono", text: code, tabindex: "0" })];
}

/** Names and what they are, in a line. @param {[string, string][]} some @param {Node[]} [dots] before them */
function pairs(some, dots = []) {
  const parts = some.map(([name, text], i) => h("span", null, dots[i], muted(`${name} `), text));
  return h("div", { class: "sv-times" }, ...parts);
}

/** @param {Array<Node | string>} cells */
function tableRow(cells) {
  return h("tr", null, ...cells.map((cell) => h("td", null, cell)));
}
