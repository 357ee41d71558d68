// @ts-check
// Draws the devices of one group, what each has, and what moves between them: one drawing per step.
import { textOn, tileColours } from "./colours.js";
import { OWN_KEYS, h, svg } from "./dom.js";
import { bitCount } from "./movement_steps.js";

/** @typedef {import("./movement_steps.js").MovementSteps} MovementSteps */
/** @typedef {import("./movement_steps.js").Transfer} Transfer */
/** @typedef {{x: number, y: number, w: number, h: number}} Box in CSS pixels */
/** @typedef {{x: number, y: number}} Point */
/**
 * Where everything stands: the box of each device, and of each place for a chunk within it.
 * @typedef {{boxes: Box[], frames: {box: Box, label: string}[], gap: {x: number, y: number}, head: Point,
 *   cell: {w: number, h: number, columns: number}}} Places
 */

const GAP = 26; // between devices, for the arrows
const LOW_GAP = 15; // between rows, where there are many
const BEND = 20; // of arrows around other devices
const EDGE = 12;
const LEAST_W = 56; // of the inside of a device
const HEAD = { x: 5, y: 17 }; // where cells begin: under the id of the device, or beside it
const BESIDE = { x: 27, y: 4 };
const FRAME_LABEL = 13;
const MOST_GAP = 90;
const CELL_W = 88; // at most
const CELL_H = 36;
const MOST_TOKENS = 4; // more chunks from one device to another move as one
const LETTER = 6.6; // the width of a letter: text is written where it fits
const TEXT_H = 11;

