// @ts-check
// What is known of one value: its dimensions, where its axes came from, why, and what it costs.
import { axisColour } from "./colours.js";
import { axisDot, button, h } from "./dom.js";
import { shardingBars } from "./sharding_bars.js";
import { valueBadges } from "./value_cells.js";

/** @typedef {import("./plan_data.js").PlanData} PlanData */
/** @typedef {import("./plan_data.js").PlanSplit} PlanSplit */
/** @typedef {import("./plan_data.js").PlanOrigin} PlanOrigin */
/** @typedef {import("./messages").Explanation} Explanation */
/** @typedef {(at: number) => void} Pick */

const MOST_STOPS = 9;
const MOST_READS = 8;

/**
 * @param {PlanData} plan
 * @param {number} at
 * @param {number} step
 * @param {{explanation: Explanation | undefined, pick: Pick}} more
 * @returns {Node[]}
 */
export function valueDetails(plan, at, step, { explanation, pick }) {
  const origins = plan.origins(at).map((origin) => pathLine(plan, at, origin, pick));
  const stack = explanation?.stack ?? [];
  const calls = h("div", { class: "sv-mono sv-muted", text: stack.join(" ← ") });
  return [
    ...titleLines(plan, at),
    h("div", null, ...plan.splits(at, step).map((splits, d) => dimLine(plan, at, d, splits))),
    ...section("Where its axes came from", origins),
    ...(explanation ? explanationParts(explanation) : []),
    ...section("Estimated collectives", plan.estimates(at).map(estimateLine)),
    ...section("Reshard", reshardLines(plan, at)),
    ...section("Reads", operandLinks(plan, at, pick)),
    ...section("Called from", stack.length > 1 ? [calls] : []),
  ];
}

/**
 * A heading and what is under it; nothing where that is empty.
 * @param {string} text
 * @param {Node[]} parts
 */
function section(text, parts) {
  return parts.length ? [h("h4", { class: "sv-subhead", text }), ...parts] : [];
}

/** @param {PlanData} plan @param {number} at */
function titleLines(plan, at) {
  const [region, source] = [plan.text("region", at), plan.text("source", at)];
  const row = { region, trips: plan.trips(at), backward: plan.backward(at), members: [at] };
  const line = source ? h("code", { class: "sv-muted", text: source }) : null;
  const note = plan.note(at);
  const type = h("span", { class: "sv-type", text: plan.type(at) });
  return [
    h("div", { class: "sv-line sv-vtitle" }, h("b", { text: plan.names[at] }), type),
    h("div", { class: "sv-mono", text: plan.specText(at) }),
    h("div", { class: "sv-vbadges" }, ...valueBadges(plan, row), line),
    ...(note ? [h("div", { class: "sv-warn", text: note })] : []),
  ];
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

/** @param {import("./plan_data.js").Estimate} estimate */
function estimateLine({ kind, bytes, axes, trips, cause }) {
  return h(
    "div",
    { class: "sv-moveline" },
    h("span", { class: "sv-move", text: `${kind} ${bytes}` }),
    axes.length ? ` over ${axes.join(" × ")}` : "",
    trips > 1 ? `, ${trips} times` : "",
    cause ? h("div", { class: "sv-muted", text: cause }) : null,
  );
}

/** From which sharding to which, where a value is what it reads, split in another way. @param {PlanData} plan @param {number} at */
function reshardLines(plan, at) {
  const from = plan.operands(at)[0];
  const same =
    from !== undefined && plan.operands(at).length === 1 && plan.type(from) === plan.type(at);
  if (!same || plan.specText(from) === plan.specText(at)) return [];
  const text = `${plan.specText(from)} → ${plan.specText(at)}`;
  return [h("div", { class: "sv-mono", text })];
}

/** @param {PlanData} plan @param {number} at @param {Pick} pick */
function operandLinks(plan, at, pick) {
  const operands = plan.operands(at);
  if (!operands.length) return [];
  const links = operands.slice(0, MOST_READS).map((other) => valueLink(plan, other, pick));
  const more = operands.length - MOST_READS;
  const rest = h("span", { class: "sv-muted", text: `and ${more} more` });
  return [h("div", { class: "sv-pathstops" }, ...links, more > 0 ? rest : null)];
}

/** @param {PlanData} plan @param {number} at @param {Pick} pick */
function valueLink(plan, at, pick) {
  const name = plan.names[at];
  return button(name, () => pick(at), {
    class: "sv-vlink",
    title: `${plan.type(at)} ${plan.specText(at)}`,
    "aria-label": `Show value ${name}`,
  });
}

/**
 * One axis, and its path to the value.
 * @param {PlanData} plan
 * @param {number} at
 * @param {PlanOrigin} origin
 * @param {Pick} pick
 */
function pathLine(plan, at, origin, pick) {
  const stops = plan.path(at, origin.axis);
  const half = Math.floor(MOST_STOPS / 2);
  const long = stops.length > MOST_STOPS;
  const shown = long ? [...stops.slice(0, half), ...stops.slice(-half)] : stops;
  const parts = shown.map((stop, i) => stopNode(plan, stop, i > 0, pick));
  if (long) {
    const text = `→ ${stops.length - 2 * half} more`;
    parts.splice(half, 0, h("span", { class: "sv-muted", text }));
  }
  const dot = axisDot(axisColour(plan.axisNumber(origin.axis)));
  const from = h("span", { class: "sv-muted", text: originWords(origin) });
  return h(
    "div",
    { class: "sv-path" },
    h("div", { class: "sv-pathhead" }, dot, h("b", { text: origin.axis }), from),
    h("div", { class: "sv-pathstops" }, ...parts),
  );
}

/**
 * @param {PlanData} plan
 * @param {import("./plan_data.js").PathStop} stop
 * @param {boolean} arrow whether another stop is before it
 * @param {Pick} pick
 */
function stopNode(plan, stop, arrow, pick) {
  const number = stop.step ? String(plan.steps[stop.step - 1].number) : "";
  const how = number ? `step ${number}` : "in steps that Shardy does not name";
  return h(
    "span",
    { class: "sv-stop" },
    arrow ? h("span", { class: "sv-muted", text: "→", title: how }) : null,
    valueLink(plan, stop.at, pick),
    number ? h("sub", { class: "sv-muted", text: number, title: `by step ${number}` }) : null,
  );
}

/** @param {PlanOrigin} origin */
function originWords({ kind, name, source }) {
  if (kind === "constraint") return `by a constraint${source ? ` at ${source}` : ""}`;
  if (kind === "manual") return "by a manual computation";
  if (kind === "op") return "first requested by an operation";
  return `first requested by ${kind} ${name}`;
}

/**
 * One dimension in words: how long it is, what it is split over, and how long the parts are.
 * @param {PlanData} plan
 * @param {number} at
 * @param {number} dim
 * @param {PlanSplit[]} splits
 */
function dimLine(plan, at, dim, splits) {
  const size = plan.shape(at)[dim];
  const parts = splits.reduce((n, split) => n * split.parts, 1);
  const axes = splits.map((split) => `${split.text} (${split.parts})`).join(", ");
  const each = Math.ceil(size / parts).toLocaleString("en");
  const words = splits.length ? ` over ${axes}: ${each} per device` : ", not split";
  return h(
    "div",
    { class: "sv-dimline" },
    shardingBars([splits], 42, 12),
    h("span", { class: "sv-muted", text: `dimension ${dim}` }),
    h("span", { text: size.toLocaleString("en") + words }),
  );
}
