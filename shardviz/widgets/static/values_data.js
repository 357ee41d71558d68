// @ts-check
// A plan as the page reads it: values, when each axis arrived, the way it came, and the rows that
// a list of them has while some of its calls are folded. Nothing here draws or asks the kernel.

/** @typedef {{axis: string, from: number, to: number[]}} PlanMove */
/** @typedef {{number: number, op: number, moves: PlanMove[]}} PlanStep as Shardy numbers them */
/** @typedef {{axis: number, parts: number, text: string, pending: boolean}} PlanCut */
/**
 * @typedef {{at: number, step: number, gap: boolean}} PathStop where an axis was, and the step that brought it; after a gap the steps are not known
 */
/**
 * @typedef {{key: string, label: string, depth: number, value: number, count: number, open: boolean, members: number[], region: string, trips: number, backward: boolean, size: number, place: number}} PlanRow
 */

const BACKWARD = 1,
  UNCOVERED = 2;

export class PlanData {
  /** @param {any} data as `view_values.py` makes it */
  constructor(data) {
    this.data = data;
    this.count = data.count;
    const column = (/** @type {string} */ name) => data.columns?.[name] ?? [],
      text = (/** @type {number} */ i) => data.text[i];
    this.names = /** @type {string[]} */ (column("name").map(text));
    /** @type {Map<string, number>} */ this.numbers = new Map(this.names.map((n, i) => [n, i]));
    /** @type {PlanStep[]} */
    this.steps = (data.steps ?? []).map((/** @type {any} */ s) => ({
      number: s[0],
      op: s[1],
      moves: s[2].map((/** @type {any} */ m) => ({
        axis: data.stepAxes[m[0]],
        from: m[1],
        to: Array.isArray(m[2]) ? m[2] : [m[2]],
      })),
    }));
    /** @type {Map<string, number>} */ this.axisNumbers = new Map();
    /** @type {WeakMap<number[], any>} */ this.counted = new WeakMap();
    /** @type {Map<string, number>[]} */ this.arrivals = Array.from(
      { length: this.count },
      () => new Map(),
    );
    this.steps.forEach((step, k) => {
      for (const move of step.moves)
        for (const at of move.to)
          if (!this.arrivals[at].has(move.axis)) this.arrivals[at].set(move.axis, k + 1);
    });
  }

  /**
   * A text of the tables.
   * @param {string} column
   * @param {number} at
   */
  word(column, at) {
    return /** @type {string} */ (this.data.text[this.data.columns[column][at]]);
  }
  /** @param {number} at */
  kind(at) {
    return /** @type {string} */ (this.data.kinds[this.data.columns.kind[at]]);
  }
  /** @param {number} at */
  type(at) {
    return /** @type {string} */ (this.data.types[this.data.columns.type[at]][0]);
  }
  /** @param {number} at @returns {number[]} */
  shape(at) {
    return this.data.types[this.data.columns.type[at]].slice(1);
  }
  /** @param {number} at */
  specText(at) {
    return /** @type {string} */ (this.data.specs[this.data.columns.spec[at]][0]);
  }
  /** @param {number} at @returns {string[]} */
  unreduced(at) {
    return this.data.specs[this.data.columns.spec[at]][2];
  }
  /** @param {number} at @returns {string[]} */
  scope(at) {
    return this.data.scopes[this.data.columns.scope[at]];
  }
  /** @param {number} at */
  backward(at) {
    return Boolean(this.data.columns.flags[at] & BACKWARD);
  }
  /** @param {number} at */
  uncovered(at) {
    return Boolean(this.data.columns.flags[at] & UNCOVERED);
  }
  /** @param {number} at */
  note(at) {
    return at in this.data.valueNotes
      ? /** @type {string} */ (this.data.text[this.data.valueNotes[at]])
      : "";
  }
  /** @param {number} at @returns {number} */
  trips(at) {
    return this.data.trips[at] ?? 0;
  }
  /** @param {number} at @returns {number[]} */
  operands(at) {
    return this.data.operands[at];
  }

  /**
   * Where every axis of a value came from.
   * @param {number} at
   * @returns {Array<{axis: string, kind: string, name: string, source: string}>}
   */
  origins(at) {
    return this.data.origins[this.data.columns.origins[at]].map((/** @type {any} */ o) => ({
      axis: o[0],
      kind: this.data.originKinds[o[1]],
      name: this.data.text[o[2]],
      source: this.data.text[o[3]],
    }));
  }

