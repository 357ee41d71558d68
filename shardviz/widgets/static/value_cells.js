// @ts-check
// The rows of the list of values: their cells, and the badges at a name.
import { axisColour } from "./colours.js";
import { axisDot, h } from "./dom.js";
import { shardingBars, shardingWords } from "./sharding_bars.js";

/** @typedef {import("./plan_data.js").PlanData} PlanData */
/** @typedef {import("./plan_rows.js").PlanRow} PlanRow */

const MOST_TAGS = 2;

/**
 * @param {string} style
 * @param {Array<Node | string>} children
 * @param {import("./dom.js").Props} [props]
 */
function cell(style, children, props = {}) {
  return h("span", { role: "gridcell", class: `sv-vcell ${style}`, ...props }, ...children);
}

/**
 * Small words beside a name: the loop it is in, the backward pass, what the plan does not cover.
 * @param {PlanData} plan
 * @param {Pick<PlanRow, "region" | "trips" | "backward" | "members">} row
 */
export function valueBadges(plan, { region, trips, backward, members }) {
  const badges = [];
  if (region) {
    const text = trips ? `${region} × ${trips}` : region;
    badges.push(badge(text, "", trips ? `runs ${trips} times` : ""));
  }
  if (backward) badges.push(badge("backward", "sv-backward", "part of the backward pass"));
  const { uncovered } = plan.totals(members);
  if (uncovered.length) {
    const text = members.length > 1 ? `${uncovered.length} not covered` : "not covered";
    const why = plan.note(uncovered[0]) || "the propagation did not look into it";
    badges.push(badge(text, "sv-uncovered", why));
  }
  return badges;
}

/** @param {string} text @param {string} style @param {string} title */
function badge(text, style, title) {
  return h("span", { class: `sv-badge ${style}`, text, title });
}

/**
 * Where the axes came from; in italics what is neither an argument nor a result.
 * @param {PlanData} plan
 * @param {number} at
 */
function originTags(plan, at) {
  return plan.origins(at).map(({ axis, kind, name, source }) => {
    const title = `${axis} from ${kind} ${name}${source ? ` (${source})` : ""}`;
    const plain = kind === "argument" || kind === "result";
    const label = h(plain ? "span" : "i", { text: name || kind });
    const dot = axisDot(axisColour(plan.axisNumber(axis)));
    return h("span", { class: "sv-from", title }, dot, label);
  });
}

/** @param {import("./plan_data.js").Estimate[]} estimates */
function estimateTags(estimates) {
  const tags = estimates.slice(0, MOST_TAGS).map(({ kind, bytes, trips, cause }) => {
    const text = `${kind} ${bytes}${trips > 1 ? ` × ${trips}` : ""}`;
    return h("span", { class: "sv-move", title: cause, text });
  });
  const more = estimates.length - MOST_TAGS;
  if (more > 0) tags.push(h("span", { class: "sv-muted", text: `+${more}` }));
  return tags;
}

/** @param {PlanData} plan @param {PlanRow} row @param {number} step */
export function valueCells(plan, row, step) {
  const at = row.value;
  const dims = plan.splits(at, step);
  const words = shardingWords(dims);
  const sums = plan.unreduced(at).map((axis) => {
    return badge(`Σ ${axis}`, "", `a partial sum on every device along ${axis}`);
  });
  const label = h("span", { class: "sv-vlabel", text: row.label });
  const name = [h("span", { class: "sv-twig" }), label, ...valueBadges(plan, row)];
  const type = plan.type(at);
  const source = plan.text("source", at);
  return [
    cell("sv-vname", name, {
      title: plan.note(at) || row.label,
      style: { "--sv-depth": row.depth },
    }),
    cell("sv-vtype", [type], { title: type }),
    cell("sv-vbars", [shardingBars(dims, 104, 12), ...sums], {
      "aria-label": words,
      title: `${plan.specText(at)}: ${words}`,
    }),
    cell("sv-vfrom", originTags(plan, at)),
    cell("sv-vmoves", estimateTags(plan.estimates(at))),
    // Shortened at its start, so that the number of the line can always be seen.
    cell("sv-vline", [h("bdi", { dir: "ltr", text: source })], { title: source }),
  ];
}

/** @param {PlanData} plan @param {PlanRow} row */
export function callCells(plan, row) {
  const { split, collectives } = plan.totals(row.members);
  const twig = h("span", { class: "sv-twig", text: row.open ? "▾" : "▸" });
  const label = h("b", { class: "sv-vlabel", text: row.label });
  const style = { "--sv-depth": row.depth };
  const text = `${collectives} ${collectives === 1 ? "collective" : "collectives"}`;
  return [
    cell("sv-vname", [twig, label, ...valueBadges(plan, row)], { title: row.label, style }),
    cell("sv-vtype", [`${row.count} ${row.count === 1 ? "value" : "values"}`]),
    cell("sv-vbars", [`${split} split`]),
    cell("sv-vfrom", []),
    cell("sv-vmoves", collectives && !row.open ? [h("span", { class: "sv-move", text })] : []),
    cell("sv-vline", []),
  ];
}
