// @ts-check
// Draws one step of a collective: the devices of a replica group, and their chunks of data.
import { axisColour, mix, textOn } from "./colours.js";
import { h, onResize, svg } from "./dom.js";
import { bitCount } from "./movement_steps.js";

/** @typedef {import("./movement_steps.js").MovementSteps} MovementSteps */
/** @typedef {{x: number, y: number, w: number, h: number}} Box in CSS pixels */
/** @typedef {{x: number, y: number}} Point */
/**
 * The positions of the devices' boxes, and of the chunk cells inside them.
 * @typedef {{boxes: Box[], frames: {box: Box, label: string}[], gap: Point, head: Point,
 *   cell: {w: number, h: number, columns: number}}} Places
 */

const GAP = 26; // pixels between devices, for the arrows
const LOW_GAP = 15; // pixels between rows if there are many rows
const MOST_GAP = 90;
const BEND = 20; // curvature of arrows around other devices
const EDGE = 12;
const LEAST_W = 56; // the smallest inner width of a device
const HEAD = { x: 5, y: 17 }; // pixels; offset of the chunk cells below the device id
const BESIDE = { x: 27, y: 4 };
const FRAME_LABEL = 13;
const CELL_W = 88; // the largest width of a chunk cell
const CELL_H = 36;
const MOST_TOKENS = 4; // more chunks between two devices are drawn as one
const LETTER = 6.6; // approximate width of a letter
const TEXT_H = 11;
const [PALEST, FULLEST] = [0.2, 0.75]; // share of the axis colour in the colour of a chunk

