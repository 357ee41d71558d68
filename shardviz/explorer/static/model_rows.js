// @ts-check
// The rows of the Model view: a tree of leaves, or a sorted list. Layers can be folded.
import { countedBefore, naturalOrder } from "./natural_order.js";

/** @import { LeafKind, Leaves } from "./model_panel.js" */
/** @typedef {"tree" | "bytes" | "copies" | "name"} Order */
/**
 * A leaf or folded layers: path, index of the first leaf, and number of leaves.
 * @typedef {{name: string, leaf: number, count: number}} Entry
 * @typedef {{key: string, label: string, depth: number, entry: Entry | null, open: boolean,
 *   bytes: number, copies: number, count: number, left: number,
 *   call?: import("./model_panel.js").ConstraintCall}} Row
 * @typedef {{label: string, key: string, entry: Entry | null, children: Map<string, Node>,
 *   bytes: number, copies: number, count: number, left: number, role?: string}} Node
 */

/** A path part that is an index, such as `0` or `[0]`. */
const INDEX = /^\[?\d+\]?$/;

/** Splits a path into its parts: `layers_{0..31}/mlp/kernel` has three. @param {string} path */
function pathParts(path) {
  if (path.includes("/")) return path.split("/").filter(Boolean);
  const parts = path.match(/\{[^}]*\}|\[[^\]]*\]|[^.[\]{]+(?:\{[^}]*\}[^.[\]{]*)*/g);
  return parts?.filter((part) => part !== ".") ?? [path];
}

/** Returns an entry per leaf, or per group of folded layers. @param {Leaves} leaves @param {boolean} folded */
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
 * Builds the tree of the entries, without bytes, and lists the branches above each entry.
 * @param {Entry[]} leafEntries
 * @param {string[]} roles The group of each leaf, such as `parameters`, or "".
 */
export function tree(leafEntries, roles) {
  const root = newNode("", "");
  const chains = leafEntries.map((entry) => {
    const chain = [];
    let node = root;
    for (const part of pathParts(entry.name)) {
      let next = node.children.get(part);
      if (!next) node.children.set(part, (next = newNode(part, `${node.key}/${part}`)));
      node = next;
      const role = roles[entry.leaf] ?? "";
      node.role = node.role === undefined || node.role === role ? role : "";
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
 * Computes the bytes of every branch.
 * @param {ReturnType<typeof tree>} built
 * @param {(entry: Entry) => LeafKind} kindOf
 */
export function sumUp({ chains, some }, kindOf) {
  for (const chain of chains) {
    for (const node of chain) node.bytes = node.copies = node.count = node.left = 0;
  }
  chains.forEach((chain, i) => {
    const kind = kindOf(some[i]);
    const { count } = some[i];
    for (const node of chain) {
      node.bytes += kind.bytes * count;
      node.copies += kind.copies * count;
      node.count += count;
      if (kind.text === undefined) node.left += count;
    }
  });
}

/** @param {string} label @param {string} key @returns {Node} */
function newNode(label, key) {
  return { label, key, entry: null, children: new Map(), bytes: 0, copies: 0, count: 0, left: 0 };
}

/**
 * Returns the visible rows of a tree. A branch with one child is merged with the child; a branch
 * that is only an index has the name of its group, if known.
 * @param {Node} node
 * @param {Set<string>} closed
 * @param {number} [depth]
 * @param {Row[]} [rows]
 */
export function treeRows(node, closed, depth = 0, rows = []) {
  for (let child of node.children.values()) {
    const role = !node.role && INDEX.test(child.label) ? child.role : "";
    let label = role || child.label;
    while (!child.entry && child.children.size === 1) {
      const next = /** @type {Node} */ (child.children.values().next().value);
      if (role && !INDEX.test(next.label)) break;
      child = next;
      if (!role) label += `/${child.label}`;
    }
    const { key, entry, bytes, copies, count, left } = child;
    const open = child.children.size > 0 && !closed.has(key);
    const branch = child.children.size > 0;
    const sums = { bytes, copies, count, left };
    rows.push({ key, label, depth, entry: branch ? null : entry, open, ...sums });
    if (open) treeRows(child, closed, depth + 1, rows);
  }
  return rows;
}

/**
 * Returns all entries as one list, sorted by bytes, copies or name.
 * @param {Entry[]} leafEntries
 * @param {(entry: Entry) => LeafKind} kindOf
 * @param {Order} order
 * @returns {Row[]}
 */
export function sortedRows(leafEntries, kindOf, order) {
  const rows = leafEntries.map((entry) => {
    const { bytes, copies, text } = kindOf(entry);
    const { name, count, leaf } = entry;
    const left = text === undefined ? count : 0;
    const all = { bytes: bytes * count, copies: copies * count, count, left };
    return { key: `=${leaf}`, label: name, depth: 0, entry, open: false, ...all };
  });
  if (order === "name") return rows.sort((a, b) => countedBefore(a.label, b.label));
  return order === "tree" ? rows : rows.sort((a, b) => b[order] - a[order]);
}

/** Formats the bytes of a row, with `≥` if some leaves have unknown sizes. @param {Row} row */
export function rowBytes({ bytes, left }) {
  if (left) return bytes ? `≥ ${bytesText(bytes)}` : "–";
  return bytesText(bytes);
}

/** Formats bytes in binary units, as Python does. @param {number} count */
export function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const unit = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  const value = count / 1024 ** unit;
  const text = value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
  return `${text.replace(/\.0$/, "")} ${units[unit]}`;
}
