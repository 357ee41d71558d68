// @ts-check
// The pictures of devices and arrays, linked to each other, with a sentence about them.
import { ArraySteps } from "./array_steps.js";
import { tabRow } from "./controls.js";
import { button, h, headCut, setText, toggle } from "./dom.js";
import { named, onHosts } from "./highlight.js";
import { keepLast } from "./keep_last.js";
import { naturalOrder } from "./natural_order.js";
import { blocksBefore, devicesBefore } from "./picture_moves.js";
import { noMarks } from "./picture_painter.js";
import { PictureView } from "./picture_view.js";
import { Sentence } from "./sentence.js";
import { replicasText } from "./view_data.js";

/** @typedef {import("./view_data.js").View} View */
/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/** @typedef {import("./picture_data.js").Picture} Picture */
/**
 * The pictures of the devices, of each array (null for arrays without one), and of the selected
 * collective's links.
 * @typedef {{view: View, theme: import("./colours.js").Theme, arrays: (Picture | null)[], links: DrawnLinks,
 *   devices: DrawnDevices}} Shown
 * @typedef {{key: string, words: string, edges: Picture["edges"]}} DrawnLinks
 * @typedef {{picture: Picture, by: string, no_positions: string, note: string,
 *   count: string}} DrawnDevices
 */

/** Tab -> arrangement of the devices. @type {Record<string, string>} */
const ORDERS = { Mesh: "mesh", Hosts: "host", Chips: "position" };
const HOW_LINKS = "choose a collective to see the links that it uses";
const THUMB_WIDTH = 88; // pixels
const MOST_NAMED = 16; // participants of a collective that are listed by id

export class PicturePanel {
  /** @param {import("./highlight.js").Highlight} highlight @param {import("./explorer.js").Requests} page */
  constructor(highlight, page) {
    this.highlight = highlight;
    this.page = page;
    /**
     * True if the pictures are next to the Program view. Only there does the selected collective
     * mark devices; in other views, colours mean blocks.
     */
    this.inProgram = false;
    /** @type {Shown | null} */ this.shown = null;
    /** The mesh position of every device tile. */
    this.positions = new Int32Array(0);
    this.positionsOfTiles = keepLast(positionsOfTiles);
    /** The state before the last change, from which tiles are animated. @type {import("./picture_moves.js").Before | null} */
    this.before = null;
    this.devicesInBlocks = keepLast(devicesInBlocks);
    this.groupsOfTiles = keepLast(groupsOfTiles);
    const choose = (/** @type {string} */ name) => {
      const { by, no_positions: why } = this.shown?.devices ?? {};
      if (ORDERS[name] !== by && !(why && name === "Chips")) page.edit("by", ORDERS[name]);
    };
    const about = { class: "sv-order", "aria-label": "Device order" };
    this.order = tabRow(Object.keys(ORDERS), about, "sv-tab", choose);
    for (const tab of this.order.tabs) tab.dataset.edit = "true";
    this.devices = new PictureView("Devices", this.deviceHooks());
    const selected = () => this.shown?.view.selected ?? 0;
    const fitted = () => {
      this.showTitle();
      this.fitThumbs();
    };
    this.array = new PictureView("Array", { ...this.blockHooks(selected), fitted });
    this.count = h("span", { class: "sv-count" });
    this.note = h("div", { class: "sv-devicenote", role: "status" });
    this.title = h("h3", { class: "sv-head sv-mono sv-title" });
    this.notes = h("span", { class: "sv-muted sv-shapenote" });
    this.steps = new ArraySteps(page);
    this.thumbs = h("div", { class: "sv-thumbs" });
    /** @type {Map<number, ReturnType<PicturePanel["thumb"]>>} */ this.small = new Map();
    this.sentence = new Sentence(highlight, page);
    this.node = this.build();
    highlight.listeners.push(() => this.mark());
  }

  build() {
    const left = h("h3", { class: "sv-head sv-counthead" }, this.count);
    const row = { class: "sv-headrow" };
    const head = h("div", row, this.order.node, left, this.devices.fitter);
    const arrayHead = h("div", row, this.title, this.notes, this.steps.node, this.array.fitter);
    const array = [arrayHead, this.array.node, this.thumbs];
    return h(
      "section",
      { class: "sv-pictures" },
      h("div", { class: "sv-col" }, head, this.note, this.devices.node),
      h("div", { class: "sv-col sv-arraycol" }, ...array),
      this.sentence.node,
    );
  }

