// @ts-check
// The stage: devices and arrays, linked, and the sentence about what is pointed at.
import { PictureView } from "./canvas.js";
import { Choice, button, fill, h, setText, toggle } from "./dom.js";
import { ranges } from "./linked.js";

/** @typedef {import("./linked.js").Links} Links */

const BY = [
  { value: "mesh/block", label: "by mesh axes" },
  { value: "host/block", label: "by host" },
];
const COLOURED = [
  { value: "mesh/host", label: "by mesh axes · hosts" },
  { value: "host/host", label: "by host · hosts" },
];
const PLACED = { value: "position/block", label: "by position" },
  PLACED_HOSTS = { value: "position/host", label: "by position · hosts" };
// What is looked at where a program takes no arrays.
const NO_ARRAY = {
  name: "No arrays",
  short: "",
  rank: 0,
  dims: [],
  problem: "",
  blocks: 1,
  strides: [],
};
const HOW_LINKS = "Choose a collective below to see the links that it uses.";

export class Stage {
  /**
   * @param {Links} links
   * @param {(field: string, value: any) => void} edit
   * @param {boolean} live whether a kernel answers
   */
  constructor(links, edit, live) {
    this.links = links;
    this.live = live;
    this.edit = edit;
    /** @type {any} */ this.view = null;
    /** @type {any[]} */ this.pictures = [];
    /** @type {any} */ this.theme = null;
    /** The position in mesh order of every device tile. */
    this.at = new Int32Array(0);
    /** The block of the selected array that every device tile holds, and what that was made of. */
    this.tiles = new Int32Array(0);
    /** @type {any} */ this.shownGroups = undefined;
    /** @type {any} */ this.shownAt = null;
    this.ranks = new Int32Array(0);
    /** @type {any} */ this.rankKey = null;
    this.stepKey = "";
    this.by = new Choice("Device order", (v) => {
      const [by, colour] = v.split("/");
      edit("by", by);
      edit("colour", colour);
    });
    this.devices = new PictureView("Devices", {
      point: (t) => links.hover({ kind: "device", at: this.positionOf(t) }),
      leave: () => links.hover(null),
      pin: (t) => links.point({ kind: "device", at: this.positionOf(t) }, true),
      release: () => links.point(null, false),
      lines: (t) => this.deviceLines(t),
      corner: (t) => this.replicaOf(this.positionOf(t)),
    });
    this.count = h("span", { class: "sv-count" });
    this.note = h("div", { class: "sv-devicenote", role: "status" });
    /** The links of the chosen collective, and where devices stand. @type {any} */ this.linkPicture =
      null;
    /** @type {any} */ this.standing = { by: "mesh", places: false, note: "", count: "" };
    /** @type {any} */ this.linked = null;
    this.array = new PictureView(
      "Array",
      this.blockHooks(() => this.selected),
    );
    this.title = h("h3", { class: "sv-head sv-mono sv-title" });
    this.steps = h("div", { class: "sv-steps" });
    this.thumbs = h("div", { class: "sv-thumbs" });
    /** @type {Map<number, any>} */
    this.small = new Map();
    this.sentence = h("div", { class: "sv-sentence", role: "status", "aria-live": "polite" });
    this.node = h(
      "section",
      { class: "sv-stage" },
      h(
        "div",
        { class: "sv-col" },
        h(
          "div",
          { class: "sv-headrow" },
          h(
            "span",
            { class: "sv-line" },
            h("h3", { class: "sv-head", text: "Devices" }),
            this.count,
          ),
          this.by.node,
        ),
        this.note,
        this.devices.node,
      ),
      h(
        "div",
        { class: "sv-col" },
        h("div", { class: "sv-headrow" }, this.title, this.steps),
        this.array.node,
        this.thumbs,
      ),
      this.sentence,
    );
    links.listeners.push(() => this.mark());
  }

