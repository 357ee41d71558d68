// @ts-check
// The tabs Memory, Checks and Code: what a device holds, a job and its report, the program as code.
import { failureNote, mutedNote, shareBar } from "./collectives.js";
import { copyButton, h } from "./dom.js";

/** @typedef {import("./messages").Report} Report */
/** @typedef {import("./messages").Memory} Memory */
/** @typedef {import("./program_panel.js").Shown} Shown */

/** What bounds an operation, by the part of the least time that a bar of the headline shows. */
const BOUNDS = new Map([
  ["memory", "HBM"],
  ["compute", "FLOP/s"],
]);
const ONLY_COMPILES = "Can compile for it; not attached, so cannot run.";

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
export function reportTabKey(tab, { report, code, stages, noRun }, part) {
  if (tab === "Code") return tab + code;
  const { memory } = stages;
  return (
    tab + JSON.stringify(tab === "Memory" ? [memory, part] : [{ ...report, stage: "" }, noRun])
  );
}

/** @param {string} tab @param {Shown} shown @param {string} part @returns {Node[]} */
export function reportTab(tab, { view, report, code, stages, noRun }, part) {
  if (tab === "Code") return codeTab(code);
  if (tab === "Memory") return memoryTab(stages.memory, stages.stages[2].state !== "none", part);
  const old = h("p", { class: "sv-warn sv-lost", text: runAgain(report, view.revision) });
  return [old, ...checksTab(report, noRun), cacheLine(report.cache)];
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
  const limit = h("span", {
    class: "sv-memcap",
    style: { left: `${capacity * 100}%` },
    title: "the capacity of the device",
  });
  const pieces = parts.map(({ name, bytes, share }, i) =>
    h("span", {
      class: `sv-mempart sv-mem${i}`,
      style: { width: `${share * 100}%` },
      title: `${name}: ${bytes}`,
    }),
  );
  const bar = h("div", {
    class: over ? "sv-membar sv-over" : "sv-membar",
    role: "img",
    "aria-label": sentence,
  });
  bar.append(...pieces, ...(capacity > 0 && capacity < 1 ? [limit] : []));
  const legend = parts.map(({ name, bytes }, i) => {
    const label = h("span", { class: "sv-muted", text: `${name} ` });
    return h("span", null, h("span", { class: `sv-memdot sv-mem${i}` }), label, bytes);
  });
  const where = h("span", { class: "sv-muted", text: `  ${target}` });
  return [
    h("p", { class: over ? "sv-bad" : "" }, h("b", { text: sentence }), where),
    bar,
    h("div", { class: "sv-times" }, ...legend),
  ];
}

/** @param {import("./messages").LeastTime[]} times */
function leastTimes(times) {
  const rows = times.map(({ name, seconds, share, bound, source }) =>
    h(
      "tr",
      null,
      h("td", { class: "sv-cbytes" }, shareBar(share), seconds),
      h("td", { text: name, title: name }),
      h("td", { class: "sv-muted", text: bound }),
      h("td", { class: "sv-muted sv-mono", text: source }),
    ),
  );
  const titles = ["least time", "operation, as if XLA fused nothing", "bound by", "line"];
  return table(titles, rows, "sv-table sv-least");
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
    const [sign, style, word] = checkMark(ok);
    return h(
      "tr",
      null,
      h("td", { class: style, text: sign, "aria-label": word }),
      h("td", { text: name }),
      h("td", { class: "sv-muted", text: detail }),
    );
  });
  if (rows.length) {
    const label = { class: "sv-table", "aria-label": "Checks" };
    parts.push(h("table", label, h("tbody", null, ...rows)));
  }
  return parts;
}

/** The sign of a check, its style and its name. @param {boolean | null} ok */
function checkMark(ok) {
  if (ok === null) return ["–", "sv-muted", "not checked"];
  return ok ? ["✓", "sv-good", "holds"] : ["✗", "sv-bad", "fails"];
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
function cacheLine({ rows, size, hits, misses }) {
  return mutedNote(`${rows.length} of ${size} executables kept · ${hits} hits, ${misses} misses`);
}

/** @param {string} code @returns {Node[]} */
function codeTab(code) {
  const copy = copyButton("Copy", () => code, { class: "sv-button sv-copy" });
  return [copy, h("pre", { class: "sv-code sv-mono", text: code, tabindex: "0" })];
}

/** Names and what they are, in a line. @param {[string, string][]} some */
function pairs(some) {
  const parts = some.map(([name, text]) =>
    h("span", null, h("span", { class: "sv-muted", text: `${name} ` }), text),
  );
  return h("div", { class: "sv-times" }, ...parts);
}

/** @param {Array<Node | string>} cells */
function tableRow(cells) {
  return h("tr", null, ...cells.map((cell) => h("td", null, cell)));
}

/** @param {string[]} titles @param {Node[]} rows @param {string} [style] */
function table(titles, rows, style = "sv-table") {
  const head = titles.map((text) => h("th", { text, scope: "col" }));
  return h(
    "table",
    { class: style },
    h("thead", null, h("tr", null, ...head)),
    h("tbody", null, ...rows),
  );
}
