// @ts-check
// What stands along the sides of tiles, at any scale: the name of a dimension or of a mesh axis,
// the colours of axes, and as many numbers as fit. Words keep their size while tiles shrink, and
// stay in sight while one looks at a part of the picture.
import { axisColour, mix } from "./colours.js";

/** @typedef {import("./picture_data.js").Picture} Picture */
/** @typedef {import("./picture_data.js").Ruler} Ruler */
/** @typedef {import("./colours.js").Theme} Theme */
/** @typedef {{left: number, top: number, right: number, bottom: number}} ContentBox in points */
/** @typedef {{text: string, colour: string, dot?: boolean}} Part of a line of text */
/**
 * One side of a picture, in CSS pixels: where the tiles begin along it, the part of it that can be
 * seen, the scale along it, and the line at which its tiles begin.
 * @typedef {{origin: number, from: number, to: number, scale: number, line: number}} Side
 */

export const SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
export const FONT = `11px ${SANS}`;
const LINE = 14; // pixels that a line of words takes
const BAR_HIGH = 3; // pixels: the bar in the colours of an edge's axes
const BAR_AWAY = 2;
const NUMBERS_APART = 8; // pixels between two numbers
const DOT = 11; // pixels that a dot takes
const LEAST = 14; // pixels: words are shortened to no less
const MOST_WIDTHS = 5000;

/** @type {WeakMap<Picture, ContentBox>} */
const boxes = new WeakMap();

/** What the tiles, frames and strokes of a picture are within. @param {Picture} p */
export function contentOf(p) {
  const known = boxes.get(p);
  if (known) return known;
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  const add = (
    /** @type {number} */ x0,
    /** @type {number} */ y0,
    /** @type {number} */ x1,
    /** @type {number} */ y1,
  ) => {
    left = Math.min(left, x0, x1);
    top = Math.min(top, y0, y1);
    right = Math.max(right, x0, x1);
    bottom = Math.max(bottom, y0, y1);
  };
  for (let i = 0; i < p.x.length; i++) add(p.x[i], p.y[i], p.x[i] + p.w[i], p.y[i] + p.h[i]);
  for (const f of p.frames) add(f.x, f.y - (f.named ? 5 : 0), f.x + f.width, f.y + f.height);
  for (let i = 0; i < (p.edges?.count ?? 0); i++) {
    const { x0, y0, x1, y1 } = /** @type {NonNullable<Picture["edges"]>} */ (p.edges);
    add(x0[i], y0[i], x1[i], y1[i]);
  }
  if (left > right) add(0, 0, p.width, p.height);
  const box = { left, top, right, bottom };
  boxes.set(p, box);
  return box;
}

/**
 * What rulers and labels take around the tiles, in pixels: they keep their size and distance.
 * @param {CanvasRenderingContext2D} g
 * @param {Picture} p
 */
export function marginsOf(g, p) {
  const box = contentOf(p);
  const margins = { left: 1, top: 1, right: 2, bottom: 2 };
  for (const ruler of p.rulers) margins[ruler.down ? "left" : "top"] += depthOf(g, ruler);
  for (const { y } of p.labels) {
    margins.top = Math.max(margins.top, box.top - y + LINE / 2);
    margins.bottom = Math.max(margins.bottom, y - box.bottom + LINE / 2);
  }
  return margins;
}

/** How far a ruler reaches away from the tiles. @param {CanvasRenderingContext2D} g @param {Ruler} ruler */
function depthOf(g, ruler) {
  return barOf(ruler) + numbersDepth(g, ruler) + (ruler.words.length ? LINE : 0);
}

/** @param {Ruler} ruler */
const barOf = (ruler) => (isEdge(ruler) ? BAR_HIGH + BAR_AWAY : 0);

/** Whether it is an edge of an array, with bounds for numbers. @param {Ruler} ruler */
const isEdge = ({ extent, words }) => !extent && words.length > 0;

/** @param {CanvasRenderingContext2D} g @param {Ruler} ruler */
function numbersDepth(g, ruler) {
  if (!ruler.count) return 0;
  return ruler.down ? widestNumber(g, ruler) + 5 : LINE - 1;
}

/** @param {CanvasRenderingContext2D} g @param {Ruler} ruler */
function widestNumber(g, ruler) {
  return textWidth(g, numberText(ruler, ruler.count - 1));
}

/** What a number is: a bound, a coordinate, or the first and last of several. @param {Ruler} ruler @param {number} k */
function numberText({ extent, step, size }, k) {
  if (!extent || step === 1) return String(k * step);
  return `${k * step}–${Math.min((k + 1) * step, size) - 1}`;
}