  /**
   * What is estimated to move for a value.
   * @param {number} at
   */
  moves(at) {
    const text = this.data.text;
    return (this.data.moves[at] ?? []).map((/** @type {any} */ m) => ({
      kind: text[m[0]],
      axes: m[1].map((/** @type {number} */ a) => text[a]),
      bytes: text[m[2]],
      trips: m[3],
      cause: text[m[4]],
    }));
  }

  /**
   * The number of the mesh axis that an axis, or a part of one, belongs to; -1 for none.
   * @param {string} axis
   */
  axisNumber(axis) {
    const known = this.axisNumbers.get(axis);
    if (known !== undefined) return known;
    const find = (/** @type {string} */ name) =>
        this.data.axes.findIndex((/** @type {any} */ a) => a.name === name),
      whole = find(axis);
    const number = whole >= 0 ? whole : find(axis.replace(/:\(\d+\)\d+$/, ""));
    this.axisNumbers.set(axis, number);
    return number;
  }

  /**
   * The step that brought an axis to a value, from 1; 0 where it had it from the start.
   * @param {number} at
   * @param {string} axis
   */
  arrived(at, axis) {
    const known = this.arrivals[at].get(axis);
    if (known !== undefined) return known;
    // Parts of an axis arrive one by one, and become the whole axis in the end.
    let last = 0;
    const number = this.axisNumber(axis);
    for (const [other, step] of this.arrivals[at])
      if (this.axisNumber(other) === number) last = Math.max(last, step);
    return last;
  }

  /**
   * The dimensions of a value as they stood after a step.
   * @param {number} at
   * @param {number} step
   * @returns {PlanCut[][]}
   */
  cuts(at, step) {
    return this.data.specs[this.data.columns.spec[at]][1].map((/** @type {any} */ dim) =>
      dim.map((/** @type {any} */ c) => ({
        axis: c[0],
        parts: c[1],
        text: c[2],
        pending: this.arrived(at, c[2]) > step,
      })),
    );
  }

  /**
   * The way of an axis to a value, from where it was first asked for.
   * @param {number} at
   * @param {string} axis
   * @returns {PathStop[]}
   */
  path(at, axis) {
    const stops = [],
      seen = new Set();
    let here = at;
    while (!seen.has(here)) {
      seen.add(here);
      const step = this.arrived(here, axis),
        number = this.axisNumber(axis);
      const move = step
        ? this.steps[step - 1].moves.find(
            (m) => this.axisNumber(m.axis) === number && m.to.includes(here),
          )
        : undefined;
      stops.push({ at: here, step: move ? step : 0, gap: false });
      if (!move || move.from < 0) break;
      here = move.from;
    }
    stops.reverse();
    const first = this.origins(at).find((o) => o.axis === axis),
      from = first ? this.numbers.get(first.name) : undefined;
    if (from !== undefined && !seen.has(from)) {
      stops[0].gap = true;
      stops.unshift({ at: from, step: 0, gap: false });
    }
    return stops;
  }

  /**
   * Every value on the ways of a value's axes: number to the axes that came through it.
   * @param {number} at
   * @returns {Map<number, number[]>}
   */
  lineage(at) {
    /** @type {Map<number, number[]>} */ const lit = new Map([[at, []]]);
    for (const { axis } of this.origins(at)) {
      const number = this.axisNumber(axis);
      for (const stop of this.path(at, axis)) {
        const known = lit.get(stop.at) ?? [];
        if (!known.includes(number)) lit.set(stop.at, [...known, number]);
      }
    }
    return lit;
  }

  /**
   * What all of some values come to; counted once.
   * @param {number[]} members
   * @returns {{split: number, moves: number, hidden: number[]}}
   */
  sums(members) {
    let known = this.counted.get(members);
    if (!known) {
      const specs = this.data.specs.map((/** @type {any} */ s) =>
          s[1].some((/** @type {any[]} */ d) => d.length),
        ),
        column = this.data.columns.spec;
      known = {
        split: members.filter((m) => specs[column[m]]).length,
        moves: members.reduce((n, m) => n + (this.data.moves[m]?.length ?? 0), 0),
        hidden: members.filter((m) => this.uncovered(m)),
      };
      this.counted.set(members, known);
    }
    return known;
  }

