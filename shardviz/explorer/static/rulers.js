// @ts-check
// Rulers along the sides of the tiles.
// A ruler shows the name of a dimension or mesh axis, axis colours, and as many numbers as fit.
// The text keeps its size when the picture is scaled, and stays visible when it is zoomed.
import { axisColour, ladderColours, mix } from "./colours.js";

/** @typedef {import("./picture_data.js").Picture} Picture */
/** @typedef {import("./messages").Ruler} Ruler */
/** @typedef {import("./colours.js").Theme} Theme */
/** A piece of text, optionally after a coloured dot. @typedef {{text: string, dot?: string}} Part */
/**
 * One side of a picture, in CSS pixels: `origin` of the tiles along the side, visible range
 * `from`-`to`, scale along the side, and the `line` at which the tiles begin.
 * @typedef {{origin: number, from: number, to: number, scale: number, line: number}} Side
 */

export const SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
export const FONT = `11px ${SANS}`;
const LINE = 14; // height of a line of text, in pixels
const AXIS_STRIP = 3; // height of the strip that each mesh axis has along an array's edge, in pixels
const LEAST_STEP = 3; // pixels; a strip with shorter steps has the axis' full colour
const BAR_AWAY = 2;
const NUMBERS_APART = 8; // pixels between two numbers
const DOT = 11; // width of a dot, in pixels
const MOST_WIDTHS = 5000;

/**
 * Returns the margins that rulers and labels need around the tiles, in pixels.
 * @param {CanvasRenderingContext2D} g
 * @param {Picture} p
 */
export function marginsOf(g, p) {
  const { box } = p;
  const margins = { left: 1, top: 1, right: 2, bottom: 2 };
  for (const ruler of p.rulers) {
    margins[ruler.down ? "left" : "top"] += new DrawnRuler(g, ruler).depth;
  }
  for (const { y } of p.labels) {
    margins.top = Math.max(margins.top, box.top - y + LINE / 2);
    margins.bottom = Math.max(margins.bottom, y - box.bottom + LINE / 2);
  }
  return margins;
}

/**
 * Paints all rulers of a picture, from the tiles outward.
 * @param {CanvasRenderingContext2D} g
 * @param {Ruler[]} rulers
 * @param {{down: Side, across: Side}} sides
 * @param {Theme} theme
 */
export function paintRulers(g, rulers, sides, theme) {
  g.textBaseline = "middle";
  const away = { down: 1, across: 1 };
  for (const ruler of rulers) {
    const direction = ruler.down ? "down" : "across";
    const drawn = new DrawnRuler(g, ruler);
    drawn.paint(sides[direction], -away[direction], theme);
    away[direction] += drawn.depth;
  }
}

/** Paints one ruler on a canvas: a bar, numbers and words, from the tiles outward. */
class DrawnRuler {
  /** @param {CanvasRenderingContext2D} g @param {Ruler} ruler */
  constructor(g, ruler) {
    const { count, down, extent, words, axes } = ruler;
    this.g = g;
    this.ruler = ruler;
    // Rulers along an array's edge have strips, and their numbers are bounds.
    const strips = AXIS_STRIP * Math.max(1, axes.length);
    this.bar = !extent && words.length ? strips + BAR_AWAY : 0;
    this.widest = count ? textWidth(g, this.number(count - 1)) : 0;
    this.high = down ? this.widest + 5 : LINE - 1;
    if (!count) this.high = 0;
    this.depth = this.bar + this.high + (words.length ? LINE : 0);
  }

  /** Returns the text of number `k`: a bound, a coordinate, or a range of coordinates. @param {number} k */
  number(k, { extent, step, size } = this.ruler) {
    if (!extent || step === 1) return String(k * step);
    return `${k * step}–${Math.min((k + 1) * step, size) - 1}`;
  }

  /** Returns the start of each repeat of the ruler, in points. */
  bases() {
    let bases = [this.ruler.start];
    for (const [count, pitch] of this.ruler.repeats) {
      bases = bases.flatMap((base) => Array.from({ length: count }, (_, k) => base + k * pitch));
    }
    return bases;
  }