export class MovementPicture {
  constructor() {
    this.drawing = svg("svg", { class: "sv-movement", "aria-hidden": "true" });
    const about = { role: "img", tabindex: "0", class: "sv-movementbox", ...OWN_KEYS };
    this.node = h("div", about, this.drawing);
    this.moving = svg("g");
    /** @type {MovementSteps | null} */ this.steps = null;
    /** @type {import("./colours.js").Theme | null} */ this.theme = null;
    this.step = 0;
    this.size = { w: 0, h: 0 };
    /** @type {Places | null} */ this.places = null;
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.node);
  }

  /** @param {MovementSteps} steps @param {number} step @param {import("./colours.js").Theme} theme */
  show(steps, step, theme) {
    if (steps !== this.steps) this.places = null;
    Object.assign(this, { steps, step, theme });
    this.draw();
  }

  resized() {
    const { clientWidth: w, clientHeight: height } = this.node;
    if (w === this.size.w && height === this.size.h) return;
    this.size = { w, h: height };
    this.places = null;
    this.draw();
  }

  /** The colours of the group that a chunk belongs to. @param {number} chunk */
  colours(chunk) {
    const { steps, theme } = this;
    if (!steps || !theme) return null;
    const group = Math.max(0, steps.owners[chunk]);
    const of = tileColours(steps.data.size, "blocks", theme);
    const strong = of.strong(group);
    const [soft, mid] = [of.soft(group), of.mid(group)];
    return { soft, text: textOn(soft, theme), mid, textMid: textOn(mid, theme), strong };
  }

  draw() {
    const { steps, size } = this;
    if (!steps?.drawn || !size.w || !size.h) return;
    this.places ??= placesFor(steps, size);
    const { boxes, frames } = this.places;
    this.drawing.setAttribute("viewBox", `0 0 ${size.w} ${size.h}`);
    this.drawing.setAttribute("width", String(size.w));
    this.drawing.setAttribute("height", String(size.h));
    this.moving = svg("g", { class: "sv-moving" });
    this.drawing.replaceChildren(
      ...frames.map(frameNode),
      ...this.arrows(this.step),
      ...boxes.map((box, device) => this.device(box, device)),
      this.moving,
    );
    const { devices } = steps.data;
    const every = devices.map((_, device) => steps.holdsText(this.step, device));
    this.node.setAttribute("aria-label", `After ${this.step} steps. ${every.join(". ")}`);
  }

  /** @param {Box} box @param {number} device */
  device(box, device) {
    const { steps, step } = this;
    if (!steps) return svg("g");
    const id = steps.data.devices[device];
    const named = box.w > 84 && this.places?.head === HEAD;
    const held = steps.states[step][device];
    const arrived = new Set(
      (steps.transfers[step - 1] ?? []).filter((t) => t.target === device).map((t) => t.chunk),
    );
    const cells = [...held].map(([chunk, { slot, bits }]) =>
      this.cell(this.slotBox(device, slot), chunk, bits, arrived.has(chunk)),
    );
    const taken = new Set([...held.values()].map(({ slot }) => slot));
    const empty = [];
    for (let slot = 0; slot < steps.slots; slot++) {
      if (taken.has(slot)) continue;
      empty.push(svg("rect", { ...rectOf(this.slotBox(device, slot)), class: "sv-emptycell" }));
    }
    return svg(
      "g",
      { class: "sv-mdevice", "data-device": id },
      svg("rect", { ...rectOf(box), rx: 6, class: "sv-mdevicebox" }),
      textNode(named ? `device ${id}` : String(id), box.x + 7, box.y + 13, "sv-mdeviceid"),
      ...empty,
      ...cells,
    );
  }

  /**
   * One chunk: pale with a bar for the part of the sum that it has, full where it is complete.
   * @param {Box} box @param {number} chunk @param {number} bits @param {boolean} [arrived]
   */
  cell(box, chunk, bits, arrived = false) {
    const { steps } = this;
    const colours = this.colours(chunk);
    if (!steps || !colours) return svg("g");
    const { contributors, chunks } = steps.data;
    const count = bitCount(bits);
    const complete = count >= contributors;
    const label = chunks[chunk];
    const sum = steps.sums ? `, the sum of ${count} of ${contributors} devices` : "";
    const parts = [
      svg("title", {}, `chunk ${label}${sum}`),
      svg("rect", {
        ...rectOf(box),
        fill: complete ? colours.mid : colours.soft,
        stroke: colours.strong,
        "stroke-width": arrived ? 2 : 0.75,
      }),
    ];
    if (!complete) {
      const tall = Math.max(2, Math.min(4, box.h * 0.2));
      const done = {
        x: box.x,
        y: box.y + box.h - tall,
        w: (box.w * count) / contributors,
        h: tall,
      };
      parts.push(svg("rect", { ...rectOf(done), fill: colours.strong }));
    }
    const texts = steps.sums
      ? [`${count}/${contributors}`, String(count)]
      : [label, label.replace(/^\d+→/, "")];
    const words = texts.find((text) => box.w >= text.length * LETTER + 3);
    if (words && box.h >= TEXT_H) {
      const node = textNode(words, box.x + box.w / 2, box.y + box.h / 2 + 3.5, "sv-celltext");
      node.setAttribute("style", `fill: ${complete ? colours.textMid : colours.text}`);
      parts.push(node);
    }
    return svg("g", { class: "sv-mcell", "data-chunk": chunk, "data-count": count }, ...parts);
  }

  /** Where a chunk stands in a device. @param {number} device @param {number} slot @returns {Box} */
  slotBox(device, slot) {
    const { boxes, cell, head } = /** @type {Places} */ (this.places);
    const { x, y } = boxes[device];
    const { w, h: tall, columns } = cell;
    const column = slot % columns;
    const row = Math.floor(slot / columns);
    return { x: x + head.x + column * w, y: y + head.y + row * tall, w: w - 2, h: tall - 2 };
  }

  /** The arrows of what came with a step. @param {number} step */
  arrows(step) {
    const { steps, places } = this;
    if (!steps || !places || step < 1) return [];
    const pairs = pairsOf(steps.transfers[step - 1]);
    return pairs.flatMap(({ source, target, far }) => {
      const both = pairs.some((other) => other.source === target && other.target === source);
      const [from, bend, to] = curve(places, source, target, both);
      const name = `sv-marrow${far ? " sv-far" : ""}`;
      const d = `M${from.x} ${from.y}Q${bend.x} ${bend.y} ${to.x} ${to.y}`;
      return [
        svg("path", { d, class: name }),
        svg("path", { d: headOf(bend, to), class: `${name} sv-marrowhead` }),
      ];
    });
  }

  /**
   * Shows the chunks of a step on their way.
   * @param {number} step @param {number} part of the way, 0 to 1
   */
  move(step, part) {
    const { steps, places } = this;
    const transfers = steps?.transfers[step - 1];
    if (!steps || !places || !transfers) return;
    const eased = part < 0.5 ? 2 * part * part : 1 - (2 - 2 * part) ** 2 / 2;
    if (this.step === step - 1 && !this.moving.childNodes.length) {
      const first = this.drawing.querySelector(".sv-mdevice");
      for (const old of this.drawing.querySelectorAll(".sv-marrow")) old.remove();
      for (const arrow of this.arrows(step)) this.drawing.insertBefore(arrow, first);
      if (!steps.data.steps[step - 1].keeps) this.takeAway(transfers);
    }
    this.moving.replaceChildren(
      ...pairsOf(transfers).flatMap((pair) => this.tokens(pair, step, eased)),
    );
  }

  /** What leaves a device is not drawn there any more. @param {Transfer[]} transfers */
  takeAway(transfers) {
    const devices = this.drawing.querySelectorAll(".sv-mdevice");
    for (const { source, chunk } of transfers) {
      devices[source].querySelector(`[data-chunk="${chunk}"]`)?.remove();
    }
  }

  /** @param {ReturnType<typeof pairsOf>[number]} pair @param {number} step @param {number} part */
  tokens({ source, target, chunks }, step, part) {
    const { steps } = this;
    if (!steps) return [];
    const [before, after] = [steps.states[step - 1], steps.states[step]];
    const some = chunks.length > MOST_TOKENS ? chunks.slice(0, 1) : chunks;
    return some.flatMap((chunk) => {
      const [held, comes] = [before[source].get(chunk), after[target].get(chunk)];
      if (!held || !comes) return [];
      const from = this.slotBox(source, held.slot);
      const to = this.slotBox(target, comes.slot);
      const at = {
        ...from,
        x: from.x + (to.x - from.x) * part,
        y: from.y + (to.y - from.y) * part,
      };
      const cell = this.cell(at, chunk, held.bits, true);
      if (some !== chunks) {
        const words = `${chunks.length} chunks`;
        cell.append(textNode(words, at.x + at.w / 2, at.y - 3, "sv-tokentext"));
      }
      return [cell];
    });
  }

  destroy() {
    this.observer.disconnect();
  }
}

