// @ts-check
// The rows of the Values list: calls, which can be folded, and their values.

/** @import { PlanData } from "./plan_data.js" */

/**
 * A row for a value, or for a call if `value` is -1. `place` is the position among its `size`
 * siblings.
 * @typedef {{key: string, label: string, depth: number, value: number, count: number,
 *   open: boolean, members: number[], region: string, trips: number, size: number,
 *   place: number}} PlanRow
 */

const SECTIONS = new Map([
  ["argument", "arguments"],
  ["result", "results"],
]);

/**
 * A call with the values and calls inside it. Consecutive calls with the same name are merged.
 * @typedef {{key: string, label: string, items: Array<number | PlanCall>,
 *   members: number[]}} PlanCall
 */

/**
 * Builds the tree of calls, in program order.
 * @param {PlanData} plan
 * @returns {PlanCall}
 */
export function callTree(plan) {
  /** @type {PlanCall} */ const root = { key: "", label: "", items: [], members: [] };
  /** @type {Map<string, number>} */ const times = new Map();
  /** @type {PlanCall[]} */ let open = [root];
  plan.values.forEach((value, at) => {
    const section = SECTIONS.get(value.kind);
    const scope = section ? [section] : value.scope;
    let shared = 0;
    while (shared < scope.length && open[shared + 1]?.label === scope[shared]) shared++;
    open = open.slice(0, shared + 1);
    for (const label of scope.slice(shared)) {
      const parent = open[open.length - 1];
      const path = `${parent.key}/${label}`;
      const time = (times.get(path) ?? 0) + 1;
      times.set(path, time);
      /** @type {PlanCall} */
      const call = { key: time > 1 ? `${path}#${time}` : path, label, items: [], members: [] };
      parent.items.push(call);
      open.push(call);
    }
    open.at(-1)?.items.push(at);
    for (const call of open) call.members.push(at);
  });
  return root;
}

/**
 * @param {PlanCall} call
 * @param {(call: PlanCall) => void} visit called with the call and every call inside it
 */
export function eachCall(call, visit) {
  visit(call);
  for (const item of call.items) if (typeof item !== "number") eachCall(item, visit);
}

/** @typedef {Pick<PlanRow, "region" | "trips">} Loop */
/** The loop and depth of the enclosing call; rows inside it do not repeat the loop. @typedef {Loop & {depth: number}} Outer */
/** @typedef {Pick<PlanRow, "depth" | "size" | "place">} Position */

/** @type {Loop} */
const NO_LOOP = { region: "", trips: 0 };

/** The rows, and a map from each value to its row, or to the row of the folded call around it. */
export class PlanRows {
  /**
   * @param {PlanData} plan
   * @param {PlanCall} tree
   * @param {(call: PlanCall, depth: number) => boolean} isOpen
   * @param {(at: number) => boolean} isMatch
   */
  constructor(plan, tree, isOpen, isMatch) {
    this.plan = plan;
    this.isOpen = isOpen;
    this.isMatch = isMatch;
    /** @type {PlanRow[]} */ this.rows = [];
    /** @type {Map<number, number>} */ this.rowOf = new Map();
    this.add(tree, { depth: 0, ...NO_LOOP });
  }

  /** @param {PlanCall} call @param {Outer} outer */
  add({ items }, outer) {
    items.forEach((item, i) => {
      const position = { depth: outer.depth, size: items.length, place: i + 1 };
      if (typeof item !== "number") this.addCall(item, outer, position);
      else if (this.isMatch(item)) this.addValue(item, outer, position);
    });
  }

  /** @param {number} at @param {Outer} outer @param {Position} position */
  addValue(at, outer, position) {
    const label = this.plan.values[at].name;
    const loop = unlessSame(this.plan.values[at], outer);
    const row = { value: at, count: 0, open: false, members: [at] };
    this.rowOf.set(at, this.rows.length);
    this.rows.push({ key: `=${label}`, label, ...row, ...loop, ...position });
  }

  /** @param {PlanCall} call @param {Outer} outer @param {Position} position */
  addCall(call, outer, position) {
    const { values } = this.plan;
    const { inner, label } = joined(call);
    const members = inner.members.filter(this.isMatch);
    if (!members.length) return;
    const open = this.isOpen(inner, outer.depth);
    const loop = values[inner.members[0]];
    const isUniform = inner.members.every((at) => isSame(values[at], loop));
    const shown = isUniform ? unlessSame(loop, outer) : NO_LOOP;
    const row = { value: -1, count: members.length, open, members };
    if (!open) for (const at of members) this.rowOf.set(at, this.rows.length);
    this.rows.push({ key: inner.key, label, ...row, ...shown, ...position });
    if (!open) return;
    const { region, trips } = isUniform ? loop : outer;
    this.add(inner, { region, trips, depth: outer.depth + 1 });
  }
}

/** @param {Loop} a @param {Loop} b */
function isSame(a, b) {
  return a.region === b.region && a.trips === b.trips;
}

/** @param {Loop} loop @param {Loop} outer */
function unlessSame(loop, outer) {
  const { region, trips } = isSame(loop, outer) ? NO_LOOP : loop;
  return { region, trips };
}

/** Merges a call with its only item, if the item is a call. @param {PlanCall} call */
function joined(call) {
  let inner = call;
  let label = call.label;
  while (inner.items.length === 1) {
    const [only] = inner.items;
    if (typeof only === "number") break;
    inner = only;
    label += ` / ${inner.label}`;
  }
  return { inner, label };
}