/**
 * All rulers of a picture, those nearest to the tiles first.
 * @param {CanvasRenderingContext2D} g
 * @param {Ruler[]} rulers
 * @param {{down: Side, across: Side}} sides
 * @param {Theme} theme
 */
export function paintRulers(g, rulers, sides, theme) {
  g.textBaseline = "middle";
  const away = { down: 1, across: 1 };
  for (const ruler of rulers) {
    const way = ruler.down ? "down" : "across";
    const side = sides[way];
    g.save();
    if (ruler.down) {
      // Turned to the left: along a side is then x, as it is above the tiles, but backwards.
      g.translate(side.line, 0);
      g.rotate(-Math.PI / 2);
    } else g.translate(0, side.line);
    const line = -away[way];
    if (isEdge(ruler)) paintBar(g, ruler, side, line, theme);
    const numbers = line - barOf(ruler);
    g.font = FONT;
    g.fillStyle = theme.muted;
    paintNumbers(g, ruler, side, numbers);
    const words = numbers - numbersDepth(g, ruler) - LINE / 2;
    if (ruler.words.length) paintWords(g, ruler, side, words, theme);
    g.restore();
    away[way] += depthOf(g, ruler);
  }
}

/** Where each repeat of a ruler begins, in points. @param {Ruler} ruler */
function basesOf({ start, repeats }) {
  let bases = [start];
  for (const [count, pitch] of repeats) {
    bases = bases.flatMap((base) => Array.from({ length: count }, (_, k) => base + k * pitch));
  }
  return bases;
}

/**
 * The bar along an edge, in the colours of the axes that split it.
 * @param {CanvasRenderingContext2D} g
 * @param {Ruler} ruler
 * @param {Side} side
 * @param {number} line
 * @param {Theme} theme
 */
function paintBar(g, ruler, side, line, theme) {
  const colours = ruler.axes.map(([number]) => axisColour(number, theme));
  if (!colours.length) colours.push(mix(theme.muted, theme.paper, 0.4));
  const length = ruler.count ? (ruler.count - 1) * ruler.pitch : ruler.length;
  for (const base of basesOf(ruler)) {
    colours.forEach((colour, i) => {
      const ends = [i, i + 1].map((part) => {
        const at = (base + (length * part) / colours.length) * side.scale + side.origin;
        return Math.max(side.from, Math.min(at, side.to));
      });
      g.fillStyle = colour;
      const [first, last] = ruler.down ? [-ends[1], -ends[0]] : ends;
      g.fillRect(first, line - BAR_HIGH - 1, last - first, BAR_HIGH);
    });
  }
}

/**
 * As many numbers as fit: every one, every second, fourth or eighth; of bounds always the last.
 * Where not even two of a repeat fit, the first repeat in sight says from where to where it goes.
 * @param {CanvasRenderingContext2D} g
 * @param {Ruler} ruler
 * @param {Side} side
 * @param {number} line
 */
function paintNumbers(g, ruler, side, line) {
  const { count, pitch, extent, repeats, down } = ruler;
  if (!count) return;
  // Bounds at the ends stand inward, so that the others need more space.
  const wide = down ? LINE + (extent ? -2 : 5) : widestNumber(g, ruler) + NUMBERS_APART;
  const step = pitch * side.scale;
  const space = (repeats.at(-1)?.[1] ?? Infinity) * side.scale;
  let every = 1;
  while (every < count && every * step < wide) every *= 2;
  const few = every >= count && count > 1 && repeats.length > 0;
  if (few && !extent) return;
  let free = -Infinity; // where the text before ends
  const write = (
    /** @type {string} */ text,
    /** @type {number} */ from,
    /** @type {number} */ to,
  ) => {
    const length = down ? LINE - 2 : textWidth(g, text);
    const [first, last] = [Math.max(from, side.from), Math.min(to, side.to)];
    if (last < first) return false;
    const at = Math.max(side.from, Math.min((first + last - length) / 2, side.to - length));
    if (at < free) return false;
    free = at + length + (down ? 0 : NUMBERS_APART - 2);
    if (down) turnedNumber(g, text, at + length / 2, line);
    else {
      g.textAlign = "left";
      g.fillText(text, at, line - (LINE - 1) / 2);
    }
    return true;
  };
  for (const base of basesOf(ruler)) {
    const at = (/** @type {number} */ k) => (base + k * pitch) * side.scale + side.origin;
    if (few) {
      const range = numberText({ ...ruler, step: ruler.size }, 0);
      if (write(range, at(0), at(0) + Math.max(space, textWidth(g, range)))) return;
      continue;
    }
    if (extent) {
      for (let k = 0; k < count; k += every)
        write(numberText(ruler, k), at(k), at(k) + extent * side.scale);
      continue;
    }
    // Bounds at both ends stand inward, and the last one always stands.
    const last = count - 1;
    const end = textWidth(g, numberText(ruler, last)) + NUMBERS_APART;
    const inward = down ? (LINE - 2) / 2 : 0;
    for (let k = 0; k < last; k += every) {
      const own = down ? LINE : textWidth(g, numberText(ruler, k));
      const room = at(last) - at(k) > (down ? 1.6 * LINE : end + own / (k ? 2 : 1));
      const shift = k ? 0 : down ? inward : own / 2;
      if (room || !k) write(numberText(ruler, k), at(k) + shift, at(k) + shift);
    }
    const shift = down ? inward : (end - NUMBERS_APART) / 2;
    write(numberText(ruler, last), at(last) - shift, at(last) - shift);
  }
}

