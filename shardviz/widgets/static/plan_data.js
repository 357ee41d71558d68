// @ts-check
// A plan as the page reads it: values, when each axis reached each of them, and from where. Nothing
// here draws or asks the kernel.

/** @typedef {import("./messages").Plan} Plan */
/** @typedef {import("./messages").PlanColumn} PlanColumn */
/**
 * A step of the propagation, as Shardy numbers them: which operation passed which axes on.
 * @typedef {{number: number, op: number, moves: PlanMove[]}} PlanStep
 * @typedef {{axis: string, from: number, to: number[]}} PlanMove
 */
/**
 * An axis that a dimension is split over; pending as long as no step has brought it.
 * @typedef {{axis: number, parts: number, text: string, pending: boolean}} PlanSplit
 */
/** @typedef {{axis: string, kind: string, name: string, source: string}} PlanOrigin */
/**
 * A collective that is estimated for a value.
 * @typedef {{kind: string, axes: string[], bytes: string, trips: number, cause: string}} Estimate
 */
/**
 * A value that an axis passed through, and the step that brought it there; after a gap the steps
 * are not known.
 * @typedef {{at: number, step: number, gap: boolean}} PathStop
 */
/**
 * Of several values: how many are split, how many collectives they need, and which of them the
 * propagation did not look into.
 * @typedef {{split: number, collectives: number, uncovered: number[]}} Totals
 */

const BACKWARD = 1;
const UNCOVERED = 2;

export class PlanData {
  /** @param {Plan} data */
  constructor(data) {
    this.data = data;
    this.count = data.count;
    this.names = data.columns.name.map((i) => data.text[i]);
    this.numbers = new Map(this.names.map((name, i) => [name, i]));
    /** @type {PlanStep[]} */
    this.steps = data.steps.map(([number, op, moves]) => ({
      number,
      op,
      moves: moves.map(([axis, from, to]) => ({
        axis: data.stepAxes[axis],
        from,
        to: Array.isArray(to) ? to : [to],
      })),
    }));
    /** @type {Map<string, number>} */ this.axisNumbers = new Map();
    /** @type {WeakMap<number[], Totals>} */ this.known = new WeakMap();
    /**
     * By value: the step that brought each axis, from 1.
     * @type {Map<string, number>[]}
     */
    this.arrivals = Array.from({ length: this.count }, () => new Map());
    this.steps.forEach(({ moves }, k) => {
      for (const { axis, to } of moves) {
        for (const at of to) {
          if (!this.arrivals[at].has(axis)) this.arrivals[at].set(axis, k + 1);
        }
      }
    });
  }

  /** @param {PlanColumn} column @param {number} at */
  number(column, at) {
    return this.data.columns[column][at];
  }
  /** @param {"opcode" | "source" | "region"} column @param {number} at */
  text(column, at) {
    return this.data.text[this.number(column, at)];
  }
  /** @param {number} at */
  kind(at) {
    return this.data.kinds[this.number("kind", at)];
  }
  /** @param {number} at */
  type(at) {
    return this.data.types[this.number("type", at)][0];
  }
  /** @param {number} at @returns {number[]} */
  shape(at) {
    const [, ...shape] = this.data.types[this.number("type", at)];
    return shape;
  }
  /** @param {number} at */
  specText(at) {
    return this.data.specs[this.number("spec", at)][0];
  }
  /** @param {number} at */
  unreduced(at) {
    return this.data.specs[this.number("spec", at)][2];
  }
  /** @param {number} at */
  scope(at) {
    return this.data.scopes[this.number("scope", at)];
  }
  /** @param {number} at */
  backward(at) {
    return Boolean(this.number("flags", at) & BACKWARD);
  }
  /** @param {number} at */
  uncovered(at) {
    return Boolean(this.number("flags", at) & UNCOVERED);
  }
  /** @param {number} at */
  note(at) {
    const number = this.data.valueNotes[at];
    return number === undefined ? "" : this.data.text[number];
  }
  /** How often the loop runs that a value is in; 0 for none. @param {number} at */
  trips(at) {
    return this.data.trips[at] ?? 0;
  }
  /** @param {number} at */
  operands(at) {
    return this.data.operands[at];
  }

  /** Where every axis of a value came from. @param {number} at @returns {PlanOrigin[]} */
  origins(at) {
    const { text, originKinds } = this.data;
    return this.data.origins[this.number("origins", at)].map(([axis, kind, name, source]) => ({
      axis,
      kind: originKinds[kind],
      name: text[name],
      source: text[source],
    }));
  }

