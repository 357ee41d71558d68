// @ts-check
// Where the labels of a picture stand, at any scale: around the tiles they keep their distance and
// their size while tiles shrink, and where they come too near to each other, fewer of them do.

/** @typedef {import("./picture_data.js").Picture} Picture */
/** @typedef {import("./picture_data.js").Label} Label */
/** @typedef {{left: number, top: number, right: number, bottom: number}} ContentBox in points */
/**
 * A line of text, in CSS pixels from the origin of the picture.
 * @typedef {{label: Label, text: string, font: string, left: number, right: number, y: number}}
 *   LabelPlace
 */

export const SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const MONO = "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace";
const NOTE_LINE = 14; // pixels from one line to the next
const LABEL_LINE = 12; // pixels between the middles of two labels, one below the other
const ARROW = 6; // pixels that the name of an axis is farther away, so that it covers no number
const ABOVE = 4; // pixels that names of axes are farther away, so that those on the left fit beside
const COLUMN_GAP = 8; // pixels
const MOST_WIDTHS = 5000;
export const MOST_AROUND = 0.5; // of the canvas, for labels on one side

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
  for (const f of p.frames) add(f.x, f.y, f.x + f.width, f.y + f.height);
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
 * The place of every label; a note that is wider than the canvas takes several lines.
 * @param {CanvasRenderingContext2D} g
 * @param {Picture} p
 * @param {number} scale
 * @param {number} width of the canvas
 */
export function placesOf(g, p, scale, width) {
  const box = contentOf(p);
  /** @type {LabelPlace[]} */
  const places = [];
  let last = -Infinity; // the last line below the tiles
  for (const label of p.labels) {
    const font = labelFont(label);
    let x = around(label.x, box.left, box.right, scale);
    if (label.text.endsWith("→") && label.anchor === "end") x -= ARROW;
    let y = around(label.y, box.top, box.bottom, scale);
    if (label.role === "axis" && label.y < box.top) y -= ABOVE;
    const note = label.role === "note";
    for (const text of note ? noteLines(g, label.text, font, width - 8) : [label.text]) {
      if (note && label.y > box.bottom) last = y = Math.max(y, last + NOTE_LINE);
      const wide = textWidth(g, text, font);
      const left = x - anchorShift(label, wide);
      places.push({ label, text, font, left, right: left + wide, y });
    }
  }
  narrowColumns(g, places, box, box.left * scale - width * MOST_AROUND);
  return places;
}

/**
 * Shortens the words in the columns on the left where these begin before `least`, and moves the
 * columns together: their numbers say more, and the caption has the names of dimensions.
 * @param {CanvasRenderingContext2D} g
 * @param {LabelPlace[]} places
 * @param {ContentBox} box
 * @param {number} least
 */
function narrowColumns(g, places, box, least) {
  /** @type {Map<number, LabelPlace[]>} */
  const columns = new Map();
  for (const place of places) {
    if (!lineOf(place, box).startsWith("column axis")) continue;
    const column = columns.get(place.right);
    if (column) column.push(place);
    else columns.set(place.right, [place]);
  }
  const inward = [...columns].sort(([a], [b]) => b - a);
  if (inward.every(([, column]) => column.every(({ left }) => left >= least))) return;
  let edge = inward[0][0];
  for (const [, column] of inward) {
    const right = edge;
    for (const place of column) {
      place.text = shorter(place.text);
      place.left = right - textWidth(g, place.text, place.font);
      place.right = right;
      edge = Math.min(edge, place.left - COLUMN_GAP);
    }
  }
}

/** `dimension 2 [0:16]` as `2 [0:16]`, `model 12` as `mod… 12`. @param {string} text */
function shorter(text) {
  const [name, ...rest] = text.split(" ");
  if (rest.length > 1) return rest.join(" ");
  return name.length > 4 && rest.length ? `${name.slice(0, 3)}… ${rest[0]}` : text;
}

/**
 * A coordinate in CSS pixels: outside of the tiles the distance from them stays.
 * @param {number} value
 * @param {number} first
 * @param {number} last
 * @param {number} scale
 */
function around(value, first, last, scale) {
  const inside = Math.max(first, Math.min(value, last));
  return inside * scale + (value - inside) * Math.max(1, scale);
}

/**
 * A note in lines no wider than the canvas, broken between its parts, else between words.
 * @param {CanvasRenderingContext2D} g
 * @param {string} text
 * @param {string} font
 * @param {number} width
 */