  /** Returns callbacks that highlight the device or block under the pointer. @param {(tile: number) => import("./highlight.js").Pointing} target */
  pointing(target) {
    const { highlight } = this;
    return {
      point: (/** @type {number} */ tile) => highlight.hover(target(tile)),
      leave: () => highlight.hover(null),
      pin: (/** @type {number} */ tile) => highlight.point(target(tile), true),
      release: () => highlight.point(null, false),
    };
  }

  /** @returns {import("./picture_view.js").Hooks} */
  deviceHooks() {
    const { highlight } = this;
    return {
      ...this.pointing((tile) => ({ kind: "device", at: this.positions[tile] })),
      lines: (tile) => [String(highlight.ids[this.positions[tile]])],
      hint: (tile) => {
        const at = this.positions[tile];
        return `device ${highlight.ids[at]}${onHosts(highlight, [at])}`;
      },
    };
  }

  /**
   * @param {() => number} array returns the index of the shown array
   * @returns {import("./picture_view.js").Hooks}
   */
  blockHooks(array) {
    const picture = () => this.shown?.arrays[array()];
    return {
      ...this.pointing((tile) => {
        const group = picture()?.group[tile];
        return group === undefined ? null : { kind: "block", array: array(), group };
      }),
      lines: (tile) => (picture()?.label(tile) ?? "").split("\n").filter(Boolean),
      hint: (tile) => this.blockHint(array(), tile),
    };
  }

  /**
   * Returns the tooltip of a block: `w[0:512, 0:1024] · 2 MiB` and its devices.
   * @param {number} index of the array
   * @param {number} tile
   */
  blockHint(index, tile) {
    const picture = this.shown?.arrays[index];
    const array = this.shown?.view.arrays[index];
    if (!picture || !array) return "";
    const { shardBytes, replicas = 1, ...blocks } = array.pictured ?? array;
    const where = this.highlight.indexText(blocks, picture.group[tile]);
    const replicaWords = replicas > 1 ? ` · ${replicasText(replicas)}` : "";
    const holders = named(picture.devices(tile)) + replicaWords;
    const at = this.highlight.holders(index, picture.group[tile]);
    return `${array.name}[${where}] · ${shardBytes}\n${holders}${onHosts(this.highlight, at)}`;
  }

  /** @param {Shown} shown */
  show(shown) {
    this.shown = shown;
    const { view, devices, arrays, theme } = shown;
    this.positions = this.positionsOfTiles(devices.picture, this.highlight, this.highlight.ids);
    this.showOrder(view, devices);
    const array = view.arrays.at(view.selected);
    const main = arrays[view.selected];
    this.steps.show(array, main?.facts);
    const { before, positions } = this;
    const name = array?.name ?? "";
    const isSameArray = before?.array === name;
    const moves = before && (isSameArray || before.devices !== devices.picture);
    this.paintDevices(shown, moves ? devicesBefore(before, positions) : undefined);
    toggle(this.array.node, "sv-stale", Boolean(array?.problem));
    this.array.node.dataset.dropArray = (main?.facts?.dims ?? [0, 1]).join(" ");
    const groups = this.highlight.groups(view.selected);
    if (array && main) {
      const moved = isSameArray && before.picture !== main && blocksBefore(before, main, groups);
      const options = { aspect: aspectOf(array, main), before: moved || undefined };
      this.array.show(main, theme, options);
    }
    // The last good picture stays, but never under another array's name.
    const last = isSameArray && !main ? before : null;
    if (last?.picture) this.array.show(last.picture, theme, { aspect: this.array.aspect });
    const shape = { picture: last ? last.picture : main, groups: last ? last.groups : groups };
    this.array.node.hidden = !shape.picture;
    this.before = { array: name, ...shape, devices: devices.picture, positions };
    this.showTitle();
    this.showThumbs(shown);
    this.mark();
  }

  /** Shows the array's title, and facts that are missing in its picture. */
  showTitle() {
    const { view, arrays } = /** @type {Shown} */ (this.shown);
    const array = view.arrays.at(view.selected);
    const main = arrays[view.selected];
    const title = array ? `${array.name}  ${array.short}` : "No arrays  ";
    headCut(this.title, title);
    this.title.title = main && !this.array.toScale ? `${title}\nNot to scale` : title;
    setText(this.notes, main?.facts?.note ?? "");
  }

