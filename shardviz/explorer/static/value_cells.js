// @ts-check
// The cells of a row in the Values list, and the badges next to a name.
import { axisDot, axisTag, h, headCut } from "./dom.js";

/** @import { PlanData, PlanSplit, Value } from "./plan_data.js" */
/** @import { PlanRow } from "./plan_rows.js" */

/**
 * @param {string} style
 * @param {Array<Node | string>} children
 * @param {import("./dom.js").Props} [props]
 */
function cell(style, children, props = {}) {
  return h("span", { role: "gridcell", class: `sv-vcell ${style}`, ...props }, ...children);
}

/** @param {string} text @param {string} title @param {string} [style] */
function badge(text, title, style = "") {
  return h("span", { class: `sv-badge ${style}`, text, title });
}

/**
 * Badges next to a name, for the enclosing loop and for values that the plan does not cover.
 * @param {PlanData} plan
 * @param {Pick<PlanRow, "region" | "trips" | "members">} row
 */
export function valueBadges(plan, { region, trips, members }) {
  const badges = [];
  const times = trips ? ` × ${trips}` : "";
  if (region) badges.push(badge(region + times, trips ? `runs ${trips} times` : ""));
  const { uncovered, first } = plan.totals(members);
  if (uncovered) {
    const text = members.length > 1 ? `${uncovered} not covered` : "not covered";
    const why = first?.note || "propagation did not cover it";
    badges.push(badge(text, why, "sv-uncovered"));
  }
  return badges;
}

/** Returns tags for the mesh axes that split a dimension. @param {PlanSplit[]} dim @returns {Array<Node | string>} */
export function axisTags(dim) {
  return dim.flatMap(({ axis, text }, i) => [i ? "×" : "", axisTag(text, axis)]);
}

/** Formats a sharding: `dimension 0 over data; dimension 1 not split`. @param {PlanSplit[][]} dims */
function shardingWords(dims) {
  const words = dims.map((dim, number) => {
    const over = dim.length ? `over ${dim.map(({ text }) => text).join(", ")}` : "not split";
    return `dimension ${number} ${over}`;
  });
  return words.join("; ") || "a scalar";
}

/** Shows where each axis came from. Values that are not arguments or results are italic. @param {Value} value */
function originTags({ origins }) {
  return origins.map(({ axis, number, kind, name, source }, i) => {
    const title = `${axis} from ${kind} ${name}${source ? ` (${source})` : ""}`;
    // If several axes come from the same value, write its name only after the last of these axes.
    if (origins[i + 1]?.name === name)
      return h("span", { class: "sv-axis", title }, axisDot(number));
    const plain = kind === "argument" || kind === "result";
    const label = headCut(h(plain ? "span" : "i"), name || kind);
    return h("span", { class: "sv-from", title }, axisDot(number), label);
  });
}

/**
 * A column after the names: its title, and functions for the cells of values and calls.
 * @typedef {object} ValueColumn
 * @property {string} title
 * @property {(value: Value, plan: PlanData) => HTMLElement} value
 * @property {(row: PlanRow, plan: PlanData) => HTMLElement} call
 */

/** @type {ValueColumn[]} */
export const VALUE_COLUMNS = [
  {
    title: "type",
    value: ({ type }) => cell("sv-vtype", [type], { title: type }),
    call: ({ count }) => cell("sv-vtype", [`${count} ${count === 1 ? "value" : "values"}`]),
  },
  {
    title: "sharding",
    value: shardingCell,
    call: ({ members }, plan) => cell("sv-vdims", [`${plan.totals(members).split} split`]),
  },
  {
    title: "axes from",
    value: (value) => cell("sv-vfrom", originTags(value)),
    call: () => cell("sv-vfrom", []),
  },
  {
    title: "estimated",
    value: ({ estimates }) => {
      const moves = estimates.map(({ words }) => words);
      const more = moves.length > 1 ? ` +${moves.length - 1}` : "";
      return cell("sv-vmoves", [(moves[0] ?? "") + more], { title: moves.join("\n") });
    },
    call: ({ members, open }, plan) => {
      const { collectives } = plan.totals(members);
      const text = `${collectives} ${collectives === 1 ? "collective" : "collectives"}`;
      return cell("sv-vmoves", collectives && !open ? [text] : []);
    },
  },
  {
    title: "line",
    // CSS truncates the start of the text, so that the line number stays visible.
    value: ({ source }) =>
      cell("sv-vline", [h("bdi", { dir: "ltr", text: source })], { title: source }),
    call: () => cell("sv-vline", []),
  },
];

/** @param {Value} value */
function shardingCell({ dims, spec, unreduced }) {
  const words = shardingWords(dims);
  const split = dims.some((dim) => dim.length);
  const tags = dims.flatMap((dim) => (dim.length ? axisTags(dim) : h("span", { text: "–" })));
  const sums = unreduced.map(([axis, kind]) =>
    badge(`${kind === "sum" ? "Σ" : kind} ${axis}`, `each device has a partial ${kind}`),
  );
  const about = { "aria-label": words, title: `${spec}: ${words}` };
  return cell("sv-vdims", [...(split ? tags : []), ...sums], about);
}

/** @param {PlanData} plan @param {PlanRow} row */
export function valueCells(plan, row) {
  const value = plan.values[row.value];
  const label = headCut(h("span", { class: "sv-vlabel" }), row.label);
  const name = [h("span", { class: "sv-twig" }), label, ...valueBadges(plan, row)];
  const title = [row.label, value.note].filter(Boolean).join("\n");
  const about = { title, style: { "--sv-depth": row.depth } };
  const cells = VALUE_COLUMNS.map((column) => column.value(value, plan));
  return [cell("sv-vname", name, about), ...cells];
}

/** @param {PlanData} plan @param {PlanRow} row */
export function callCells(plan, row) {
  const twig = h("span", { class: "sv-twig", text: row.open ? "▾" : "▸" });
  const label = h("b", { class: "sv-vlabel", text: row.label });
  const about = { title: row.label, style: { "--sv-depth": row.depth } };
  const cells = VALUE_COLUMNS.map((column) => column.call(row, plan));
  return [cell("sv-vname", [twig, label, ...valueBadges(plan, row)], about), ...cells];
}