function noteLines(g, text, font, width) {
  if (textWidth(g, text, font) <= width) return [text];
  const between = text.includes(" · ") ? " · " : " ";
  /** @type {string[]} */
  const lines = [];
  for (const part of text.split(between)) {
    const longer = lines.length ? `${lines[lines.length - 1]}${between}${part}` : part;
    if (lines.length && textWidth(g, longer, font) <= width) lines[lines.length - 1] = longer;
    else lines.push(...(between === " " ? [part] : noteLines(g, part, font, width)));
  }
  return lines;
}

/**
 * The labels of which none is over another of its row or column. Of those that are too near, every
 * second, fourth or eighth stays, counted anew where the numbers start again; the first and the
 * last tick always stay. Where not even two of each count fit, the name of the axis stays.
 * @param {LabelPlace[]} places
 * @param {ContentBox} box
 */
export function thinned(places, box) {
  /** @type {Map<string, LabelPlace[]>} */
  const lines = new Map();
  /** @type {LabelPlace[]} */
  const others = [];
  for (const place of places) {
    const key = lineOf(place, box);
    const line = key ? lines.get(key) : others;
    if (line) line.push(place);
    else lines.set(key, [place]);
  }
  const kept = [...lines].flatMap(([key, line]) => fewer(line, key.startsWith("column")));
  return [...others, ...kept];
}

/** The row or the column around the tiles that a label is in; "" for none. @param {LabelPlace} place @param {ContentBox} box */
function lineOf({ label, text, right, y }, box) {
  if (!["axis", "tick"].includes(label.role) || text.endsWith("→")) return "";
  if (label.anchor === "end" && label.x < box.left) return `column ${label.role} ${right}`;
  return label.y < box.top ? `row ${label.role} ${y}` : "";
}

/** @param {LabelPlace[]} line @param {boolean} column */
function fewer(line, column) {
  const sorted = [...line].sort((a, b) => (column ? a.y - b.y : a.left - b.left));
  let [count, longest, before, counts] = [0, 0, Infinity, 0];
  const counted = sorted.map((place) => {
    const number = Number(/(\d+)\D*$/.exec(place.text)?.[1] ?? 0);
    count = number > before ? count + 1 : 0;
    counts += Number(!count);
    before = number;
    longest = Math.max(longest, count + 1);
    return { place, count };
  });
  // The first of each count alone would be the same number again and again.
  const most = counts > 1 && longest > 1 ? longest : 2 * longest;
  for (let every = 1; every < most; every *= 2) {
    const some = counted.filter((one) => one.count % every === 0).map((one) => one.place);
    if (sorted[0].label.role === "tick") endWith(some, sorted[sorted.length - 1], column);
    if (some.every((place, i) => !i || apart(some[i - 1], place, column))) return some;
  }
  const first = sorted[0];
  const name = /^(\D.*) \S+$/.exec(first.text)?.[1];
  return name ? [{ ...first, text: `${name} ${column ? "↓" : "→"}` }] : [];
}

/** @param {LabelPlace[]} some @param {LabelPlace} last @param {boolean} column */
function endWith(some, last, column) {
  while (some.length > 1 && some[some.length - 1] !== last) {
    if (apart(some[some.length - 1], last, column)) break;
    some.pop();
  }
  if (some[some.length - 1] !== last) some.push(last);
}

/** @param {LabelPlace} one @param {LabelPlace} next @param {boolean} column */
function apart(one, next, column) {
  return column ? next.y - one.y >= LABEL_LINE : next.left - one.right >= 6;
}

/** How far a label's start is left of its point. @param {Label} label @param {number} width */
function anchorShift(label, width) {
  return label.anchor === "start" ? 0 : label.anchor === "end" ? width : width / 2;
}

/** @param {Label} label */
function labelFont(label) {
  const title = label.role === "title";
  return `${title ? 600 : 400} ${title ? 12 : 11}px ${label.role === "mono" ? MONO : SANS}`;
}

/**
 * The width of every text that was measured: to choose a font and measure takes longer than to
 * draw, and edits change few labels.
 * @type {Map<string, number>}
 */
const widths = new Map();

/** @param {CanvasRenderingContext2D} g @param {string} text @param {string} font */
function textWidth(g, text, font) {
  const key = `${font}|${text}`;
  const known = widths.get(key);
  if (known !== undefined) return known;
  g.font = font;
  const { width } = g.measureText(text);
  if (widths.size > MOST_WIDTHS) widths.clear();
  widths.set(key, width);
  return width;
}