  /** The array that is looked at. */
  get current() {
    return this.view.arrays[this.selected] ?? NO_ARRAY;
  }

  get selected() {
    return this.view ? this.view.selected : 0;
  }

  /** @param {() => number} array which array the picture shows */
  blockHooks(array) {
    const links = this.links;
    const block = (/** @type {number} */ t) => ({
      kind: /** @type {"block"} */ ("block"),
      array: array(),
      group: this.pictures[array()].group[t],
    });
    return {
      point: (/** @type {number} */ t) => links.hover(block(t)),
      leave: () => links.hover(null),
      pin: (/** @type {number} */ t) => links.point(block(t), true),
      release: () => links.point(null, false),
      lines: (/** @type {number} */ t) =>
        this.pictures[array()].label(t).split("\n").filter(Boolean),
      hint: (/** @type {number} */ t) => this.pictures[array()].hint(t),
    };
  }

  /** @param {number} tile the position of a device tile's device in mesh order */
  positionOf(tile) {
    return this.at[tile];
  }

  /** @param {number} tile */
  deviceLines(tile) {
    const position = this.positionOf(tile),
      lines = [String(this.links.ids[position])];
    if (this.links.hostCount > 1) lines.push(`host ${this.links.hosts[position]}`);
    return lines;
  }

  /** @param {number} position */
  replicaOf(position) {
    const a = this.view?.arrays[this.selected];
    if (!a || !a.strides || a.replicas < 2) return "";
    return `r${this.replicaIndex(position)}`;
  }

  /**
   * The how-manieth holder of its block a device is.
   * @param {number} position
   */
  replicaIndex(position) {
    const groups = this.links.groups(this.selected);
    if (!groups) return 0;
    if (this.rankKey !== groups) {
      this.rankKey = groups;
      const seen = new Map();
      this.ranks = Int32Array.from(groups, (g) => {
        const n = seen.get(g) ?? 0;
        seen.set(g, n + 1);
        return n;
      });
    }
    return this.ranks[position];
  }

  /**
   * @param {any} view
   * @param {any} place how devices stand
   * @param {any} devicePicture
   * @param {any[]} pictures one an array; null where it has none
   * @param {any} links the words and the picture of the chosen collective's links
   * @param {any} theme
   */
  show(view, place, devicePicture, pictures, links, theme) {
    this.view = view;
    this.standing = place;
    this.showLinks(links);
    if (this.devicePicture !== devicePicture || this.ids !== this.links.ids) {
      this.devicePicture = devicePicture;
      this.ids = this.links.ids;
      this.at = new Int32Array(devicePicture.x.length);
      for (let t = 0; t < this.at.length; t++)
        this.at[t] = this.links.positionOf(devicePicture.device[t]);
    }
    this.pictures = pictures;
    this.theme = theme;
    const some = this.links.hostCount > 1,
      placed = place.places ? [PLACED] : [];
    this.by.sync(
      some
        ? [...BY, ...placed, ...COLOURED, ...(place.places ? [PLACED_HOSTS] : [])]
        : [...BY, ...placed],
      `${place.by}/${some ? view.look.colour : "block"}`,
    );
    setText(this.count, place.count || view.mesh.count);
    this.count.title = place.count ? `${place.count}\n${view.mesh.local}` : view.mesh.local;
    const a = this.current;
    setText(this.title, `${a.name}  ${a.short}`);
    this.showSteps(a);
    this.paintDevices();
    const main = pictures[this.selected];
    toggle(this.array.node, "sv-stale", Boolean(a.problem));
    this.array.node.hidden = a === NO_ARRAY;
    if (main) this.array.show(main, null, main.count, theme);
    this.showThumbs();
    this.mark();
  }

