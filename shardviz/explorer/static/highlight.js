// @ts-check
// The device or block under the pointer, and everything linked to it.
// A device is linked to its blocks, to other devices with these blocks, and to its replica group.
// This module needs no kernel.
import { idsText } from "./picture_data.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/**
 * A device (`at` is its mesh position) or a block under the pointer; null for neither.
 * @typedef {{kind: "device", at: number} | {kind: "block", array: number, group: number} | null}
 *   Pointing
 */
/**
 * The selected collective, whose devices are marked.
 * @typedef {{key: string, kind: string, axes: string[], groups: number[][]}} ChosenCollective
 */
/** A map from device id to mesh position. @typedef {{get: (id: number) => number | undefined}} Positions */

const MOST_CACHED_ARRAYS = 64;
const MOST_LISTED = 60; // characters
const SPARSE = 8; // largest size, per device, of a table indexed by id; sparser ids use a Map

export class Highlight {
  constructor() {
    /** @type {number[]} */ this.sizes = [];
    /** @type {ArrayView[]} */ this.arrays = [];
    /** Device ids by mesh position; `hosts` is indexed in the same way. @type {Int32Array} */
    this.ids = new Int32Array(0);
    /** @type {Int32Array} */ this.hosts = new Int32Array(0);
    /** Device id -> mesh position; null if they are equal. @type {Positions | null} */
    this.positions = null;
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

  /** Returns the mesh position of a device id. @param {number} id */
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
   * Returns each device's block index in mesh order, or null if the array has no layout.
   * @param {number} array
   * @returns {Int32Array | null}
   */
  groups(array) {
    const strides = this.arrays[array]?.strides;
    if (!strides || !strides.length) return null;
    const key = strides.join() + "|" + this.sizes.join();
    const cached = this.cache.get(key);
    if (cached) return cached;
    // The block index is the sum of stride × coordinate over the mesh axes.
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
   * Returns the mesh positions of the devices that hold a block.
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

  /** Returns the mesh positions of the pointed device, or of the devices that hold the pointed
   * block. */
  pointed() {
    const p = this.pointing;
    if (!p) return [];
    return p.kind === "device" ? [p.at] : this.holders(p.array, p.group);
  }

  /**
   * Returns the slices of a block, such as `16:32, 256:512`.
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
   * Returns the devices in the same replica group of the selected collective as a device, including
   * the device; empty if unknown.
   * @param {number} at the device's mesh position
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

  /** Highlights an element, unless another element is pinned. @param {Pointing} pointing */
  hover(pointing) {
    if (!this.pinned) this.point(pointing, false);
  }
}

/** Returns a map from id to mesh position; null if ids equal positions. @param {Int32Array} ids @returns {Positions | null} */
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
 * Formats the hosts of devices, such as ` on hosts 0–3`; "" if the mesh has one host.
 * @param {Highlight} highlight
 * @param {number[]} positions
 */
export function onHosts({ hosts, hostCount }, positions) {
  if (hostCount < 2 || !positions.length) return "";
  const hostNumbers = [...new Set(positions.map((at) => hosts[at]))].sort((a, b) => a - b);
  return ` on ${named(hostNumbers, "host")}`;
}

/**
 * Formats numbers with folded ranges, such as `0–3, 8`; returns only the count if that is too long.
 * @param {number[]} numbers
 * @param {string} [noun]
 */
export function listed(numbers, noun = "device") {
  const text = idsText(numbers);
  return text.length > MOST_LISTED ? `${numbers.length.toLocaleString("en")} ${noun}s` : text;
}

/** Formats numbers after a noun: `device 3`, `devices 0–3`. @param {number[]} numbers @param {string} [noun] */
export function named(numbers, noun = "device") {
  const text = listed(numbers, noun);
  return text.endsWith("s") ? text : `${noun}${numbers.length === 1 ? "" : "s"} ${text}`;
}