/**
 * The boxes of the devices: a torus or hosts as rows and columns, a ring as a loop of two rows.
 * @param {MovementSteps} steps
 * @param {{w: number, h: number}} size
 * @returns {Places}
 */
function placesFor(steps, size) {
  const { data } = steps;
  const cells = data.grid.sizes.length > 1 ? gridCells(data.grid) : ringCells(data.size);
  const columns = Math.max(...cells.map(({ x }) => x)) + 1;
  const rows = Math.max(...cells.map(({ y }) => y)) + 1;
  const several = new Set(data.hosts).size > 1;
  const top = several ? FRAME_LABEL : 0;
  const head = rows > 2 ? BESIDE : HEAD;
  const low = rows > 2 ? LOW_GAP : GAP;
  const most = {
    w: (size.w - 2 * EDGE - (columns - 1) * GAP) / columns - head.x - 3,
    h: (size.h - 2 * EDGE - rows * top - (rows - 1) * low) / rows - head.y - 5,
  };
  const cell = cellSize(steps.slots, most.w, most.h);
  const w = Math.max(cell.columns * cell.w, Math.min(LEAST_W, most.w)) + head.x + 3;
  const tall = Math.ceil(steps.slots / cell.columns) * cell.h + head.y + 5;
  // Boxes are as large as what is in them; what is left over is for the arrows.
  const across = spread(size.w, columns, w, GAP);
  const along = spread(size.h, rows, tall + top, low);
  const boxes = cells.map(({ x, y }) => ({
    x: across.start + x * (w + across.gap),
    y: along.start + top + y * (tall + top + along.gap),
    w,
    h: tall,
  }));
  const frames = several ? framesOf(boxes, data.hosts) : [];
  return { boxes, frames, cell, head, gap: { x: across.gap, y: along.gap } };
}

