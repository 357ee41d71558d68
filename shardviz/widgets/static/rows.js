// @ts-check
// The Shards tab: a row a device, the pointed-at one marked. Only rows in sight are made.
import { fill, h } from "./dom.js";

const ROW = 24;
const SEEN = 12;

export class ShardRows {
  /** @param {import("./linked.js").Links} links */
  constructor(links) {
    this.links = links;
    this.head = h("div", { class: "sv-shardhead" });
    this.inner = h("div", { class: "sv-shardinner" });
    this.scroller = h(
      "div",
      {
        class: "sv-shards",
        tabindex: "0",
        "aria-label": "Shards",
        "data-lm-suppress-shortcuts": "true",
        on: { scroll: () => this.paint() },
      },
      this.inner,
    );
    this.scroller.prepend(this.head);
    this.node = h("div", { class: "sv-shardbox" }, this.scroller);
    links.listeners.push(() => {
      this.follow();
      this.paint();
    });
  }

  /** @param {any} view */
  show(view) {
    this.view = view;
    this.scroller.style.setProperty("--sv-arrays", String(view.arrays.length));
    this.inner.style.height = `${this.links.ids.length * ROW}px`;
    const columns = view.arrays.map((/** @type {any} */ a) => h("span", { text: a.name }));
    fill(this.head, h("span", { text: "device" }), h("span", { text: "host" }), ...columns);
    this.paint();
  }

  /** Brings the pointed-at device's row into sight. */
  follow() {
    const p = this.links.pointing;
    if (!p || p.kind !== "device" || !this.scroller.isConnected || this.scroller.matches(":hover"))
      return;
    const top = p.at * ROW,
      seen = this.scroller.clientHeight;
    if (top < this.scroller.scrollTop || top > this.scroller.scrollTop + seen - ROW)
      this.scroller.scrollTop = Math.max(0, top - seen / 2);
  }

  paint() {
    if (!this.view || !this.scroller.isConnected) return;
    const links = this.links,
      first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 2);
    const last = Math.min(
      links.ids.length,
      first + Math.ceil((this.scroller.clientHeight || SEEN * ROW) / ROW) + 5,
    );
    const pointed = new Set(links.pointed());
    const rows = [];
    for (let i = first; i < last; i++) {
      const cells = this.view.arrays.map((/** @type {any} */ a, /** @type {number} */ n) => {
        const groups = links.groups(n);
        return h("span", {
          text: groups
            ? `[${links
                .box(a, groups[i])
                .map(([s, e]) => `${s}:${e}`)
                .join(", ")}]`
            : "–",
        });
      });
      rows.push(
        h(
          "div",
          {
            class: pointed.has(i) ? "sv-shardrow sv-marked" : "sv-shardrow",
            style: { top: `${i * ROW}px` },
            on: {
              pointerenter: () => links.hover({ kind: "device", at: i }),
              pointerleave: () => links.hover(null),
              click: () => links.point({ kind: "device", at: i }, true),
            },
          },
          h("b", { text: String(links.ids[i]) }),
          h("span", { text: String(links.hosts[i]) }),
          ...cells,
        ),
      );
    }
    fill(this.inner, ...rows);
  }
}