  /** @param {View} view @param {DrawnDevices} devices */
  showOrder({ mesh }, { by, no_positions: why, count }) {
    this.order.mark(Object.keys(ORDERS).find((name) => ORDERS[name] === by) ?? "Mesh");
    // Not `disabled`, so that keyboard users can focus it and screen readers read the reason.
    const chips = this.order.tabs[2];
    chips.setAttribute("aria-disabled", String(Boolean(why)));
    chips.title = why;
    setText(this.count, count || mesh.count);
  }

  /**
   * Returns the selected collective's links; null while the page still has those of another
   * collective.
   * @param {Shown} shown
   */
  currentLinks({ links }) {
    const chosen = this.inProgram ? this.highlight.collective?.key : null;
    return links.key && chosen === links.key ? links : null;
  }

  /** Explains the colours and outlines of the devices. @param {Shown} shown @param {number[]} participants */
  showNote(shown, participants) {
    const { by, note } = shown.devices;
    const { collective, ids } = this.highlight;
    const array = shown.view.arrays.at(shown.view.selected);
    const many = participants.length > MOST_NAMED;
    const together = many ? "" : ` ${participants.map((at) => ids[at]).join(", ")}`;
    const byPosition = by === "position" && this.page.live && this.inProgram;
    // Show only the most important sentence.
    let words = this.currentLinks(shown)?.words || note;
    if (!words && participants.length) {
      const devices = many ? `${participants.length.toLocaleString("en")} devices` : "devices";
      words = `${collective?.kind}: ${devices}${together} together`;
    } else if (!words && byPosition) words = HOW_LINKS;
    else if (!words && this.inProgram && array?.strides?.length) {
      words = `colours: shards of ${array.name}`;
    }
    setText(this.note, words);
    // Reserve space for the sentence, so that the picture keeps its size.
    toggle(this.note, "sv-kept", byPosition);
  }

  /** @param {Shown} shown @param {((tile: number) => number) | undefined} before the previous positions of tiles */
  paintDevices(shown, before) {
    const { view, devices, theme } = shown;
    const { highlight, positions } = this;
    const edges = this.currentLinks(shown)?.edges ?? devices.picture.edges;
    const arrayGroups = highlight.groups(view.selected);
    const group = arrayGroups ? this.groupsOfTiles(arrayGroups, positions) : devices.picture.group;
    const { blocks = 1 } = view.arrays[view.selected] ?? {};
    const shades = shown.arrays[view.selected]?.shades ?? devices.picture.shades;
    const picture = this.devicesInBlocks(devices.picture, edges, group, blocks, shades);
    this.devices.show(picture, theme, { before });
  }

  /** Draws thumbnails of the arrays that are not selected. @param {Shown} shown */
  showThumbs({ view, arrays, theme }) {
    for (const [i, thumb] of this.small) {
      if (i !== view.selected && arrays[i] && !view.arrays[i].folded) continue;
      thumb.node.remove();
      this.small.delete(i);
    }
    for (const i of naturalOrder(view.arrays.map(({ name }) => name))) {
      const array = view.arrays[i];
      const picture = arrays[i];
      if (!picture || i === view.selected || array.folded) continue;
      const thumb = this.small.get(i) ?? this.thumb(i);
      this.small.set(i, thumb);
      this.thumbs.append(thumb.node);
      headCut(thumb.caption, array.title);
      thumb.caption.title = `${array.name}  ${array.short}`;
      thumb.view.node.setAttribute("aria-label", `Array ${array.name}`);
      thumb.view.show(thumb.bare(picture), theme, { aspect: aspectOf(array, picture) });
    }
    this.fitThumbs();
  }

  /** Shows as many thumbnails as fit. */
  fitThumbs() {
    const thumbCount = Math.max(1, Math.floor(this.array.size.w / THUMB_WIDTH));
    [...this.thumbs.children].forEach((node, i) => node.toggleAttribute("hidden", i >= thumbCount));
  }

  /** @param {number} i the array that the thumbnail shows */
  thumb(i) {
    const hooks = { ...this.blockHooks(() => i), lines: () => [] };
    const view = new PictureView("", hooks, { plain: true });
    const style = { class: "sv-plain sv-cut sv-thumbname" };
    const caption = button("", () => this.page.select(i), style);
    const node = h("div", { class: "sv-thumb" }, caption, view.node);
    return { view, caption, node, bare: keepLast(barePicture) };
  }

  /** Marks all tiles linked to the tile under the pointer, and updates the sentence. */
  mark() {
    if (!this.shown) return;
    const { view } = this.shown;
    const { pointing } = this.highlight;
    const pointed = new Set(this.highlight.pointed());
    const device = pointing?.kind === "device" ? pointing.at : -1;
    this.markDevices(this.shown, device, pointed);
    this.markArray(this.array, view.selected, pointed);
    for (const [i, thumb] of this.small) this.markArray(thumb.view, i, pointed);
    this.sentence.show(view);
  }

