// @ts-check
// The tab Shards: a row per device, the one pointed at marked. Only rows in sight are made.
import { OWN_KEYS, fill, h, rowsInSight } from "./dom.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */

const SHARD_ROW = 24; // pixels

export class ShardTable {
  /** @param {import("./highlight.js").Highlight} highlight */
  constructor(highlight) {
    this.highlight = highlight;
    /** @type {ArrayView[]} */ this.arrays = [];
    this.head = h("div", { class: "sv-shardhead" });
    this.inner = h("div", { class: "sv-shardinner" });
    const keys = { tabindex: "0", ...OWN_KEYS, on: { scroll: () => this.paint() } };
    const props = { class: "sv-shards", "aria-label": "Shards", ...keys };
    this.node = h("div", props, this.head, this.inner);
    highlight.listeners.push(() => {
      this.follow();
      this.paint();
    });
  }

  /** @param {ArrayView[]} arrays */
  show(arrays) {
    this.arrays = arrays;
    this.node.style.setProperty("--sv-arrays", String(arrays.length));
    this.inner.style.height = `${this.highlight.ids.length * SHARD_ROW}px`;
    const columns = arrays.map((array) => h("span", { text: array.name }));
    fill(this.head, ...["device", "host"].map((text) => h("span", { text })), ...columns);
    this.paint();
  }

  /** Brings the row of the device that is pointed at into sight. */
  follow() {
    const { node } = this;
    const { pointing } = this.highlight;
    if (pointing?.kind !== "device" || !node.isConnected || node.matches(":hover")) return;
    const top = pointing.at * SHARD_ROW;
    const height = node.clientHeight;
    if (top < node.scrollTop || top > node.scrollTop + height - SHARD_ROW) {
      node.scrollTop = Math.max(0, top - height / 2);
    }
  }

  paint() {
    const { node, highlight } = this;
    if (!node.isConnected) return;
    const [first, last] = rowsInSight(node, SHARD_ROW, highlight.ids.length);
    const pointed = new Set(highlight.pointed());
    const rows = [];
    for (let i = first; i < last; i++) rows.push(this.row(i, pointed.has(i)));
    fill(this.inner, ...rows);
  }

  /** @param {number} at the position of the device @param {boolean} marked */
  row(at, marked) {
    const { highlight } = this;
    const cells = this.arrays.map((array, i) => {
      const groups = highlight.groups(i);
      return h("span", { text: groups ? `[${highlight.indexText(array, groups[at])}]` : "–" });
    });
    const props = {
      class: marked ? "sv-shardrow sv-marked" : "sv-shardrow",
      style: { top: `${at * SHARD_ROW}px` },
      on: {
        pointerenter: () => highlight.hover({ kind: "device", at }),
        pointerleave: () => highlight.hover(null),
        click: () => highlight.point({ kind: "device", at }, true),
      },
    };
    const id = h("b", { text: String(highlight.ids[at]) });
    return h("div", props, id, h("span", { text: String(highlight.hosts[at]) }), ...cells);
  }
}