  /**
   * The links count only while their collective is the chosen one.
   * @param {any} links
   */
  showLinks(links) {
    const wanted = links.key && this.links.team?.key === links.key ? links : null;
    this.linkPicture = wanted?.picture ?? null;
    const placed = this.standing.by === "position" && this.live;
    setText(this.note, wanted?.words || this.standing.note || (placed ? HOW_LINKS : ""));
    // Where sentences come and go, the picture under them keeps its size.
    toggle(this.note, "sv-kept", placed);
  }

  paintDevices() {
    const drawn = this.linkPicture;
    if (drawn && drawn.x.length === this.at.length) {
      // Tiles take the colours of the groups, so that they go with the links.
      if (this.linked?.drawn !== drawn || this.linked.base !== this.devicePicture)
        this.linked = {
          drawn,
          base: this.devicePicture,
          picture: { ...this.devicePicture, edges: drawn.edges, hue: drawn.hue },
        };
      this.shownGroups = undefined;
      return this.devices.show(this.linked.picture, drawn.group, drawn.count, this.theme);
    }
    const a = this.current,
      byHost = this.view.look.colour === "host" && this.links.hostCount > 1;
    const groups = byHost ? this.links.hosts : this.links.groups(this.selected);
    if (this.shownGroups !== groups || this.shownAt !== this.at) {
      this.shownGroups = groups;
      this.shownAt = this.at;
      this.tiles = new Int32Array(this.at.length).fill(-1);
      if (groups) for (let t = 0; t < this.at.length; t++) this.tiles[t] = groups[this.at[t]];
      this.blockPicture = { ...this.devicePicture, hue: "blocks" };
    }
    this.devices.show(
      this.blockPicture,
      this.tiles,
      byHost ? this.links.hostGroups : groups ? a.blocks : 1,
      this.theme,
    );
  }

  /**
   * Which two dimensions are shown, and steps through the others.
   * @param {any} a
   */
  showSteps(a) {
    const facts = this.pictures[this.selected]?.facts;
    const key = JSON.stringify([a.rank, facts]);
    if (key === this.stepKey) return;
    this.stepKey = key;
    const parts = [];
    if (a.rank > 2 && facts) {
      const options = [],
        [row, column] = facts.dims;
      for (let i = 0; i < a.rank; i++)
        for (let j = 0; j < a.rank; j++)
          if (i !== j) options.push({ value: `${i},${j}`, label: `dims ${i} × ${j}` });
      const choice = new Choice("Shown dimensions", (v) =>
        this.edit("dims", v.split(",").map(Number)),
      );
      choice.sync(options, `${row},${column}`);
      parts.push(choice.node);
      const hidden = Array.from({ length: a.rank }, (_, d) => d).filter(
        (d) => !facts.dims.includes(d),
      );
      const at = (/** @type {number} */ d) =>
        facts.steps.find((/** @type {any} */ s) => s.dim === d)?.at ?? 0;
      for (const s of facts.steps) {
        const go = (/** @type {number} */ by) =>
          this.edit(
            "at",
            hidden.map((d) =>
              d === s.dim ? (s.at === null ? 0 : (s.at + by + s.count) % s.count) : at(d),
            ),
          );
        const where =
          s.at === null
            ? `dim ${s.dim}: all ${s.count}`
            : `dim ${s.dim}: ${s.at + 1} of ${s.count}`;
        parts.push(
          h(
            "span",
            { class: "sv-step" },
            button("‹", () => go(-1), { "aria-label": `Previous block of dim ${s.dim}` }),
            h("span", { text: where }),
            button("›", () => go(1), { "aria-label": `Next block of dim ${s.dim}` }),
          ),
        );
      }
      if (facts.steps.some((/** @type {any} */ s) => s.at !== null))
        parts.push(
          button("all", () => this.edit("at", null), {
            class: "sv-link",
            "aria-label": "Show all blocks",
          }),
        );
    }
    fill(this.steps, ...parts);
  }

