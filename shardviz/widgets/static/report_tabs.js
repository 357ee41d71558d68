// @ts-check
// The tabs Memory, Checks, Effects, Cache and Code: a job, its report, and the program as code.
import { failureNote, mutedNote } from "./collectives.js";
import { copyButton, h } from "./dom.js";

/** @typedef {import("./messages").Report} Report */
/** @typedef {import("./messages").Stages} Stages */
/** @typedef {import("./messages").Memory} Memory */

const HOW_TO_CHECK = "Press Run to compare the prediction with what happens.";

/**
 * What a tab's content depends on.
 * @param {string} tab
 * @param {Report} report
 * @param {string} code
 * @param {Stages} stages
 * @param {string} noRun
 */
export function reportTabKey(tab, report, code, { memory }, noRun) {
  if (tab === "Code") return tab + code;
  return tab + JSON.stringify([{ ...report, stage: "" }, tab === "Memory" ? memory : noRun]);
}

/**
 * @param {string} tab
 * @param {Report} report
 * @param {string} code
 * @param {Stages} stages
 * @param {string} noRun why nothing can run on the target; "" where programs can
 * @returns {Node[]}
 */
export function reportTab(tab, report, code, stages, noRun) {
  if (tab === "Code") return codeTab(code);
  if (tab === "Effects") return effectsTab(report.effects);
  if (tab === "Cache") return cacheTab(report.cache);
  if (tab === "Memory") return memoryTab(stages.memory, stages.stages[2].state !== "none");
  return checksTab(report, noRun);
}

/** @param {Memory} memory @param {boolean} known whether there is a report @returns {Node[]} */
function memoryTab(memory, known) {
  if (!known) return [mutedNote("Not compiled yet: press Compile to see what each device holds.")];
  const parts = memory.parts.length
    ? memoryBar(memory)
    : [mutedNote("The compiler gave no memory figures.")];
  if (memory.cost.length) parts.push(pairs(memory.cost));
  if (memory.times.length) {
    parts.push(mutedNote(memory.timesNote), leastTimes(memory.times, "of what"));
  }
  if (memory.operations.length) {
    parts.push(leastTimes(memory.operations, "of which operation, before XLA fuses it"));
  }
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

/** @param {import("./messages").LeastTime[]} times @param {string} what */
function leastTimes(times, what) {
  const rows = times.map(({ name, seconds, share, bound, source }) => {
    const style = { width: `${Math.max(1, share * 100)}%` };
    const bar = h("span", { class: "sv-barcell" }, h("span", { class: "sv-fill", style }));
    return h(
      "tr",
      null,
      h("td", { class: "sv-cbytes" }, bar, seconds),
      h("td", { text: name }),
      h("td", { class: "sv-muted", text: bound }),
      h("td", { class: "sv-muted sv-mono", text: source }),
    );
  });
  return table(["least time", what, "bound by", "line"], rows, "sv-table sv-least");
}

/** @param {Report} report @param {string} noRun why nothing can run @returns {Node[]} */
function checksTab(report, noRun) {
  const { state, times, checks, error } = report;
  const parts = error ? [failureNote(error.title, error.message, error.source)] : [];
  if (state === "none" || (state === "running" && !times.length)) {
    return [...parts, mutedNote(noRun || `Not run yet. ${HOW_TO_CHECK}`)];
  }
  if (times.length) parts.push(pairs(times));
  if (!checks.length && !error) {
    parts.push(mutedNote(`Compiled, and nothing was executed. ${noRun || HOW_TO_CHECK}`));
  }
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
  return [...parts, h("table", { class: "sv-table" }, h("tbody", null, ...rows))];
}

/** The sign of a check, its style and its name. @param {boolean | null} ok */
function checkMark(ok) {
  if (ok === null) return ["–", "sv-muted", "not checked"];
  return ok ? ["✓", "sv-good", "holds"] : ["✗", "sv-bad", "fails"];
}

/** @param {import("./messages").Effects} effects @returns {Node[]} */
function effectsTab(effects) {
  if (effects.state !== "done") {
    const reading = effects.state === "reading";
    const how = reading ? "Reading the program's effects…" : "Effects are read from a live kernel.";
    return [mutedNote(how)];
  }
  if (effects.problem !== undefined) return [failureNote("", effects.problem, "")];
  const { runs, sentence, rows } = effects;
  const sign = h("b", { class: runs ? "sv-good" : "sv-bad", text: runs ? "✓ " : "✗ " });
  /** @type {Node[]} */
  const parts = [h("p", null, sign, sentence)];
  if (rows.length) {
    const titles = ["effect", "ordered", "on many devices", "used in", ""];
    const yes = (/** @type {boolean} */ value) => (value ? "yes" : "no");
    const cells = rows.map((e) =>
      tableRow([e.name, yes(e.ordered), yes(e.shardable), e.nesting.join(", "), e.note]),
    );
    parts.push(table(titles, cells));
  } else parts.push(mutedNote("It has no effects: it only computes."));
  return parts;
}

/** @param {import("./messages").Cache} cache @returns {Node[]} */
function cacheTab({ rows, size, hits, misses }) {
  const used = `${rows.length} of ${size}`;
  const counts = pairs([
    ["executables", used],
    ["hits", String(hits)],
    ["misses", String(misses)],
  ]);
  if (!rows.length) {
    const none =
      "Nothing was compiled yet." +
      " What is compiled once is kept, and found again by its fingerprint.";
    return [counts, mutedNote(none)];
  }
  const kept = rows.map(({ name, key, compile, hits: used, waited }) =>
    tableRow([name, h("code", { text: key }), compile, String(used), String(waited)]),
  );
  return [counts, table(["program", "key", "compiled in", "hits", "waited"], kept)];
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