  /** @param {Side} side @param {number} line @param {Theme} theme */
  paint(side, line, theme) {
    const { g, ruler } = this;
    g.save();
    if (ruler.down) {
      // Rotate the canvas by -90°, so that x runs along the side, backwards.
      g.translate(side.line, 0);
      g.rotate(-Math.PI / 2);
    } else g.translate(0, side.line);
    if (this.bar) this.paintBar(side, line, theme);
    g.font = FONT;
    g.fillStyle = theme.muted;
    if (ruler.count) this.paintNumbers(side, line - this.bar);
    const words = line - this.bar - this.high - LINE / 2;
    if (ruler.words.length) this.paintWords(side, words, theme);
    g.restore();
  }

  /**
   * Paints the strips along an edge, one for each axis that splits it: the major axis outside, each
   * in steps of its ladder.
   * @param {Side} side
   * @param {number} line
   * @param {Theme} theme
   */
  paintBar(side, line, theme) {
    const { axes, count, pitch } = this.ruler;
    const length = count ? (count - 1) * pitch : this.ruler.length;
    const unsplit = mix(theme.muted, theme.paper, 0.4);
    for (const base of this.bases()) {
      const start = base * side.scale + side.origin;
      if (!axes.length) this.paintStrip(side, [start, length * side.scale, line], 1, () => unsplit);
      let steps = 1;
      axes.forEach(([number, , size], row) => {
        steps *= size;
        const top = line - AXIS_STRIP * (axes.length - 1 - row);
        const fine = (length * side.scale) / steps < LEAST_STEP;
        const colour = fine
          ? () => axisColour(number, theme)
          : ladderColours([number, size, 1], theme);
        this.paintStrip(side, [start, length * side.scale, top], fine ? 1 : steps, colour);
      });
    }
  }

  /**
   * Paints one strip in equal steps.
   * @param {Side} side
   * @param {[start: number, length: number, line: number]} strip in pixels
   * @param {number} steps
   * @param {import("./colours.js").ColourOf} colour
   */
  paintStrip(side, [start, length, line], steps, colour) {
    for (let step = 0; step < steps; step++) {
      const ends = [step, step + 1].map((end) => {
        const at = start + (length * end) / steps;
        return Math.max(side.from, Math.min(at, side.to));
      });
      this.g.fillStyle = colour(step);
      const [first, last] = this.ruler.down ? [-ends[1], -ends[0]] : ends;
      if (last > first) this.g.fillRect(first, line - AXIS_STRIP - 1, last - first, AXIS_STRIP);
    }
  }

  /**
   * Paints as many numbers as fit: all, or every 2nd, 4th, 8th and so on. The last bound is always
   * painted. If two numbers do not fit into a repeat, only the range of the first visible repeat is
   * painted.
   * @param {Side} side
   * @param {number} line
   */
  paintNumbers(side, line) {
    const { g, ruler } = this;
    const { count, pitch, extent, repeats, down } = ruler;
    const width = (/** @type {string} */ text) => (down ? LINE - 2 : textWidth(g, text));
    // The outer bounds are aligned inward, so other numbers need more space.
    const wide = down ? LINE + (extent ? -2 : 5) : this.widest + NUMBERS_APART;
    const space = (repeats.at(-1)?.[1] ?? Infinity) * side.scale;
    let every = 1;
    while (every < count && every * pitch * side.scale < wide) every *= 2;
    const few = every >= count && count > 1 && repeats.length > 0;
    if (few && !extent) return;
    let free = -Infinity; // end of the previous text
    /** @type {(text: string, from: number, to: number) => boolean} */
    const write = (text, from, to) => {
      const length = width(text);
      const [first, last] = [Math.max(from, side.from), Math.min(to, side.to)];
      if (last < first) return false;
      const at = Math.max(side.from, Math.min((first + last - length) / 2, side.to - length));
      if (at < free) return false;
      free = at + length + (down ? 0 : NUMBERS_APART - 2);
      this.writeNumber(text, at, length, line);
      return true;
    };
    for (const base of this.bases()) {
      const at = (/** @type {number} */ k) => (base + k * pitch) * side.scale + side.origin;
      if (few) {
        const range = this.number(0, { ...ruler, step: ruler.size });
        if (write(range, at(0), at(0) + Math.max(space, textWidth(g, range)))) return;
        continue;
      }
      if (extent) {
        for (let k = 0; k < count; k += every)
          write(this.number(k), at(k), at(k) + extent * side.scale);
        continue;
      }
      // The first and last bounds are aligned inward; the last bound is always painted.
      const last = count - 1;
      const end = width(this.number(last));
      for (let k = 0; k < last; k += every) {
        const numberWidth = width(this.number(k));
        const shift = k ? 0 : numberWidth / 2;
        const needed = down ? 1.6 * LINE : end + NUMBERS_APART + numberWidth / (k ? 2 : 1);
        if (!k || at(last) - at(k) > needed) write(this.number(k), at(k) + shift, at(k) + shift);
      }
      write(this.number(last), at(last) - end / 2, at(last) - end / 2);
    }
  }

