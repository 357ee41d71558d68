// @ts-check
// The sentence below the pictures.
// It describes the tile under the pointer, or how and why the selected array is split.
import { button, fill, h, onResize, toggle } from "./dom.js";
import { listed, named, onHosts } from "./highlight.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/** @typedef {import("./view_data.js").View} View */
/** @typedef {import("./highlight.js").Highlight} Highlight */

export class Sentence {
  /** @param {Highlight} highlight @param {import("./explorer.js").Requests} page */
  constructor(highlight, page) {
    this.highlight = highlight;
    this.page = page;
    this.node = h("div", { class: "sv-sentence", role: "status" });
    this.why = h("div", { class: "sv-why" });
    /** @type {ArrayView["dims"][]} */ this.reasons = [];
    onResize(this.node, () => this.fit());
  }

  /** @param {View} view */
  show(view) {
    const { node } = this;
    const array = view.arrays.at(view.selected);
    const first = h("div", null, ...this.words(view, array));
    if (array?.problem) first.className = "sv-bad";
    const { mend } = array ?? {};
    const act = () => this.page.goTo({ view: "Rules", array: view.selected, dim: mend });
    const fix = mend === undefined ? [] : [button("Fix…", act, { class: "sv-button sv-small" })];
    fill(node, first, this.why, ...fix);
    this.reasons = array ? reasonsOf(array) : [[]];
    this.fit();
    toggle(node, "sv-pinned", this.highlight.pinned);
  }

  /** Shows all reasons if they fit, otherwise the most important one; Rules lists all of them. */
  fit() {
    for (const reasons of this.reasons) {
      const parts = reasons.map(({ axes, why }) =>
        h("span", { class: axes.length ? "" : "sv-muted", text: `${why} ` }),
      );
      fill(this.why, ...parts);
      if (this.node.scrollHeight <= this.node.clientHeight) return;
    }
  }

  /** @param {View} view @param {ArrayView | undefined} array */
  words(view, array) {
    const { pointing } = this.highlight;
    if (array?.problem) return [bold(array.name), " cannot be laid out. ", array.problem];
    if (pointing?.kind === "device") return this.deviceWords(view, array, pointing.at);
    if (!array) return ["The program takes no arrays: it creates its own."];
    if (pointing) return this.blockWords(view.arrays[pointing.array], pointing);
    return arrayWords(array);
  }

  /** @param {View} view @param {ArrayView | undefined} array @param {number} at */
  deviceWords(view, array, at) {
    const { highlight } = this;
    const id = highlight.ids[at];
    const place = coordinates(highlight, view, at);
    const groups = highlight.groups(view.selected);
    if (!array || !groups) return [bold(`Device ${id}`), `: ${place}.`];
    const holders = highlight.holders(view.selected, groups[at]);
    const otherIds = holders.filter((other) => other !== at).map((other) => highlight.ids[other]);
    const number = holders.indexOf(at) + 1;
    const replica = otherIds.length
      ? `, replica ${number} of ${array.replicas} (with ${listed(otherIds)})`
      : "";
    return [
      bold(`Device ${id}`),
      " holds ",
      code(`${array.name}[${highlight.indexText(array, groups[at])}]`),
      `, ${array.shardBytes}${replica}.`,
      h("span", { class: "sv-muted", text: `  ${place}` }),
    ];
  }

  /** @param {ArrayView} array @param {{array: number, group: number}} block */
  blockWords(array, block) {
    const { highlight } = this;
    const holders = highlight.holders(block.array, block.group);
    const ids = holders.map((at) => highlight.ids[at]);
    return [
      code(`${array.name}[${highlight.indexText(array, block.group)}]`),
      `, ${array.shardBytes}, is held by `,
      bold(named(ids)),
      `${onHosts(highlight, holders)}.`,
    ];
  }
}

/** @param {ArrayView} array */
function arrayWords({ name, blocks = 1, replicas = 1, shard = [], shardBytes = "" }) {
  if (blocks === 1) {
    const all = replicas === 1 ? "1 device holds" : `${replicas.toLocaleString("en")} devices hold`;
    return [bold(name), ` is not split: ${all} all of it, ${shardBytes} each.`];
  }
  const count = `${blocks.toLocaleString("en")} blocks`;
  const holders =
    replicas === 1
      ? "every device holds a different one"
      : `${replicas.toLocaleString("en")} devices hold each`;
  const shape = code(`[${shard.join(", ")}]`);
  return [bold(name), ` is split into ${count} of `, shape, `, ${shardBytes} each; ${holders}.`];
}

/**
 * Returns the mesh coordinates of a device, such as `data 1, model 1, host 0`.
 * @param {Highlight} highlight
 * @param {View} view
 * @param {number} position
 */
function coordinates({ sizes, hostCount, hosts }, view, position) {
  const parts = [];
  let remainder = position;
  for (let i = sizes.length - 1; i >= 0; i--) {
    parts.unshift(`${view.mesh.axes[i].name} ${remainder % sizes[i]}`);
    remainder = Math.floor(remainder / sizes[i]);
  }
  if (hostCount > 1) parts.push(`host ${hosts[position]}`);
  return parts.join(", ");
}

/** @param {string} text */
const bold = (text) => h("b", { text });

/** @param {string} text */
const code = (text) => h("code", { text });

/**
 * Returns why dimensions are split or not, in three lengths: for all dimensions, for the most
 * important dimension, and only the first sentence for that dimension.
 * @param {ArrayView} array
 */
function reasonsOf({ dims, mend = 0 }) {
  const matters = dims[mend];
  if (!matters) return [dims, []];
  const [why] = /^.*?\.(?= |$)/.exec(matters.why) ?? [matters.why];
  return [dims, [matters], [{ ...matters, why }], []];
}