/** Where the first of so many boxes begins, and the gap between them. @param {number} space @param {number} count @param {number} length @param {number} least */
function spread(space, count, length, least) {
  const free = (space - 2 * EDGE - count * length) / Math.max(1, count - 1);
  const gap = Math.max(least, Math.min(MOST_GAP, free));
  return { start: (space - count * length - (count - 1) * gap) / 2, gap };
}

/** @param {import("./messages").MovementData["grid"]} grid @returns {Point[]} */
function gridCells({ sizes, at }) {
  const columns = sizes[sizes.length - 1];
  const places = at.map((coordinates) => {
    const row = coordinates.slice(0, -1).reduce((all, c, i) => all * sizes[i] + c, 0);
    return { x: coordinates[coordinates.length - 1], y: row };
  });
  const rows = Math.max(...places.map(({ y }) => y)) + 1;
  return rows > Math.max(4, columns) ? places.map(({ x, y }) => ({ x: y, y: x })) : places;
}

/** @param {number} count @returns {Point[]} */
function ringCells(count) {
  const upper = count < 4 ? count : Math.ceil(count / 2);
  return Array.from({ length: count }, (_, i) =>
    i < upper ? { x: i, y: 0 } : { x: count - 1 - i, y: 1 },
  );
}

/** The size of a cell of which so many fit into a space. @param {number} count @param {number} w @param {number} tall */
function cellSize(count, w, tall) {
  let best = { w, h: tall / count, columns: 1 };
  const worth = (/** @type {{w: number, h: number}} */ cell) => Math.min(cell.w, cell.h * 1.8);
  for (let columns = 1; columns <= count; columns++) {
    const cell = { w: w / columns, h: tall / Math.ceil(count / columns), columns };
    if (worth(cell) > worth(best)) best = cell;
  }
  return { ...best, w: Math.min(best.w, CELL_W), h: Math.min(best.h, CELL_H) };
}

/** Dashed frames around the devices of each host. @param {Box[]} boxes @param {number[]} hosts */
function framesOf(boxes, hosts) {
  return [...new Set(hosts)].flatMap((host) => {
    const own = boxes.filter((_, i) => hosts[i] === host);
    const around = boundsOf(own);
    const alone = boxes.every((box, i) => hosts[i] === host || !overlap(around, box));
    const rows = alone
      ? [own]
      : [...new Set(own.map(({ y }) => y))].map((y) => own.filter((b) => b.y === y));
    return rows.map((some) => ({ box: boundsOf(some), label: `host ${host}` }));
  });
}

/** @param {Box[]} boxes @returns {Box} */
function boundsOf(boxes) {
  const x = Math.min(...boxes.map((b) => b.x)) - 7;
  const y = Math.min(...boxes.map((b) => b.y)) - FRAME_LABEL;
  const right = Math.max(...boxes.map((b) => b.x + b.w)) + 7;
  const bottom = Math.max(...boxes.map((b) => b.y + b.h)) + 6;
  return { x, y, w: right - x, h: bottom - y };
}

/** @param {Box} a @param {Box} b */
function overlap(a, b) {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
}