  /**
   * Paints a number; on the left side, it is not rotated.
   * @param {string} text
   * @param {number} at
   * @param {number} length
   * @param {number} line
   */
  writeNumber(text, at, length, line) {
    const { g } = this;
    g.save();
    if (this.ruler.down) g.rotate(Math.PI / 2);
    g.textAlign = this.ruler.down ? "right" : "left";
    if (this.ruler.down) g.fillText(text, line - 3, at + length / 2);
    else g.fillText(text, at, line - (LINE - 1) / 2);
    g.restore();
  }

  /**
   * Paints the longest text that fits, with coloured dots for axes, centred in the visible range.
   * @param {Side} side
   * @param {number} line
   * @param {Theme} theme
   */
  paintWords(side, line, theme) {
    const { g, ruler } = this;
    const start = ruler.start * side.scale + side.origin;
    const from = Math.max(side.from, start);
    const to = Math.min(side.to, start + ruler.length * side.scale);
    if (to < from) return;
    // The text may be longer than the side of a small array.
    const least = ruler.down ? side.from : 0;
    const parts = this.wordsThatFit(side.to - least, theme);
    const width = widthOf(g, parts);
    let at = Math.max(least, Math.min((from + to - width) / 2, side.to - width));
    if (ruler.down) at = -(at + width);
    g.textAlign = "left";
    for (const { text, dot } of parts) {
      if (dot) {
        g.fillStyle = dot;
        g.beginPath();
        g.arc(at + DOT / 2 - 1, line, 3.5, 0, 2 * Math.PI);
        g.fill();
        at += DOT;
      }
      g.fillStyle = theme.text;
      g.fillText(text, at, line);
      at += textWidth(g, text);
    }
  }

  /**
   * Returns the ruler's text with axis names, or only with the axes' dots if space is short.
   * @param {number} room
   * @param {Theme} theme
   */
  wordsThatFit(room, theme) {
    const { words, axes } = this.ruler;
    /** @type {Part[]} */
    let parts = [];
    // Names before sizes: the first bounds show the sizes, too.
    for (const named of [true, false]) {
      // Text that ends with "over" must be followed by axis names.
      for (const word of named ? words : words.slice(1)) {
        parts = word ? [{ text: `${word} ` }] : [];
        for (const [number, name] of axes) {
          parts.push({ text: named ? `${name} ` : "", dot: axisColour(number, theme) });
        }
        if (widthOf(this.g, parts) <= room) return parts;
      }
    }
    // If even the shortest text does not fit, truncate it.
    const last = parts.filter(({ text }) => text).at(-1);
    while (last && last.text.length > 2 && widthOf(this.g, parts) > room) {
      last.text = `${last.text.slice(0, -2)}…`;
    }
    return parts;
  }
}

/** @param {CanvasRenderingContext2D} g @param {Part[]} parts */
function widthOf(g, parts) {
  return parts.reduce((sum, { text, dot }) => sum + textWidth(g, text) + (dot ? DOT : 0), 0);
}

/**
 * Cached text widths. Measuring is slower than drawing, and edits change few labels.
 * @type {Map<string, number>}
 */
const widths = new Map();

/** @param {CanvasRenderingContext2D} g @param {string} text @param {string} [font] */
export function textWidth(g, text, font = FONT) {
  const key = `${font}|${text}`;
  const cached = widths.get(key);
  if (cached !== undefined) return cached;
  g.font = font;
  const { width } = g.measureText(text);
  if (widths.size > MOST_WIDTHS) widths.clear();
  widths.set(key, width);
  return width;
}