  /**
   * Whether a value is one that a person looks for.
   * @param {number} at
   * @param {string[]} words in lower case
   */
  fits(at, words) {
    const said =
      `${this.names[at]} ${this.word("opcode", at)} ${this.type(at)} ${this.specText(at)} ${this.word("source", at)} ${this.scope(at).join(" ")}`.toLowerCase();
    return words.every((w) => said.includes(w));
  }
}

const SECTIONS = new Map([
  ["argument", "arguments"],
  ["result", "results"],
]);

/**
 * A call and what is in it; calls of one name that follow each other without a pause are one.
 * @typedef {{key: string, label: string, items: Array<number | PlanCall>, members: number[]}} PlanCall
 */

/**
 * The tree of calls, in program order.
 * @param {PlanData} plan
 * @returns {PlanCall}
 */
export function callTree(plan) {
  /** @type {PlanCall} */ const root = { key: "", label: "", items: [], members: [] };
  /** @type {Map<string, number>} */ const times = new Map();
  /** @type {PlanCall[]} */ let open = [root];
  for (let at = 0; at < plan.count; at++) {
    const section = SECTIONS.get(plan.kind(at)),
      scope = section ? [section] : plan.scope(at);
    let shared = 0;
    while (shared < scope.length && open[shared + 1]?.label === scope[shared]) shared++;
    open = open.slice(0, shared + 1);
    for (const label of scope.slice(shared)) {
      const parent = open[open.length - 1],
        path = `${parent.key}/${label}`,
        time = (times.get(path) ?? 0) + 1;
      times.set(path, time);
      const call = { key: time > 1 ? `${path}#${time}` : path, label, items: [], members: [] };
      parent.items.push(call);
      open.push(call);
    }
    open[open.length - 1].items.push(at);
    for (const call of open) call.members.push(at);
  }
  return root;
}

/**
 * The rows that stand in the list, and the row of every value: its own, or that of the folded call it is in.
 * @param {PlanData} plan @param {PlanCall} tree @param {(key: string, call: PlanCall, depth: number) => boolean} isOpen @param {(at: number) => boolean} wanted
 */
export function planRows(plan, tree, isOpen, wanted) {
  /** @type {PlanRow[]} */ const rows = [];
  const place = new Map();
  // What is said of a call is not said again of each value in it.
  const about = (/** @type {number} */ at) => `${plan.word("region", at)} ${plan.trips(at)}`;
  const walk = (
    /** @type {PlanCall} */ call,
    /** @type {number} */ depth,
    /** @type {string} */ said,
    /** @type {boolean} */ behind,
  ) => {
    const told = (/** @type {number} */ at) =>
      about(at) === said
        ? { region: "", trips: 0 }
        : { region: plan.word("region", at), trips: plan.trips(at) };
    call.items.forEach((item, i) => {
      const stands = { depth, size: call.items.length, place: i + 1 };
      if (typeof item === "number") {
        if (!wanted(item)) return;
        place.set(item, rows.length);
        rows.push({
          key: `=${plan.names[item]}`,
          label: plan.names[item],
          value: item,
          count: 0,
          open: false,
          members: [item],
          backward: !behind && plan.backward(item),
          ...told(item),
          ...stands,
        });
        return;
      }
      // A call that holds nothing but another is one row with it.
      let inner = item,
        label = item.label;
      while (inner.items.length === 1 && typeof inner.items[0] !== "number") {
        inner = inner.items[0];
        label += ` / ${inner.label}`;
      }
      const members = inner.members.filter(wanted);
      if (!members.length) return;
      const open = isOpen(inner.key, inner, depth),
        first = inner.members[0];
      const same = inner.members.every((m) => about(m) === about(first)),
        backward = inner.members.every((m) => plan.backward(m));
      const mine = same ? told(first) : { region: "", trips: 0 };
      if (!open) for (const m of members) place.set(m, rows.length);
      rows.push({
        key: inner.key,
        label,
        value: -1,
        count: members.length,
        open,
        members,
        backward: !behind && backward,
        ...mine,
        ...stands,
      });
      if (open) walk(inner, depth + 1, same ? about(first) : said, behind || backward);
    });
  };
  walk(tree, 0, " 0", false);
  return { rows, place };
}