  showThumbs() {
    const wanted = this.view.arrays
      .map((/** @type {any} */ _, /** @type {number} */ i) => i)
      .filter((/** @type {number} */ i) => i !== this.selected && this.pictures[i]);
    for (const [i, entry] of this.small)
      if (!wanted.includes(i)) {
        entry.view.destroy();
        entry.node.remove();
        this.small.delete(i);
      }
    for (const i of wanted) {
      let entry = this.small.get(i);
      if (!entry) {
        const view = new PictureView(
          "",
          this.blockHooks(() => i),
          { maxScale: 0.8, plain: true },
        );
        const caption = h("button", {
          type: "button",
          class: "sv-thumbname sv-mono",
          "data-lm-suppress-shortcuts": "true",
          on: { click: () => this.edit("select", i) },
        });
        const holds = h("div", { class: "sv-holds" });
        entry = {
          view,
          caption,
          holds,
          node: h("div", { class: "sv-thumb" }, caption, view.node, holds),
        };
        this.small.set(i, entry);
      }
      this.thumbs.append(entry.node);
      const a = this.view.arrays[i],
        picture = this.pictures[i];
      setText(entry.caption, `${a.name}  ${a.short}`);
      entry.view.node.setAttribute("aria-label", `Array ${a.name}`);
      const hue = this.theme.groups[(i + 3) % this.theme.groups.length];
      if (entry.picture !== picture || entry.hue !== hue) {
        entry.picture = picture;
        entry.hue = hue;
        entry.bare = { ...picture, hue, labels: [], frames: [] };
      }
      entry.view.show(entry.bare, null, 1, this.theme);
    }
  }

  /** Marks everything that belongs to what is pointed at, and says so. */
  mark() {
    if (!this.view || !this.devicePicture) return;
    const links = this.links,
      p = links.pointing,
      pointed = new Set(links.pointed());
    const mine = links.groups(this.selected);
    const device = p && p.kind === "device" ? p.at : -1;
    // A chosen collective shows who takes part in it; else those stand out who hold the same block.
    const team = links.team ? links.teammates(Math.max(0, device)) : [];
    const siblings = new Set(
      team.length ? team : device >= 0 && mine ? links.holders(this.selected, mine[device]) : [],
    );
    /** @type {Set<number>} */ const strong = new Set();
    /** @type {Set<number>} */ const soft = new Set();
    let frame = -1;
    if (p || team.length) {
      for (let t = 0; t < this.devicePicture.x.length; t++) {
        const position = this.positionOf(t);
        if (pointed.has(position)) {
          strong.add(t);
          if (device >= 0) frame = this.frameOf(t);
        } else if (siblings.has(position)) soft.add(t);
      }
    }
    this.devices.mark({ strong, soft, frame });
    this.markArray(this.array, this.selected, pointed);
    for (const [i, entry] of this.small) {
      this.markArray(entry.view, i, pointed);
      setText(entry.holds, device >= 0 ? this.holds(i, device) : "");
    }
    this.say();
  }

  /** @param {number} tile the frame (host) around a device tile, or -1 */
  frameOf(tile) {
    const p = this.devicePicture,
      x = p.x[tile] + p.w[tile] / 2,
      y = p.y[tile] + p.h[tile] / 2;
    return p.frames.findIndex(
      (/** @type {any} */ f) => x > f.x && x < f.x + f.width && y > f.y && y < f.y + f.height,
    );
  }

  /**
   * @param {PictureView} view
   * @param {number} array
   * @param {Set<number>} pointed
   */
  markArray(view, array, pointed) {
    const groups = this.links.groups(array),
      picture = this.pictures[array],
      p = this.links.pointing;
    const marks = { strong: new Set(), soft: new Set(), frame: -1 };
    if (groups && picture && p) {
      const held = new Set([...pointed].map((at) => groups[at]));
      for (let t = 0; t < picture.group.length; t++)
        if (held.has(picture.group[t]))
          marks[p.kind === "block" && p.array !== array ? "soft" : "strong"].add(t);
    }
    view.mark(/** @type {any} */ (marks));
  }