  /**
   * The collectives estimated for a value; of -1 those of no value.
   * @param {number} at
   * @returns {Estimate[]}
   */
  estimates(at) {
    const { text } = this.data;
    return (this.data.moves[at] ?? []).map(([kind, axes, bytes, trips, cause]) => ({
      kind: text[kind],
      axes: axes.map((axis) => text[axis]),
      bytes: text[bytes],
      trips,
      cause: text[cause],
    }));
  }

  /**
   * The number of the mesh axis that an axis, or a part of one, belongs to; -1 for none.
   * @param {string} axis
   */
  axisNumber(axis) {
    const known = this.axisNumbers.get(axis);
    if (known !== undefined) return known;
    const find = (/** @type {string} */ name) => this.data.axes.findIndex((a) => a.name === name);
    const same = find(axis);
    const number = same >= 0 ? same : find(axis.replace(/:\(\d+\)\d+$/, ""));
    this.axisNumbers.set(axis, number);
    return number;
  }

  /**
   * The step that brought an axis to a value, from 1; 0 where the value had it from the start.
   * @param {number} at
   * @param {string} axis
   */
  arrived(at, axis) {
    const known = this.arrivals[at].get(axis);
    if (known !== undefined) return known;
    // Parts of an axis arrive one by one, and become the full axis in the end.
    let last = 0;
    const number = this.axisNumber(axis);
    for (const [other, step] of this.arrivals[at]) {
      if (this.axisNumber(other) === number) last = Math.max(last, step);
    }
    return last;
  }

  /**
   * How the dimensions of a value are split after a step.
   * @param {number} at
   * @param {number} step
   * @returns {PlanSplit[][]}
   */
  splits(at, step) {
    const [, dims] = this.data.specs[this.number("spec", at)];
    return dims.map((dim) =>
      dim.map(([axis, parts, text]) => ({
        axis,
        parts,
        text,
        pending: this.arrived(at, text) > step,
      })),
    );
  }

  /**
   * The path of an axis to a value, from where it was first requested.
   * @param {number} at
   * @param {string} axis
   * @returns {PathStop[]}
   */
  path(at, axis) {
    /** @type {PathStop[]} */
    const stops = [];
    const seen = new Set();
    let here = at;
    while (!seen.has(here)) {
      seen.add(here);
      const step = this.arrived(here, axis);
      const number = this.axisNumber(axis);
      const moves = step ? this.steps[step - 1].moves : [];
      const move = moves.find((m) => this.axisNumber(m.axis) === number && m.to.includes(here));
      stops.push({ at: here, step: move ? step : 0, gap: false });
      if (!move || move.from < 0) break;
      here = move.from;
    }
    stops.reverse();
    const first = this.origins(at).find((o) => o.axis === axis);
    const from = first ? this.numbers.get(first.name) : undefined;
    if (from !== undefined && !seen.has(from)) {
      stops[0].gap = true;
      stops.unshift({ at: from, step: 0, gap: false });
    }
    return stops;
  }

  /**
   * Every value on the paths of a value's axes: its number, to the axes that passed through it.
   * @param {number} at
   * @returns {Map<number, number[]>}
   */
  lineage(at) {
    /** @type {Map<number, number[]>} */ const found = new Map([[at, []]]);
    for (const { axis } of this.origins(at)) {
      const number = this.axisNumber(axis);
      for (const stop of this.path(at, axis)) {
        const known = found.get(stop.at) ?? [];
        if (!known.includes(number)) found.set(stop.at, [...known, number]);
      }
    }
    return found;
  }

  /** @param {number[]} members @returns {Totals} counted once */
  totals(members) {
    const known = this.known.get(members);
    if (known) return known;
    const { specs, moves } = this.data;
    const split = specs.map(([, dims]) => dims.some((dim) => dim.length));
    const found = {
      split: members.filter((at) => split[this.number("spec", at)]).length,
      collectives: members.reduce((n, at) => n + (moves[at]?.length ?? 0), 0),
      uncovered: members.filter((at) => this.uncovered(at)),
    };
    this.known.set(members, found);
    return found;
  }

  /**
   * Whether a value has all of the words that somebody searches for.
   * @param {number} at
   * @param {string[]} words in lower case
   */
  matches(at, words) {
    const parts = [
      this.names[at],
      this.text("opcode", at),
      this.type(at),
      this.specText(at),
      this.text("source", at),
      ...this.scope(at),
    ];
    const text = parts.join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }
}
