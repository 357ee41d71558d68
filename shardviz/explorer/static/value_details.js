// @ts-check
// The details of one value: dimensions, origins of axes, explanation and cost.
import { axisTag, button, h } from "./dom.js";
import { axisTags, valueBadges } from "./value_cells.js";

/** @import { PlanData } from "./plan_data.js" */

/**
 * The explanation of a value's sharding.
 * @typedef {Record<"value" | "rule" | "error", string> & Record<"lines" | "stack", string[]>} Explanation
 */

/** @typedef {(at: number) => void} Pick */

const MOST_READS = 8;

/**
 * @param {PlanData} plan
 * @param {number} at
 * @param {Explanation | undefined} explanation
 * @param {Pick} pick
 * @returns {Node[]}
 */
export function valueDetails(plan, at, explanation, pick) {
  const value = plan.values[at];
  const link = (/** @type {number} */ operand) => valueLink(plan, operand, pick);
  const stack = explanation?.stack ?? [];
  const calls = h("div", { class: "sv-mono sv-muted", text: stack.join(" ← ") });
  const costs = value.estimates.map(({ words, cause }) =>
    h("div", null, words, h("div", { class: "sv-muted", text: cause })),
  );
  const reads = value.operands.slice(0, MOST_READS).map(link);
  const omitted = value.operands.length - MOST_READS;
  if (omitted > 0) reads.push(h("span", { class: "sv-muted", text: `and ${omitted} more` }));
  const origins = value.origins.map(({ axis, number, kind, name, source }) => {
    const first = plan.numbers.get(name) ?? at;
    const tag = axisTag(axis, number);
    const line = source ? ` at ${source}` : "";
    return h("div", null, tag, ` from ${kind} `, first === at ? name : link(first), line);
  });
  return [
    ...titleLines(plan, at),
    h("div", null, ...value.dims.map((splits, dim) => dimLine(value.shape[dim], splits))),
    ...section("Where its axes came from", origins),
    ...(explanation ? explanationParts(explanation) : []),
    ...section("Estimated collectives", costs),
    ...section("Reads", reads.length ? [h("div", { class: "sv-vlinks" }, ...reads)] : []),
    ...section("Called from", stack.length > 1 ? [calls] : []),
  ];
}

/**
 * A section with a heading, or no nodes if the section is empty.
 * @param {string} text
 * @param {Node[]} parts
 */
function section(text, parts) {
  return parts.length ? [h("h4", { class: "sv-subhead", text }), ...parts] : [];
}

/** @param {PlanData} plan @param {number} at */
function titleLines(plan, at) {
  const { name, type, source, spec, note, backward, region, trips } = plan.values[at];
  const where = backward ? h("span", { class: "sv-badge", text: "backward" }) : null;
  const badges = valueBadges(plan, { region, trips, members: [at] });
  const kind = h("span", { class: "sv-muted", text: type });
  const code = h("code", { class: "sv-muted", text: source });
  return [
    h("div", { class: "sv-line sv-vtitle" }, h("b", { text: name }), kind, code),
    h("div", { class: "sv-line" }, h("span", { class: "sv-mono", text: spec }), where, ...badges),
    ...(note ? [h("div", { class: "sv-warn", text: note })] : []),
  ];
}

/**
 * A line for one dimension: its size, the axes that split it, and its size in a shard.
 * @param {number} size
 * @param {import("./plan_data.js").PlanSplit[]} splits
 */
function dimLine(size, splits) {
  const parts = splits.reduce((n, split) => n * split.parts, 1);
  const blockSize = Math.ceil(size / parts).toLocaleString("en");
  const over = splits.length
    ? [" over ", ...axisTags(splits), `: ${blockSize} per device`]
    : [", not split"];
  return h("div", null, size.toLocaleString("en"), ...over);
}

/** @param {Explanation} explanation */
function explanationParts({ error, lines, rule }) {
  const items = lines.map((line) => h("li", { text: line.trim() }));
  const repeated = lines.some((line) => line.includes(rule));
  return [
    ...(error ? [h("div", { class: "sv-error", text: error })] : []),
    ...section("Why", items.length ? [h("ol", { class: "sv-explanation" }, ...items)] : []),
    ...section("The rule of the operation", rule && !repeated ? [h("div", { text: rule })] : []),
  ];
}

/** @param {PlanData} plan @param {number} at @param {Pick} pick @returns {HTMLElement} */
function valueLink(plan, at, pick) {
  const { name, type, spec } = plan.values[at];
  const title = `${type} ${spec}`;
  const label = `Show value ${name}`;
  return button(name, () => pick(at), { class: "sv-vlink", title, "aria-label": label });
}