  /**
   * `x[16:32, 256:512]`
   * @param {number} array
   * @param {number} position
   */
  holds(array, position) {
    const groups = this.links.groups(array),
      a = this.view.arrays[array];
    if (!groups) return "";
    return `${a.name}[${this.links
      .box(a, groups[position])
      .map(([s, e]) => `${s}:${e}`)
      .join(", ")}]`;
  }

  say() {
    const a = this.current,
      links = this.links,
      p = links.pointing,
      strong = (/** @type {string} */ t) => h("b", { text: t });
    const mono = (/** @type {string} */ t) => h("code", { text: t });
    const lines = [];
    if (a.problem)
      lines.push(h("div", { class: "sv-bad" }, strong(a.name), " cannot be laid out. ", a.problem));
    else if (a === NO_ARRAY)
      lines.push(
        h(
          "div",
          null,
          ...(p && p.kind === "device"
            ? [strong(`Device ${links.ids[p.at]}`), `: ${this.place(p.at)}.`]
            : ["The program takes no arrays: it makes what it works on."]),
        ),
      );
    else if (p && p.kind === "device") {
      const groups = /** @type {Int32Array} */ (links.groups(this.selected)),
        id = links.ids[p.at];
      const others = links
        .holders(this.selected, groups[p.at])
        .filter((i) => i !== p.at)
        .map((i) => links.ids[i]);
      const replica = others.length
        ? `, replica ${this.replicaIndex(p.at) + 1} of ${a.replicas} (with ${ranges(others, 12)})`
        : "";
      lines.push(
        h(
          "div",
          null,
          strong(`Device ${id}`),
          " holds ",
          mono(this.holds(this.selected, p.at)),
          `, ${a.shardBytes}${replica}.`,
          h("span", { class: "sv-muted", text: `  ${this.place(p.at)}` }),
        ),
      );
    } else if (p && p.kind === "block") {
      const b = this.view.arrays[p.array],
        ids = links.holders(p.array, p.group).map((i) => links.ids[i]);
      const box = links
        .box(b, p.group)
        .map(([s, e]) => `${s}:${e}`)
        .join(", ");
      lines.push(
        h(
          "div",
          null,
          mono(`${b.name}[${box}]`),
          `, ${b.shardBytes}, is held by `,
          strong(`${ids.length === 1 ? "device" : "devices"} ${ranges(ids, 16)}`),
          ".",
        ),
      );
    } else {
      lines.push(
        h(
          "div",
          null,
          strong(a.name),
          ` is cut into ${a.blocks.toLocaleString("en")} ${a.blocks === 1 ? "block" : "blocks"} of `,
          mono(`[${a.shard.join(", ")}]`),
          `, ${a.shardBytes} each; ${a.replicas === 1 ? "every device holds its own" : `${a.replicas.toLocaleString("en")} devices hold each`}.`,
        ),
      );
    }
    const why = h("div", { class: "sv-why" });
    for (const d of a.dims)
      why.append(h("span", { class: d.axes.length ? "" : "sv-muted", text: `${d.why} ` }));
    fill(this.sentence, ...lines, why);
    toggle(this.sentence, "sv-pinned", links.pinned);
  }

  /**
   * Where a device stands: `data 1, model 1, host 0`.
   * @param {number} position
   */
  place(position) {
    const parts = [];
    let rest = position;
    for (let i = this.links.sizes.length - 1; i >= 0; i--) {
      parts.unshift(`${this.view.mesh.axes[i].name} ${rest % this.links.sizes[i]}`);
      rest = Math.floor(rest / this.links.sizes[i]);
    }
    if (this.links.hostCount > 1) parts.push(`host ${this.links.hosts[position]}`);
    return parts.join(", ");
  }

  destroy() {
    this.devices.destroy();
    this.array.destroy();
    for (const entry of this.small.values()) entry.view.destroy();
  }
}
