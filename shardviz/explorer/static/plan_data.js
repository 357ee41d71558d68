// @ts-check
// The data of a plan: values, their shardings, and the origin of each axis.

/** @typedef {NoPlan | Plan} PlanView */

/**
 * @typedef {object} NoPlan
 * @property {0} count
 * @property {string} error
 * @property {true} waiting
 */

/**
 * A plan in columns. Numbers in a column are indices into the table of the same name, or into
 * `text`.
 * @typedef {object} Plan
 * @property {false} waiting
 * @property {string[]} axes
 * @property {number} count
 * @property {string} words
 * @property {string} seconds
 * @property {string} error
 * @property {string[]} notes
 * @property {number} moreNotes
 * @property {string[]} kinds
 * @property {string[]} originKinds
 * @property {Record<string, number[]>} columns
 * @property {PlanSpec[]} specs
 * @property {[string, ...number[]][]} types Each type as text, followed by its shape.
 * @property {string[][]} scopes
 * @property {[axis: string, kind: number, name: number, source: number][][]} origins
 * @property {number[][]} operands
 * @property {Record<string, number>} trips
 * @property {Record<string, number>} valueNotes
 * @property {Record<string, PlanCollective[]>} moves Index of a value -> its collectives; "-1" ->
 *   collectives without a value.
 * @property {Record<string, import("./value_details.js").Explanation>} explanations
 * @property {string[]} text
 */

/**
 * A sharding as text, the axes of each dimension as [index in the mesh, parts, name], and the
 * unreduced axes with the kind of their partial results.
 * @typedef {[ text: string, dims: [axis: number, parts: number, name: string][][], unreduced: [axis: string, kind: string][], ]} PlanSpec
 */

/**
 * @typedef {[ kind: number, axes: number[], bytes: number, trips: number, cause: number, ]} PlanCollective
 */

/** A value of the plan. @typedef {ReturnType<typeof readValue>} Value */
/** A mesh axis that splits a dimension. @typedef {{axis: number, parts: number, text: string}} PlanSplit */
/**
 * Totals over several values: counts of split values, collectives and values that propagation did
 * not cover; `first` is the first uncovered value.
 * @typedef {{split: number, collectives: number, uncovered: number, first?: Value}} Totals
 */

const BACKWARD = 1;
const UNCOVERED = 2;

export class PlanData {
  /** @param {Plan} data */
  constructor(data) {
    this.data = data;
    const read = (/** @type {unknown} */ _, /** @type {number} */ at) => readValue(data, at);
    this.values = Array.from({ length: data.count }, read);
    this.numbers = new Map(this.values.map(({ name }, at) => [name, at]));
    /** Estimated collectives without a value in the list. */
    this.loose = estimatesOf(data, -1);
    /** @type {WeakMap<number[], Totals>} */ this.totalsOf = new WeakMap();
  }

  /**
   * Maps each value that passed axes on to this value to those axes; also maps the value itself to all
   * its axes.
   * @param {number} at
   * @returns {Map<number, number[]>}
   */
  sources(at) {
    /** @type {Map<number, number[]>} */ const axesByValue = new Map([[at, []]]);
    for (const { number, name } of this.values[at].origins) {
      for (const value of new Set([at, this.numbers.get(name) ?? at])) {
        axesByValue.set(value, [...(axesByValue.get(value) ?? []), number]);
      }
    }
    return axesByValue;
  }

  /** @param {number[]} members @returns {Totals} counted once */
  totals(members) {
    const cached = this.totalsOf.get(members);
    if (cached) return cached;
    const values = members.map((at) => this.values[at]);
    const uncovered = values.filter((value) => !value.covered);
    const totals = {
      split: values.filter(({ dims }) => dims.some((dim) => dim.length)).length,
      collectives: values.reduce((n, { estimates }) => n + estimates.length, 0),
      uncovered: uncovered.length,
      first: uncovered[0],
    };
    this.totalsOf.set(members, totals);
    return totals;
  }

  /**
   * Whether a value contains all words of a search.
   * @param {number} at
   * @param {string[]} words in lower case
   */
  matches(at, words) {
    const { name, opcode, type, spec, source, scope } = this.values[at];
    const text = [name, opcode, type, spec, source, ...scope].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }
}

/** @param {Plan} data @param {number} at */
function readValue(data, at) {
  const { text, columns, types, specs, origins, originKinds } = data;
  const number = (/** @type {string} */ column) => columns[column][at];
  const [type, ...shape] = types[number("type")];
  const [spec, dims, unreduced] = specs[number("spec")];
  return {
    at, // index of the value, for columns that are not read here
    name: text[number("name")],
    kind: data.kinds[number("kind")],
    opcode: text[number("opcode")],
    type,
    shape: /** @type {number[]} */ (shape),
    spec,
    dims: dims.map((dim) => dim.map(([axis, parts, name]) => ({ axis, parts, text: name }))),
    unreduced,
    source: text[number("source")],
    scope: data.scopes[number("scope")],
    region: text[number("region")],
    /** The trip count of the enclosing loop, or 0. */
    trips: data.trips[at] ?? 0,
    backward: Boolean(number("flags") & BACKWARD),
    covered: !(number("flags") & UNCOVERED),
    note: text[data.valueNotes[at]] ?? "",
    operands: data.operands[at],
    origins: origins[number("origins")].map(([axis, kind, name, source]) => ({
      axis,
      number: data.axes.indexOf(axis.replace(/:\(\d+\)\d+$/, "")),
      kind: originKinds[kind],
      name: text[name],
      source: text[source],
    })),
    estimates: estimatesOf(data, at),
  };
}

/** Returns the estimated collectives of a value, with their kinds and causes as text. @param {Plan} data @param {number} at */
function estimatesOf({ moves, text }, at) {
  return (moves[at] ?? []).map(([kind, axes, bytes, trips, cause]) => {
    const over = axes.length ? ` over ${axes.map((axis) => text[axis]).join(" × ")}` : "";
    const times = trips > 1 ? ` × ${trips}` : "";
    return { words: `${text[kind]} ${text[bytes]}${times}${over}`, cause: text[cause] };
  });
}
