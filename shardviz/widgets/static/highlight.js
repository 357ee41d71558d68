// @ts-check
// What is pointed at, and what belongs to it: which block of every array a device holds, who else
// holds it, and who takes part in a collective with it. Nothing here asks the kernel.

/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/** @typedef {Partial<Pick<import("./messages").LayoutNumbers, "counts" | "shard">>} Blocks */
/**
 * What is pointed at: a device by its position in mesh order, a block, or nothing.
 * @typedef {{kind: "device", at: number} | {kind: "block", array: number, group: number} | null}
 *   Pointing
 */
/**
 * The collective whose devices stand out.
 * @typedef {{key: string, kind: string, axes: string[], groups: number[][]}} ChosenCollective
 */

const MOST_CACHED_ARRAYS = 64;

export class Highlight {
  constructor() {
    /** @type {number[]} */ this.sizes = [];
    /** @type {ArrayView[]} */ this.arrays = [];
    /**
     * By position in mesh order, as the hosts.
     * @type {Int32Array}
     */
    this.ids = new Int32Array(0);
    /** @type {Int32Array} */ this.hosts = new Int32Array(0);
    /** @type {Map<number, number> | null} */ this.positions = null;
    this.hostCount = 1;
    this.hostGroups = 1;
    /** @type {Map<string, Int32Array>} */ this.cache = new Map();
    /** @type {Pointing} */ this.pointing = null;
    this.pinned = false;
    /** @type {ChosenCollective | null} */ this.collective = null;
    /**
     * Colours of groups in the current theme.
     * @type {string[]}
     */
    this.groupColours = [];
    /** @type {string[]} */ this.axisNames = [];
    /** @type {Array<() => void>} */ this.listeners = [];
  }

  /**
   * @param {number[]} sizes
   * @param {Int32Array} ids in mesh order
   * @param {Int32Array} hosts in mesh order
   */
  setMesh(sizes, ids, hosts) {
    const known = this.ids === ids;
    this.sizes = sizes;
    if (known && this.hosts === hosts) return;
    this.hosts = hosts;
    this.hostCount = new Set(hosts).size;
    this.hostGroups = 0;
    for (const host of hosts) this.hostGroups = Math.max(this.hostGroups, host + 1);
    this.ids = ids;
    this.positions = null;
    let plain = true;
    for (let i = 0; i < ids.length && plain; i++) plain = ids[i] === i;
    if (!plain) {
      this.positions = new Map();
      for (let i = 0; i < ids.length; i++) this.positions.set(ids[i], i);
    }
    this.cache.clear();
  }

  /**
   * The position of a device in mesh order.
   * @param {number} id
   */
  positionOf(id) {
    return this.positions ? (this.positions.get(id) ?? 0) : id;
  }

  /** @param {ArrayView[]} arrays the arrays of the view */
  setArrays(arrays) {
    this.arrays = arrays;
    if (this.cache.size > MOST_CACHED_ARRAYS) this.cache.clear();
    const p = this.pointing;
    if (p && p.kind === "device" && p.at >= this.ids.length) this.point(null, false);
    if (p && p.kind === "block" && p.group >= (arrays[p.array]?.blocks ?? 0)) {
      this.point(null, false);
    }
  }

  /**
   * The block number of every device, in mesh order; null where the array has no layout.
   * @param {number} array
   * @returns {Int32Array | null}
   */
  groups(array) {
    const strides = this.arrays[array]?.strides;
    if (!strides || !strides.length) return null;
    const key = strides.join() + "|" + this.sizes.join();
    const known = this.cache.get(key);
    if (known) return known;
    // The sum of stride × coordinate over the mesh axes, outermost first.
    let groups = new Int32Array([0]);
    this.sizes.forEach((size, axis) => {
      const next = new Int32Array(groups.length * size);
      for (let i = 0, k = 0; i < groups.length; i++) {
        for (let c = 0; c < size; c++) next[k++] = groups[i] + strides[axis] * c;
      }
      groups = next;
    });
    this.cache.set(key, groups);
    return groups;
  }