/** @param {{box: Box, label: string}} frame */
function frameNode({ box, label }) {
  const rect = svg("rect", { ...rectOf(box), rx: 8, class: "sv-mframe" });
  return svg("g", {}, rect, textNode(label, box.x + 8, box.y + 10, "sv-mframelabel"));
}

/** The transfers of a step, by sender and receiver. @param {Transfer[]} transfers */
function pairsOf(transfers) {
  /** @type {Map<string, {source: number, target: number, far: boolean, chunks: number[]}>} */
  const pairs = new Map();
  for (const { source, target, far, chunk } of transfers) {
    const key = `${source}:${target}`;
    const known = pairs.get(key);
    if (known) known.chunks.push(chunk);
    else pairs.set(key, { source, target, far, chunks: [chunk] });
  }
  return [...pairs.values()];
}

/**
 * A curve from the edge of one box to the edge of another: straight between neighbours, around
 * what lies between others.
 * @param {Places} places
 * @param {number} source
 * @param {number} target
 * @param {boolean} both whether something goes the other way, too
 * @returns {[Point, Point, Point]} start, control point, end
 */
function curve({ boxes, gap }, source, target, both) {
  const [from, to] = [boxes[source], boxes[target]];
  const [a, b] = [middleOf(from), middleOf(to)];
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const sideways = Math.abs(dy) < 1;
  const upright = Math.abs(dx) < 1;
  const [sx, sy] = [Math.sign(dx), Math.sign(dy)];
  const aside = both ? 7 : 0;
  if (sideways && Math.abs(dx) > 1.5 * (from.w + gap.x)) {
    // Under or over the row.
    const down = sx < 0 ? 1 : -1;
    const edge = down * (from.h / 2);
    const start = { x: a.x + sx * from.w * 0.25, y: a.y + edge };
    const end = { x: b.x - sx * to.w * 0.25, y: b.y + edge };
    return [start, { x: (start.x + end.x) / 2, y: a.y + edge + down * BEND }, end];
  }
  if (upright && Math.abs(dy) > 1.5 * (from.h + gap.y)) {
    const right = sy < 0 ? 1 : -1;
    const edge = right * (from.w / 2);
    const start = { x: a.x + edge, y: a.y + sy * from.h * 0.25 };
    const end = { x: b.x + edge, y: b.y - sy * to.h * 0.25 };
    return [start, { x: a.x + edge + right * BEND, y: (start.y + end.y) / 2 }, end];
  }
  const start = sideways
    ? { x: a.x + (sx * from.w) / 2, y: a.y + sx * aside }
    : { x: a.x + (upright ? sy * aside : (sx * from.w) / 4), y: a.y + (sy * from.h) / 2 };
  const end = sideways
    ? { x: b.x - (sx * to.w) / 2, y: b.y + sx * aside }
    : { x: b.x + (upright ? sy * aside : (-sx * to.w) / 4), y: b.y - (sy * to.h) / 2 };
  return [start, { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 }, end];
}

/** @param {Point} before @param {Point} tip */
function headOf(before, tip) {
  const angle = Math.atan2(tip.y - before.y, tip.x - before.x);
  const at = (/** @type {number} */ turn) =>
    `${tip.x - 7 * Math.cos(angle + turn)} ${tip.y - 7 * Math.sin(angle + turn)}`;
  return `M${at(0.5)}L${tip.x} ${tip.y}L${at(-0.5)}`;
}

/** @param {Box} box @returns {Point} */
function middleOf({ x, y, w, h: tall }) {
  return { x: x + w / 2, y: y + tall / 2 };
}

/** @param {Box} box */
function rectOf({ x, y, w, h: height }) {
  return { x, y, width: Math.max(0, w), height: Math.max(0, height) };
}

/** @param {string} text @param {number} x @param {number} y @param {string} name */
function textNode(text, x, y, name) {
  return svg("text", { x, y, class: name }, text);
}
