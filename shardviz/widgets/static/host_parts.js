// @ts-check
// What each host loads of an array, and which blocks only one host holds; as
// `core/layout/process_rows.py` has it, from what the page knows.

import { ranges } from "./highlight.js";

/** @typedef {import("./highlight.js").Highlight} Highlight */
/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/**
 * Of one array: the host that alone holds each block, or -2 where several do; and by host, for
 * every dimension, the numbers of the blocks that its devices hold.
 * @typedef {{ofBlock: Int32Array, blocks: Map<number, Set<number>[]>}} HostParts
 */

const MOST_HOST_RANGES = 4;
const MOST_HOSTS = 12; // that a sentence names

/**
 * By the block numbers of devices, which arrays may share; then by the blocks along each dimension.
 * @type {WeakMap<Int32Array, {hosts: Int32Array, parts: Map<string, HostParts>}>}
 */
const knownParts = new WeakMap();

/**
 * Null where the array has no layout, or all devices are on one host.
 * @param {Highlight} highlight
 * @param {number} array
 * @returns {HostParts | null}
 */
export function hostParts(highlight, array) {
  const { hosts } = highlight;
  const { counts = [], blocks = 1 } = highlight.arrays[array] ?? {};
  const groups = highlight.hostCount > 1 ? highlight.groups(array) : null;
  if (!groups) return null;
  let known = knownParts.get(groups);
  if (known?.hosts !== hosts) known = { hosts, parts: new Map() };
  knownParts.set(groups, known);
  const found = known.parts.get(counts.join()) ?? partsOf(groups, hosts, counts, blocks);
  known.parts.set(counts.join(), found);
  return found;
}

/**
 * @param {Int32Array} groups
 * @param {Int32Array} hosts
 * @param {number[]} counts
 * @param {number} blocks
 * @returns {HostParts}
 */
function partsOf(groups, hosts, counts, blocks) {
  const parts = { ofBlock: new Int32Array(blocks).fill(-1), blocks: new Map() };
  for (let i = 0; i < groups.length; i++) {
    const group = groups[i];
    const before = parts.ofBlock[group];
    if (before === hosts[i]) continue; // its host is known to hold it
    parts.ofBlock[group] = before === -1 ? hosts[i] : -2;
    const own = parts.blocks.get(hosts[i]) ?? counts.map(() => new Set());
    parts.blocks.set(hosts[i], own);
    let rest = group;
    for (let d = counts.length - 1; d >= 0; d--) {
      own[d].add(rest % counts[d]);
      rest = Math.floor(rest / counts[d]);
    }
  }
  return parts;
}

/**
 * What a host loads: `0:64 + 128:192, 0:512`.
 * @param {ArrayView} array
 * @param {HostParts} parts
 * @param {number} host
 */
export function partText({ shard = [] }, parts, host) {
  return (parts.blocks.get(host) ?? [])
    .map((numbers, d) => hostRangesText(mergedBlocks([...numbers], shard[d])))
    .join(", ");
}

/** @param {number[]} numbers @param {number} step */
function mergedBlocks(numbers, step) {
  /** @type {[number, number][]} */
  const found = [];
  for (const number of numbers.sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last?.[1] === number * step) last[1] += step;
    else found.push([number * step, (number + 1) * step]);
  }
  return found;
}

/** As `ranges_text` of Python. @param {[number, number][]} ranges */
function hostRangesText(ranges) {
  const texts = ranges.map(([start, stop]) => `${start}:${stop}`);
  if (texts.length <= MOST_HOST_RANGES) return texts.join(" + ");
  return `${texts[0]} + ${texts[1]} … ${texts.at(-1)} (${texts.length.toLocaleString("en")} ranges)`;
}

/**
 * The hosts of some devices: ` on host 0`, ` on hosts 0–3`; nothing where there is one host.
 * @param {Highlight} highlight
 * @param {number[]} positions
 */
export function onHosts({ hosts, hostCount }, positions) {
  if (hostCount < 2 || !positions.length) return "";
  const own = [...new Set(positions.map((at) => hosts[at]))].sort((a, b) => a - b);
  return ` on host${own.length > 1 ? "s" : ""} ${ranges(own, MOST_HOSTS)}`;
}