/**
 * A number at the left of the tiles, which is not turned.
 * @param {CanvasRenderingContext2D} g
 * @param {string} text
 * @param {number} y
 * @param {number} line
 */
function turnedNumber(g, text, y, line) {
  g.save();
  g.rotate(Math.PI / 2);
  g.textAlign = "right";
  g.fillText(text, line - 3, y);
  g.restore();
}

/**
 * The longest words that fit, with the dots of their axes, in the middle of what is in sight.
 * @param {CanvasRenderingContext2D} g
 * @param {Ruler} ruler
 * @param {Side} side
 * @param {number} line
 * @param {Theme} theme
 */
function paintWords(g, ruler, side, line, theme) {
  const start = ruler.start * side.scale + side.origin;
  const from = Math.max(side.from, start);
  const to = Math.min(side.to, start + ruler.length * side.scale);
  // Words above a narrow array may go on to the end of the canvas.
  const room = ruler.down ? to - from : side.to - from;
  if (room < LEAST) return;
  const parts = wordsThatFit(g, ruler, room, theme);
  const width = widthOf(g, parts);
  let at = Math.max(from, Math.min((from + to - width) / 2, side.to - width));
  if (ruler.down) at = -(at + width);
  g.textAlign = "left";
  for (const { text, colour, dot } of parts) {
    g.fillStyle = colour;
    if (dot) {
      g.beginPath();
      g.arc(at + DOT / 2 - 1, line, 3.5, 0, 2 * Math.PI);
      g.fill();
      at += DOT;
    }
    g.fillText(text, at, line);
    at += textWidth(g, text);
  }
}

/**
 * Only the longest words go on with the names of the axes; shorter ones have their dots.
 * @param {CanvasRenderingContext2D} g
 * @param {Ruler} ruler
 * @param {number} room
 * @param {Theme} theme
 */
function wordsThatFit(g, { words, axes }, room, theme) {
  /** @type {Part[]} */
  let parts = [];
  for (let i = 0; i < words.length; i++) {
    parts = words[i] ? [{ text: `${words[i]} `, colour: theme.text }] : [];
    for (const [number, name] of axes) {
      const colour = axisColour(number, theme);
      parts.push({ text: "", colour, dot: true });
      if (!i) parts.push({ text: `${name} `, colour: theme.text });
    }
    if (widthOf(g, parts) <= room) return parts;
  }
  // Not even the shortest: as many of its letters as there is room for.
  const last = parts.filter(({ text }) => text).at(-1);
  while (last && last.text.length > 2 && widthOf(g, parts) > room) {
    last.text = `${last.text.slice(0, -2)}…`;
  }
  return parts;
}

/** @param {CanvasRenderingContext2D} g @param {Part[]} parts */
function widthOf(g, parts) {
  return parts.reduce((sum, { text, dot }) => sum + textWidth(g, text) + (dot ? DOT : 0), 0);
}

/**
 * The width of every text that was measured: to choose a font and measure takes longer than to
 * draw, and edits change few labels.
 * @type {Map<string, number>}
 */
const widths = new Map();

/** @param {CanvasRenderingContext2D} g @param {string} text @param {string} [font] */
export function textWidth(g, text, font = FONT) {
  const key = `${font}|${text}`;
  const known = widths.get(key);
  if (known !== undefined) return known;
  g.font = font;
  const { width } = g.measureText(text);
  if (widths.size > MOST_WIDTHS) widths.clear();
  widths.set(key, width);
  return width;
}