  /**
   * Positions of the devices that hold one block.
   * @param {number} array
   * @param {number} group
   * @returns {number[]}
   */
  holders(array, group) {
    const groups = this.groups(array);
    const found = [];
    if (groups) for (let i = 0; i < groups.length; i++) if (groups[i] === group) found.push(i);
    return found;
  }

  /**
   * The devices pointed at, as positions.
   * @returns {number[]}
   */
  pointed() {
    const p = this.pointing;
    if (!p) return [];
    return p.kind === "device" ? [p.at] : this.holders(p.array, p.group);
  }

  /**
   * The index of one block into its array, as [start, stop] pairs.
   * @param {Blocks} array
   * @param {number} group
   * @returns {Array<[number, number]>}
   */
  bounds({ counts = [], shard = [] }, group) {
    /** @type {Array<[number, number]>} */
    const bounds = [];
    let rest = group;
    for (let d = counts.length - 1; d >= 0; d--) {
      const at = rest % counts[d];
      rest = Math.floor(rest / counts[d]);
      bounds.unshift([at * shard[d], (at + 1) * shard[d]]);
    }
    return bounds;
  }

  /**
   * The same as text: `16:32, 256:512`.
   * @param {Blocks} array
   * @param {number} group
   */
  indexText(array, group) {
    return this.bounds(array, group)
      .map(([start, stop]) => `${start}:${stop}`)
      .join(", ");
  }

  /** @param {ChosenCollective | null} collective */
  choose(collective) {
    this.collective = collective;
    this.changed();
  }

  /**
   * The devices that take part in the chosen collective together with one, itself included; empty
   * where that is not known.
   * @param {number} at its position
   * @returns {number[]}
   */
  participants(at) {
    const collective = this.collective;
    if (!collective || at >= this.ids.length) return [];
    if (collective.groups.length) return collective.groups.find((g) => g.includes(at)) ?? [];
    const axes = collective.axes.map((name) => this.axisNames.indexOf(name));
    if (!axes.length || axes.includes(-1)) return [];
    let found = [at];
    for (const axis of axes) {
      const stride = this.sizes.slice(axis + 1).reduce((a, b) => a * b, 1);
      const size = this.sizes[axis];
      found = found.flatMap((m) =>
        Array.from({ length: size }, (_, c) => m + (c - (Math.floor(m / stride) % size)) * stride),
      );
    }
    return found.sort((a, b) => a - b);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  /** @param {Pointing} pointing @param {boolean} pinned */
  point(pointing, pinned) {
    const same = JSON.stringify(pointing) === JSON.stringify(this.pointing);
    if (same && pinned === this.pinned) return;
    this.pointing = pointing;
    this.pinned = pinned && pointing !== null;
    this.changed();
  }

  /**
   * Points at something, unless something else is pinned.
   * @param {Pointing} pointing
   */
  hover(pointing) {
    if (!this.pinned) this.point(pointing, false);
  }
}

/**
 * Numbers with runs folded: `0–3, 8`.
 * @param {number[]} ids
 * @param {number} [most]
 */
export function ranges(ids, most = 400) {
  const parts = [];
  let at = 0;
  while (at < ids.length && parts.length < most) {
    const step = at + 1 < ids.length ? ids[at + 1] - ids[at] : 0;
    let end = at + 1;
    while (end < ids.length && ids[end] - ids[end - 1] === step) end++;
    // A few ids with gaps are read faster one by one, as picture/ids.py has them.
    if (end - at > (step === 1 ? 2 : 4)) {
      parts.push(`${ids[at]}–${ids[end - 1]}${step === 1 ? "" : ` step ${step}`}`);
      at = end;
    } else parts.push(String(ids[at++]));
  }
  return parts.join(", ") + (at < ids.length ? ` and ${ids.length - at} more` : "");
}
