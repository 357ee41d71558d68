// @ts-check
// The tab Shards: a row per device, the one pointed at marked; or a row per host, with what it loads.
// Only rows in sight are made.
import { Choice } from "./controls.js";
import { OWN_KEYS, fill, h } from "./dom.js";
import { hostParts, partText } from "./host_parts.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */

const SHARD_ROW = 24; // pixels
const SHARD_ROWS_AT_FIRST = 12; // before the height is known
const ROWS_OF = [
  { value: "device", label: "a row per device" },
  { value: "host", label: "a row per host: what it loads" },
];

export class ShardTable {
  /** @param {import("./highlight.js").Highlight} highlight */
  constructor(highlight) {
    this.highlight = highlight;
    /** @type {ArrayView[]} */ this.arrays = [];
    /** What a row is: a device or a host. */
    this.of = "device";
    /** The hosts, ascending, and how many devices each has. @type {[number, number][]} */
    this.hosts = [];
    this.choice = new Choice("Rows of shards", (of) => {
      this.of = of;
      this.show(this.arrays);
    });
    this.choice.select.dataset.keep = "true"; // it needs no kernel
    this.head = h("div", { class: "sv-shardhead" });
    this.inner = h("div", { class: "sv-shardinner" });
    const keys = { tabindex: "0", ...OWN_KEYS, on: { scroll: () => this.paint() } };
    const props = { class: "sv-shards", "aria-label": "Shards", ...keys };
    this.scroller = h("div", props, this.head, this.inner);
    this.bar = h("div", { class: "sv-vbar" }, this.choice.node);
    this.node = h("div", { class: "sv-shardbox" }, this.bar, this.scroller);
    highlight.listeners.push(() => {
      this.follow();
      this.paint();
    });
  }

  /** @param {ArrayView[]} arrays */
  show(arrays) {
    this.arrays = arrays;
    this.scroller.style.setProperty("--sv-arrays", String(arrays.length));
    this.hosts = this.countHosts();
    this.bar.hidden = this.hosts.length < 2;
    if (this.hosts.length < 2) this.of = "device";
    this.choice.sync(ROWS_OF, this.of);
    this.inner.style.height = `${this.count * SHARD_ROW}px`;
    const columns = arrays.map((array) => h("span", { text: array.name }));
    const first = this.of === "host" ? ["host", "devices"] : ["device", "host"];
    fill(this.head, ...first.map((text) => h("span", { text })), ...columns);
    this.paint();
  }

  /** How many rows there are. */
  get count() {
    return this.of === "host" ? this.hosts.length : this.highlight.ids.length;
  }

  /** @returns {[number, number][]} */
  countHosts() {
    const { hosts, hostCount } = this.highlight;
    if (hostCount < 2) return [];
    /** @type {Map<number, number>} */
    const counts = new Map();
    for (const host of hosts) counts.set(host, (counts.get(host) ?? 0) + 1);
    return [...counts].sort(([a], [b]) => a - b);
  }

  /** Brings the row of the device that is pointed at into sight. */
  follow() {
    const { scroller } = this;
    const { pointing } = this.highlight;
    if (pointing?.kind !== "device" || this.of === "host") return;
    if (!scroller.isConnected || scroller.matches(":hover")) return;
    const top = pointing.at * SHARD_ROW;
    const height = scroller.clientHeight;
    if (top < scroller.scrollTop || top > scroller.scrollTop + height - SHARD_ROW) {
      scroller.scrollTop = Math.max(0, top - height / 2);
    }
  }

  paint() {
    const { scroller, highlight } = this;
    if (!scroller.isConnected) return;
    const height = scroller.clientHeight || SHARD_ROWS_AT_FIRST * SHARD_ROW;
    const first = Math.max(0, Math.floor(scroller.scrollTop / SHARD_ROW) - 2);
    const last = Math.min(this.count, first + Math.ceil(height / SHARD_ROW) + 5);
    const byHost = this.of === "host";
    const pointed = new Set(highlight.pointed().map((at) => (byHost ? highlight.hosts[at] : at)));
    const rows = [];
    for (let i = first; i < last; i++) {
      rows.push(byHost ? this.hostRow(i, pointed) : this.row(i, pointed.has(i)));
    }
    fill(this.inner, ...rows);
  }

  /** What a host loads of every array. @param {number} i @param {Set<number>} pointed hosts */
  hostRow(i, pointed) {
    const [host, devices] = this.hosts[i];
    const cells = this.arrays.map((array, number) => {
      const parts = hostParts(this.highlight, number);
      const text = parts ? `[${partText(array, parts, host)}]` : "–";
      return h("span", { text, title: text });
    });
    const props = {
      class: pointed.has(host) ? "sv-shardrow sv-marked" : "sv-shardrow",
      style: { top: `${i * SHARD_ROW}px` },
    };
    const id = h("b", { text: String(host) });
    return h("div", props, id, h("span", { text: String(devices) }), ...cells);
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
