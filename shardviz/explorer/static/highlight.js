// @ts-check
// The element under the pointer and everything linked to it: the block of every array on a device,
// the other devices that hold it, and the devices in the same collective. It needs no kernel.
import { idsText } from "./picture_data.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/**
 * The element under the pointer: a device by its mesh position, a block, or nothing.
 * @typedef {{kind: "device", at: number} | {kind: "block", array: number, group: number} | null}
 *   Pointing
 */
/**
 * The collective whose devices are marked.
 * @typedef {{key: string, kind: string, axes: string[], groups: number[][]}} ChosenCollective
 */
/** The position of an id. @typedef {{get: (id: number) => number | undefined}} Positions */

const MOST_CACHED_ARRAYS = 64;
const MOST_LISTED = 60; // characters
const SPARSE = 8; // a table by id has at most this many rows per device; beyond, a Map is smaller

export class Highlight {
  constructor() {
    /** @type {number[]} */ this.sizes = [];
    /** @type {ArrayView[]} */ this.arrays = [];
    /** By mesh position, like the hosts. @type {Int32Array} */
    this.ids = new Int32Array(0);
    /** @type {Int32Array} */ this.hosts = new Int32Array(0);
    /** Set if ids differ from positions. @type {Positions | null} */ this.positions = null;
    this.hostCount = 1;
    /** @type {Map<string, Int32Array>} */ this.cache = new Map();
    /** @type {Pointing} */ this.pointing = null;
    this.pinned = false;
    /** @type {ChosenCollective | null} */ this.collective = null;
    /** @type {string[]} */ this.axisNames = [];
    /** @type {Array<() => void>} */ this.listeners = [];
  }

  /**
   * @param {number[]} sizes
   * @param {Int32Array} ids in mesh order
   * @param {Int32Array} hosts in mesh order
   */
  setMesh(sizes, ids, hosts) {
    if (sizes.join() !== this.sizes.join()) this.cache.clear();
    this.sizes = sizes;
    if (this.ids === ids && this.hosts === hosts) return;
    this.hosts = hosts;
    this.hostCount = new Set(hosts).size;
    this.ids = ids;
    this.positions = positionsOf(ids);
    this.cache.clear();
  }

  /** The mesh position of a device. @param {number} id */
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
   * The block index of every device, in mesh order, or null if the array has no layout.
   * @param {number} array
   * @returns {Int32Array | null}
   */
  groups(array) {
    const strides = this.arrays[array]?.strides;
    if (!strides || !strides.length) return null;
    const key = strides.join() + "|" + this.sizes.join();
    const cached = this.cache.get(key);
    if (cached) return cached;
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
   * Mesh positions of the devices that hold a block.
   * @param {number} array
   * @param {number} group
   * @returns {number[]}
   */
  holders(array, group) {
    const groups = this.groups(array);
    const distinct = [];
    if (groups) for (let i = 0; i < groups.length; i++) if (groups[i] === group) distinct.push(i);
    return distinct;
  }

  /** The mesh positions of the devices under the pointer. */
  pointed() {
    const p = this.pointing;
    if (!p) return [];
    return p.kind === "device" ? [p.at] : this.holders(p.array, p.group);
  }

  /**
   * The slices of a block in its array: `16:32, 256:512`.
   * @param {Pick<ArrayView, "counts" | "shard">} array
   * @param {number} group
   */
  indexText({ counts = [], shard = [] }, group) {
    const bounds = [];
    let remainder = group;
    for (let d = counts.length - 1; d >= 0; d--) {
      const at = remainder % counts[d];
      remainder = Math.floor(remainder / counts[d]);
      bounds.unshift(`${at * shard[d]}:${(at + 1) * shard[d]}`);
    }
    return bounds.join(", ");
  }

  /** @param {ChosenCollective | null} collective */
  choose(collective) {
    this.collective = collective;
    this.changed();
  }

  /**
   * The devices that take part in the chosen collective together with a device, including it; empty if
   * unknown.
   * @param {number} at its mesh position
   * @returns {number[]}
   */
  participants(at) {
    const collective = this.collective;
    if (!collective || at >= this.ids.length) return [];
    if (collective.groups.length) return collective.groups.find((g) => g.includes(at)) ?? [];
    const axes = collective.axes.map((name) => this.axisNames.indexOf(name));
    if (!axes.length || axes.includes(-1)) return [];
    let positions = [at];
    for (const axis of axes) {
      const stride = this.sizes.slice(axis + 1).reduce((a, b) => a * b, 1);
      const size = this.sizes[axis];
      positions = positions.flatMap((m) =>
        Array.from({ length: size }, (_, c) => m + (c - (Math.floor(m / stride) % size)) * stride),
      );
    }
    return positions.sort((a, b) => a - b);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  /** @param {Pointing} pointing @param {boolean} pinned */
  point(pointing, pinned) {
    const unchanged = JSON.stringify(pointing) === JSON.stringify(this.pointing);
    if (unchanged && pinned === this.pinned) return;
    this.pointing = pointing;
    this.pinned = pinned && pointing !== null;
    this.changed();
  }

  /** Points at an element, unless another one is pinned. @param {Pointing} pointing */
  hover(pointing) {
    if (!this.pinned) this.point(pointing, false);
  }
}

/** Null where each id is its own position. @param {Int32Array} ids @returns {Positions | null} */
function positionsOf(ids) {
  let plain = 0;
  while (plain < ids.length && ids[plain] === plain) plain++;
  if (plain === ids.length) return null;
  const largest = ids.reduce((a, b) => Math.max(a, b), -1);
  if (largest >= SPARSE * ids.length) return new Map(Array.from(ids, (id, at) => [id, at]));
  const table = new Int32Array(largest + 1);
  for (let i = 0; i < ids.length; i++) table[ids[i]] = i;
  return { get: (id) => table[id] };
}

/**
 * The hosts of devices, ` on host 0` or ` on hosts 0–3`, or nothing with a single host.
 * @param {Highlight} highlight
 * @param {number[]} positions
 */
export function onHosts({ hosts, hostCount }, positions) {
  if (hostCount < 2 || !positions.length) return "";
  const hostNumbers = [...new Set(positions.map((at) => hosts[at]))].sort((a, b) => a - b);
  return ` on ${named(hostNumbers, "host")}`;
}

/**
 * Numbers with folded runs, `0–3, 8`, or the count if the list is too long.
 * @param {number[]} numbers
 * @param {string} [noun]
 */
export function listed(numbers, noun = "device") {
  const text = idsText(numbers);
  return text.length > MOST_LISTED ? `${numbers.length.toLocaleString("en")} ${noun}s` : text;
}

/** The same with the noun: `device 3`, `devices 0–3`. @param {number[]} numbers @param {string} [noun] */
export function named(numbers, noun = "device") {
  const text = listed(numbers, noun);
  return text.endsWith("s") ? text : `${noun}${numbers.length === 1 ? "" : "s"} ${text}`;
}