export class MovementPicture {
  constructor() {
    this.drawing = svg("svg", { class: "sv-movement", "aria-hidden": "true" });
    const about = { role: "img", tabindex: "0", class: "sv-movementbox" };
    this.node = h("div", about, this.drawing);
    this.moving = svg("g");
    /** Set by the first call of `show`. @type {MovementSteps} */
    this.steps;
    /** @type {import("./colours.js").Theme} */ this.theme;
    this.step = 0;
    this.size = { w: 0, h: 0 };
    /** @type {Places | null} */ this.places = null;
    onResize(this.node, () => this.resized());
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

  /**
   * Draws the chunks on every device after the current step, with arrows for the sends of a step:
   * the current step, or the next one during an animation.
   * @param {number} [arrowsOf]
   */
  draw(arrowsOf = this.step) {
    const { steps, size, step } = this;
    if (!steps || !size.w || !size.h) return;
    this.places ??= placesFor(steps, size);
    const { boxes, frames } = this.places;
    this.moving = svg("g", { class: "sv-moving" });
    this.drawing.replaceChildren(
      ...frames.map(frameNode),
      ...this.arrows(arrowsOf),
      ...boxes.map((box, device) => this.device(box, device, arrowsOf > step)),
      this.moving,
    );
    const every = boxes.map((_, device) => steps.holdsText(step, device));
    this.node.setAttribute("aria-label", `After step ${step}. ${every.join(". ")}`);
  }

  /** @param {Box} box @param {number} device @param {boolean} sends whether to hide the chunks that the next step sends */
  device(box, device, sends) {
    const { steps, step } = this;
    const id = steps.data.devices[device];
    const named = box.w > 84 && this.places?.head === HEAD;
    const [last, next] = [steps.data.steps[step - 1], steps.data.steps[step]];
    const came = last?.sends.flatMap(([, to, , chunks]) => (to === device ? chunks : [])) ?? [];
    const leaves = sends && !next.keeps ? next.sends : [];
    const sent = leaves.flatMap(([from, , , chunks]) => (from === device ? chunks : []));
    // Chunks that the device is sending are drawn in transit instead.
    const staying = [...steps.states[step][device]].filter(([chunk]) => !sent.includes(chunk));
    const cells = staying.map(([chunk, { slot, bits }]) =>
      this.cell(this.slotBox(device, slot), chunk, bits, came.includes(chunk)),
    );
    return svg(
      "g",
      { class: "sv-mdevice", "data-device": id },
      svg("rect", { ...rectOf(box), rx: 6, class: "sv-mdevicebox" }),
      textNode(named ? `device ${id}` : String(id), box.x + 7, box.y + 13, "sv-mdeviceid"),
      ...cells,
    );
  }

  /**
   * Draws a chunk in the shade of its owner device. A partial sum is pale, with a bar for its
   * completed share; a complete chunk is filled.
   * @param {Box} box @param {number} chunk @param {number} bits @param {boolean} arrived
   */
  cell(box, chunk, bits, arrived) {
    const { steps, theme } = this;
    const { contributors, chunks, devices, axes } = steps.data;
    const count = bitCount(bits);
    const complete = count >= contributors;
    const label = chunks[chunk];
    const sum = steps.sums ? `, the sum of ${count} of ${contributors} devices` : "";
    const colour = axisColour(axes[0]?.[1] ?? -1, theme);
    const shade = Math.max(0, steps.owners[chunk]) / Math.max(1, devices.length - 1);
    const full = mix(colour, theme.paper, PALEST + (FULLEST - PALEST) * shade);
    const fill = complete ? full : mix(colour, theme.paper, PALEST / 2);
    const line = { stroke: colour, "stroke-width": arrived ? 2 : 0.75 };
    const parts = [
      svg("title", {}, `chunk ${label}${sum}`),
      svg("rect", { ...rectOf(box), fill, ...line }),
    ];
    if (!complete) {
      const tall = Math.max(2, Math.min(4, box.h * 0.2));
      const done = { y: box.y + box.h - tall, width: (box.w * count) / contributors, height: tall };
      parts.push(svg("rect", { ...rectOf(box), ...done, fill: colour }));
    }
    const texts = steps.sums
      ? [`${count}/${contributors}`, String(count)]
      : [label, label.replace(/^\d+→/, "")];
    const words = texts.find((text) => box.w >= text.length * LETTER + 3);
    if (words && box.h >= TEXT_H) {
      const node = textNode(words, box.x + box.w / 2, box.y + box.h / 2 + 3.5, "sv-celltext");
      node.setAttribute("style", `fill: ${textOn(fill, theme)}`);
      parts.push(node);
    }
    return svg("g", { class: "sv-mcell", "data-chunk": chunk, "data-count": count }, ...parts);
  }

  /** Returns the box of a chunk slot in a device. @param {number} device @param {number} slot @returns {Box} */
  slotBox(device, slot) {
    const { boxes, cell, head } = /** @type {Places} */ (this.places);
    const { x, y } = boxes[device];
    const { w, h: tall, columns } = cell;
    const column = slot % columns;
    const row = Math.floor(slot / columns);
    return { x: x + head.x + column * w, y: y + head.y + row * tall, w: w - 2, h: tall - 2 };
  }

  /** Draws the arrows of a step in the colour of its mesh axis. @param {number} step */
  arrows(step) {
    const { steps, places } = this;
    if (!places || step < 1) return [];
    const { axis, sends } = steps.data.steps[step - 1];
    return sends.map(([source, target, far]) => {
      const isExchange = sends.some(([from, to]) => from === target && to === source);
      const [from, bend, to] = curve(places, source, target, isExchange);
      const d = `M${from.x} ${from.y}Q${bend.x} ${bend.y} ${to.x} ${to.y}${headOf(bend, to)}`;
      const style = axis < 0 ? null : `stroke: ${axisColour(axis)}`;
      return svg("path", { d, class: `sv-marrow${far ? " sv-far" : ""}`, style });
    });
  }

  /**
   * Draws the chunks that a step sends, in transit.
   * @param {number} step @param {number} part the progress, 0 to 1
   */
  move(step, part) {
    const { steps, places } = this;
    const sends = steps?.data.steps[step - 1]?.sends;
    if (!places || !sends) return;
    const eased = part < 0.5 ? 2 * part * part : 1 - (2 - 2 * part) ** 2 / 2;
    if (this.step === step - 1 && !this.moving.childNodes.length) this.draw(step);
    this.moving.replaceChildren(...sends.flatMap((send) => this.tokens(send, step, eased)));
  }

  /** @param {import("./movement_steps.js").Send} send @param {number} step @param {number} part */
  tokens([source, target, , chunks], step, part) {
    const [before, after] = [this.steps.states[step - 1], this.steps.states[step]];
    const shownChunks = chunks.length > MOST_TOKENS ? chunks.slice(0, 1) : chunks;
    return shownChunks.flatMap((chunk) => {
      const [sentChunk, comes] = [before[source].get(chunk), after[target].get(chunk)];
      if (!sentChunk || !comes) return [];
      const from = this.slotBox(source, sentChunk.slot);
      const to = this.slotBox(target, comes.slot);
      const x = from.x + (to.x - from.x) * part;
      const y = from.y + (to.y - from.y) * part;
      const cell = this.cell({ ...from, x, y }, chunk, sentChunk.bits, true);
      if (shownChunks !== chunks) {
        cell.append(textNode(`${chunks.length} chunks`, x + from.w / 2, y - 3, "sv-tokentext"));
      }
      return [cell];
    });
  }
}

/**
 * Computes the boxes of the devices, sized to fit their chunks; arrows get the remaining space.
 * @param {MovementSteps} steps
 * @param {{w: number, h: number}} size
 * @returns {Places}
 */
function placesFor(steps, size) {
  const { cells, hosts } = steps.data;
  const columns = Math.max(...cells.map(([column]) => column)) + 1;
  const rows = Math.max(...cells.map(([, row]) => row)) + 1;
  const several = new Set(hosts).size > 1;
  const top = several ? FRAME_LABEL : 0;
  const head = rows > 2 ? BESIDE : HEAD;
  const low = rows > 2 ? LOW_GAP : GAP;
  const largest = {
    w: (size.w - 2 * EDGE - (columns - 1) * GAP) / columns - head.x - 3,
    h: (size.h - 2 * EDGE - rows * top - (rows - 1) * low) / rows - head.y - 5,
  };
  const cell = cellSize(steps.slots, largest.w, largest.h);
  const w = Math.max(cell.columns * cell.w, Math.min(LEAST_W, largest.w)) + head.x + 3;
  const tall = Math.ceil(steps.slots / cell.columns) * cell.h + head.y + 5;
  const across = spread(size.w, columns, w, GAP);
  const along = spread(size.h, rows, tall + top, low);
  const boxes = cells.map(([column, row]) => ({
    x: across.start + column * (w + across.gap),
    y: along.start + top + row * (tall + top + along.gap),
    w,
    h: tall,
  }));
  const frames = several ? framesOf(boxes, hosts) : [];
  return { boxes, frames, cell, head, gap: { x: across.gap, y: along.gap } };
}

/** Spreads `count` boxes over a space: returns the start of the first box, and the gap. @param {number} space @param {number} count @param {number} length @param {number} least */
function spread(space, count, length, least) {
  const free = (space - 2 * EDGE - count * length) / Math.max(1, count - 1);
  const gap = Math.max(least, Math.min(MOST_GAP, free));
  return { start: (space - count * length - (count - 1) * gap) / 2, gap };
}

/** Returns the largest cell size at which `count` cells fit. @param {number} count @param {number} w @param {number} tall */
function cellSize(count, w, tall) {
  let best = { w, h: tall / count, columns: 1 };
  const worth = (/** @type {{w: number, h: number}} */ cell) => Math.min(cell.w, cell.h * 1.8);
  for (let columns = 1; columns <= count; columns++) {
    const cell = { w: w / columns, h: tall / Math.ceil(count / columns), columns };
    if (worth(cell) > worth(best)) best = cell;
  }
  return { ...best, w: Math.min(best.w, CELL_W), h: Math.min(best.h, CELL_H) };
}

/** Returns a frame around the devices of each host. @param {Box[]} boxes @param {number[]} hosts */
function framesOf(boxes, hosts) {
  return [...new Set(hosts)].map((host) => {
    const hostBoxes = boxes.filter((_, i) => hosts[i] === host);
    const x = Math.min(...hostBoxes.map((b) => b.x)) - 7;
    const y = Math.min(...hostBoxes.map((b) => b.y)) - FRAME_LABEL;
    const right = Math.max(...hostBoxes.map((b) => b.x + b.w)) + 7;
    const bottom = Math.max(...hostBoxes.map((b) => b.y + b.h)) + 6;
    return { box: { x, y, w: right - x, h: bottom - y }, label: `host ${host}` };
  });
}

/** @param {{box: Box, label: string}} frame */
function frameNode({ box, label }) {
  const rect = svg("rect", { ...rectOf(box), rx: 8, class: "sv-mframe" });
  return svg("g", {}, rect, textNode(label, box.x + 8, box.y + 10, "sv-mframelabel"));
}

/**
 * Returns a curve between the edges of two boxes: start, control point and end.
 * @param {Places} places
 * @param {number} source
 * @param {number} target
 * @param {boolean} isExchange true if the devices also send in the opposite direction
 */
function curve({ boxes, gap }, source, target, isExchange) {
  const [a, b] = [boxes[source], boxes[target]].map((o) => ({
    x: o.x + o.w / 2,
    y: o.y + o.h / 2,
  }));
  const size = { x: boxes[source].w, y: boxes[source].h };
  if (Math.abs(b.x - a.x) >= 1) return curveAcross(a, b, size, gap, isExchange);
  // For vertical neighbours, swap the axes and treat them as horizontal neighbours.
  const [from, to, wide, space] = [a, b, size, gap].map(swapped);
  return curveAcross(from, to, wide, space, isExchange).map(swapped);
}

/**
 * Returns a straight line for neighbours, otherwise a curve around the devices in between.
 * @param {Point} a @param {Point} b the middles of the boxes @param {Point} size of each
 * @param {Point} gap @param {boolean} isExchange
 */
function curveAcross(a, b, size, gap, isExchange) {
  const [sx, sy] = [Math.sign(b.x - a.x), Math.sign(b.y - a.y)];
  const beside = Math.abs(b.y - a.y) < 1;
  const far = beside && Math.abs(b.x - a.x) > 1.5 * (size.x + gap.x);
  let out = { x: (sx * size.x) / 4, y: (sy * size.y) / 2 };
  if (far) out = { x: (sx * size.x) / 4, y: (-sx * size.y) / 2 };
  else if (beside) out = { x: (sx * size.x) / 2, y: isExchange ? sx * 7 : 0 };
  const start = { x: a.x + out.x, y: a.y + out.y };
  const end = { x: b.x - out.x, y: beside ? b.y + out.y : b.y - out.y };
  const aside = far ? sx * BEND : 0;
  return [start, { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 - aside }, end];
}

/** @param {Point} point @returns {Point} */
function swapped({ x, y }) {
  return { x: y, y: x };
}

/** @param {Point} before @param {Point} tip */
function headOf(before, tip) {
  const angle = Math.atan2(tip.y - before.y, tip.x - before.x);
  const at = (/** @type {number} */ turn) =>
    `${tip.x - 7 * Math.cos(angle + turn)} ${tip.y - 7 * Math.sin(angle + turn)}`;
  return `M${at(0.5)}L${tip.x} ${tip.y}L${at(-0.5)}`;
}

/** @param {Box} box */
function rectOf({ x, y, w, h: height }) {
  return { x, y, width: Math.max(0, w), height: Math.max(0, height) };
}

/** @param {string} text @param {number} x @param {number} y @param {string} name */
function textNode(text, x, y, name) {
  return svg("text", { x, y, class: name }, text);
}
