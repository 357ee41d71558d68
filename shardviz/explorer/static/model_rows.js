// @ts-check
// The rows of the Model view: the tree of leaves, with layers folded, or a sorted list.
import { countedBefore, naturalOrder } from "./natural_order.js";

/** @import { LeafKind, Leaves } from "./model_panel.js" */
/** @typedef {"tree" | "bytes" | "waste" | "name"} Order */
/**
 * A leaf or folded layers: the path, the index of the first leaf, and the number of leaves.
 * @typedef {{name: string, leaf: number, count: number}} Entry
 * @typedef {{key: string, label: string, depth: number, entry: Entry | null, open: boolean,
 *   bytes: number, waste: number, count: number, left: number,
 *   call?: import("./model_panel.js").ConstraintCall}} Row
 * @typedef {{label: string, key: string, entry: Entry | null, children: Map<string, Node>,
 *   bytes: number, waste: number, count: number, left: number}} Node
 */

/** The parts of a path: `layers_{0..31}/mlp/kernel` in three. @param {string} path */
function pathParts(path) {
  if (path.includes("/")) return path.split("/").filter(Boolean);
  const parts = path.match(/\{[^}]*\}|\[[^\]]*\]|[^.[\]{]+(?:\{[^}]*\}[^.[\]{]*)*/g);
  return parts?.filter((part) => part !== ".") ?? [path];
}

/** The leaves, with or without folded layers. @param {Leaves} leaves @param {boolean} folded */
export function entries(leaves, folded) {
  const { paths, folds } = leaves;
  /** @type {Entry[]} */
  const listed = [];
  const first = new Map(folded ? folds.map((fold) => [fold[1][0], fold]) : []);
  const inside = new Set(folded ? folds.flatMap((fold) => fold[1]) : []);
  for (const leaf of naturalOrder(paths)) {
    const fold = first.get(leaf);
    if (fold) listed.push({ name: fold[0], leaf, count: fold[1].length });
    else if (!inside.has(leaf)) listed.push({ name: paths[leaf], leaf, count: 1 });
  }
  return listed;
}

/**
 * The tree of the entries, without bytes, and the branches above each entry.
 * @param {Entry[]} leafEntries
 */
export function tree(leafEntries) {
  const root = newNode("", "");
  const chains = leafEntries.map((entry) => {
    const chain = [];
    let node = root;
    for (const part of pathParts(entry.name)) {
      let next = node.children.get(part);
      if (!next) node.children.set(part, (next = newNode(part, `${node.key}/${part}`)));
      node = next;
      chain.push(node);
    }
    if (node.entry) {
      const duplicate = newNode(entry.name, `${node.key}=${entry.leaf}`);
      node.children.set(`=${entry.leaf}`, duplicate);
      chain.push((node = duplicate));
    }
    node.entry = entry;
    return chain;
  });
  return { root, chains, some: leafEntries };
}

/**
 * Sums up bytes in every branch.
 * @param {ReturnType<typeof tree>} built
 * @param {(entry: Entry) => LeafKind} kindOf
 */
export function sumUp({ chains, some }, kindOf) {
  for (const chain of chains) {
    for (const node of chain) node.bytes = node.waste = node.count = node.left = 0;
  }
  chains.forEach((chain, i) => {
    const kind = kindOf(some[i]);
    const { count } = some[i];
    for (const node of chain) {
      node.bytes += kind.bytes * count;
      node.waste += kind.waste * count;
      node.count += count;
      if (kind.text === undefined) node.left += count;
    }
  });
}

/** @param {string} label @param {string} key @returns {Node} */
function newNode(label, key) {
  return { label, key, entry: null, children: new Map(), bytes: 0, waste: 0, count: 0, left: 0 };
}

/**
 * The visible rows of a tree. A branch is merged with an only child.
 * @param {Node} node
 * @param {Set<string>} closed
 * @param {number} [depth]
 * @param {Row[]} [rows]
 */
export function treeRows(node, closed, depth = 0, rows = []) {
  for (let child of node.children.values()) {
    let label = child.label;
    while (!child.entry && child.children.size === 1) {
      child = /** @type {Node} */ (child.children.values().next().value);
      label += `/${child.label}`;
    }
    const { key, entry, bytes, waste, count, left } = child;
    const open = child.children.size > 0 && !closed.has(key);
    const branch = child.children.size > 0;
    const sums = { bytes, waste, count, left };
    rows.push({ key, label, depth, entry: branch ? null : entry, open, ...sums });
    if (open) treeRows(child, closed, depth + 1, rows);
  }
  return rows;
}

/**
 * All entries in one list, by size or by name.
 * @param {Entry[]} leafEntries
 * @param {(entry: Entry) => LeafKind} kindOf
 * @param {Order} order
 * @returns {Row[]}
 */
export function sortedRows(leafEntries, kindOf, order) {
  const rows = leafEntries.map((entry) => {
    const { bytes, waste, text } = kindOf(entry);
    const { name, count, leaf } = entry;
    const left = text === undefined ? count : 0;
    const all = { bytes: bytes * count, waste: waste * count, count, left };
    return { key: `=${leaf}`, label: name, depth: 0, entry, open: false, ...all };
  });
  if (order === "name") return rows.sort((a, b) => countedBefore(a.label, b.label));
  return order === "tree" ? rows : rows.sort((a, b) => b[order] - a[order]);
}

/** The bytes of a row; leaves of unknown size are reported, not counted as zero. @param {Row} row */
export function rowBytes({ bytes, left }) {
  if (left) return bytes ? `≥ ${bytesText(bytes)}` : "–";
  return bytesText(bytes);
}

/** Bytes in binary units, as Python writes them. @param {number} count */
export function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const unit = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  const value = count / 1024 ** unit;
  const text = value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
  return `${text.replace(/\.0$/, "")} ${units[unit]}`;
}