  /**
   * @param {Shown} shown
   * @param {number} device the device under the pointer, or -1
   * @param {Set<number>} pointed
   */
  markDevices(shown, device, pointed) {
    const { highlight } = this;
    const { view, devices } = shown;
    // Mark the participants of the selected collective, otherwise devices with the same block.
    const chosen = this.inProgram && highlight.collective;
    const participants = chosen ? highlight.participants(Math.max(0, device)) : [];
    this.showNote(shown, participants);
    const groups = device >= 0 ? highlight.groups(view.selected) : null;
    const holders = groups ? highlight.holders(view.selected, groups[device]) : [];
    const related = new Set(participants.length ? participants : holders);
    const marks = noMarks();
    // Skip the loop if no tile is marked: a million tiles take half a frame.
    const tiles = pointed.size || related.size ? this.positions : [];
    tiles.forEach((position, tile) => {
      if (pointed.has(position)) {
        marks.strong.add(tile);
        if (device >= 0) marks.frame = frameAround(devices.picture, tile);
      } else if (related.has(position)) marks.soft.add(tile);
    });
    this.devices.mark(marks);
  }

  /** @param {PictureView} view @param {number} array @param {Set<number>} pointed */
  markArray(view, array, pointed) {
    const { highlight } = this;
    const { pointing } = highlight;
    const groups = pointing && highlight.groups(array);
    const marks = noMarks();
    if (groups) {
      const heldGroups = new Set([...pointed].map((at) => groups[at]));
      const isOtherArray = pointing.kind === "block" && pointing.array !== array;
      const marked = isOtherArray ? marks.soft : marks.strong;
      this.shown?.arrays[array]?.group.forEach((group, tile) => {
        if (heldGroups.has(group)) marked.add(tile);
      });
    }
    view.mark(marks);
  }
}

/** Returns the index of the frame (host) around a device tile, or -1. @param {Picture} p @param {number} tile */
function frameAround(p, tile) {
  const x = p.x[tile] + p.w[tile] / 2;
  const y = p.y[tile] + p.h[tile] / 2;
  return p.frames.findIndex((f) => x > f.x && x < f.x + f.w && y > f.y && y < f.y + f.h);
}

/**
 * Returns the aspect ratio of a tile in array elements: 0 for a scalar, Infinity for a single row.
 * @param {ArrayView} array
 * @param {Picture} picture
 */
function aspectOf(array, picture) {
  const { counts = [], shard = [] } = array.pictured ?? array;
  if (counts.length < 2) return counts.length ? Infinity : 0;
  const { dims = [0, 1], steps = [] } = picture.facts ?? {};
  const [rows, columns] = dims.map((dim) => Math.max(1, shard[dim]));
  if (steps.some(({ at }) => at === null)) return columns / rows;
  // In the picture of a large array, a tile represents several blocks.
  const { left, top, right, bottom } = picture.box;
  const ratio = (columns * counts[dims[1]]) / (rows * counts[dims[0]]);
  return ((ratio * (bottom - top)) / (right - left)) * (picture.w[0] / picture.h[0]);
}

/**
 * Returns the mesh position of every device tile.
 * @param {Picture} devices
 * @param {import("./highlight.js").Highlight} highlight
 * @param {Int32Array} _ids a cache key: the result depends on the ids known to the highlight
 */
function positionsOfTiles({ device }, highlight, _ids) {
  const positions = new Int32Array(device.length);
  for (let i = 0; i < device.length; i++) positions[i] = highlight.positionOf(device[i]);
  return positions;
}

/** @param {Int32Array} groups of all devices @param {Int32Array} positions */
function groupsOfTiles(groups, positions) {
  return positions.map((at) => groups[at]);
}

/**
 * Returns the device picture, coloured by an array's blocks.
 * @param {Picture} devices
 * @param {Picture["edges"]} edges
 * @param {Picture["group"]} group the block of every tile
 * @param {number} count the number of blocks
 * @param {Picture["shades"]} shades
 */
function devicesInBlocks(devices, edges, group, count, shades) {
  return { ...devices, edges, group, count, shades };
}

/** Returns a picture without rulers and labels. @param {Picture} picture */
function barePicture(picture) {
  return { ...picture, labels: [], frames: [], rulers: [] };
}
