// @ts-check
// Paints one Picture on two canvases, one for the tiles and one for what stands out among them.
// The picture comes ready from Python (`shardviz/picture`); this adds colours and marks.
import { axisColour, mix, softPixel, textOn, tileColours } from "./colours.js";
import { h } from "./dom.js";
import { MOST_AROUND, SANS, contentOf, placesOf, thinned } from "./label_places.js";

/** @typedef {import("./picture_data.js").Picture} Picture */
/** @typedef {import("./colours.js").Theme} Theme */
/** @typedef {import("./picture_data.js").Label} Label */
/** @typedef {CanvasRenderingContext2D} Context */
/** @typedef {{x: number, y: number, w: number, h: number}} Box in CSS pixels */
/** @typedef {import("./label_places.js").LabelPlace} LabelPlace */
/** @typedef {{fill: string, line: string, width: number, text: string}} TileStyle */
/**
 * The tiles and the frame that stand out.
 * @typedef {{strong: Set<number>, soft: Set<number>, frame: number}} Marks
 */
/**
 * The lines of text in a tile, and what is written in its corner.
 * @typedef {{lines: (tile: number) => string[], corner?: (tile: number) => string}} TileTexts
 */

const MANY_TILES = 16384; // beyond so many, small tiles are painted pixel by pixel
const HALF_LINE = 7; // pixels above and below the middle of a label
const PADDING = 3; // pixels around a label
const NO_GROUP = -1; // as in picture/shapes.py
const MANY_GROUPS = -2;

export class PicturePainter {
  /** @param {TileTexts} texts @param {number} maxScale */
  constructor(texts, maxScale) {
    this.texts = texts;
    this.maxScale = maxScale;
    this.base = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    this.over = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    /** @type {Picture | null} */ this.picture = null;
    /** @type {Marks} */ this.marks = { strong: new Set(), soft: new Set(), frame: -1 };
    /** @type {Theme | null} */ this.theme = null;
    /** @type {Int32Array | null} */ this.groups = null;
    this.count = 1;
    this.scale = 1;
    this.ox = 0;
    this.oy = 0;
    this.fitted = true;
    this.size = { w: 0, h: 0 };
    /**
     * What the canvas shows, so that nothing is painted twice.
     * @type {unknown[] | null}
     */
    this.painted = null;
  }

  /** Gives the canvases a size in CSS pixels. @param {number} w @param {number} height */
  resize(w, height) {
    this.size = { w, h: height };
    this.painted = null;
    const ratio = window.devicePixelRatio || 1;
    for (const layer of [this.base, this.over]) {
      layer.width = Math.round(w * ratio);
      layer.height = Math.round(height * ratio);
    }
  }

  /** Chooses the scale at which the whole picture can be seen. */
  fit() {
    if (!this.picture || !this.size.w) return;
    const box = contentOf(this.picture);
    // Labels keep their size while tiles shrink, so they take more of a small picture.
    let beyond = { left: 1, right: 1, top: 1, bottom: 1 };
    for (let round = 0; round < 3; round++) {
      this.scale = Math.min(
        this.maxScale,
        (this.size.w - beyond.left - beyond.right) / Math.max(1, box.right - box.left),
        (this.size.h - beyond.top - beyond.bottom) / Math.max(1, box.bottom - box.top),
      );
      beyond = this.overhang(this.picture, this.scale);
    }
    this.ox = beyond.left - box.left * this.scale;
    this.oy = beyond.top - box.top * this.scale;
    this.fitted = true;
  }

  /**
   * How far labels reach beyond the tiles and frames, in CSS pixels. Lines of notes are as wide as
   * the canvas, wherever the tiles are.
   * @param {Picture} picture
   * @param {number} scale
   */
  overhang(picture, scale) {
    const box = contentOf(picture);
    let [left, right, top, bottom] = [1, 1, 1, 1];
    for (const place of placesOf(contextOf(this.base), picture, scale, this.size.w)) {
      top = Math.max(top, box.top * scale - place.y + HALF_LINE);
      bottom = Math.max(bottom, place.y - box.bottom * scale + HALF_LINE);
      if (place.label.role === "note") continue;
      left = Math.max(left, box.left * scale - place.left + PADDING);
      right = Math.max(right, place.right - box.right * scale + 1);
    }
    const [wide, high] = [this.size.w * MOST_AROUND, this.size.h * MOST_AROUND];
    return {
      left: Math.min(left, wide),
      right: Math.min(right, wide),
      top: Math.min(top, high),
      bottom: Math.min(bottom, high),
    };
  }

  /** Where a tile is on the canvas. @param {Picture} p @param {number} i @returns {Box} */
  boxOf(p, i) {
    const s = this.scale;
    return { x: p.x[i] * s + this.ox, y: p.y[i] * s + this.oy, w: p.w[i] * s, h: p.h[i] * s };
  }

  /** A layer, emptied. @param {HTMLCanvasElement} canvas */
  begin(canvas) {
    const g = contextOf(canvas);
    const ratio = window.devicePixelRatio || 1;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.size.w, this.size.h);
    return g;
  }

  paint() {
    const { picture: p, theme } = this;
    if (!p || !this.size.w || !theme) return;
    const { groups: own, count, scale, ox, oy, base } = this;
    const now = [p, own, count, theme.name, scale, ox, oy, base.width, base.height, p.colormap];
    if (this.painted && now.every((v, i) => v === this.painted?.[i])) return;
    this.painted = now;
    const g = this.begin(base);
    const groups = own ?? p.group;
    const colours = tileColours(count, p.colormap, theme, p.shades);
    if (p.edges) this.edges(g, p.edges, theme);
    if (this.tiny(p)) this.pixels(g, p, groups, colours);
    else {
      for (let i = 0; i < p.x.length; i++) {
        const group = groups[i];
        const [fill, line] = [colours.soft(group), colours.line(group)];
        this.tile(g, p, i, { fill, line, width: 1, text: colours.text(group) });
      }
    }
    this.frames(g, p, theme);
    this.labels(g, p, theme);
    this.paintMarks();
  }

  paintMarks() {
    const { picture: p, theme } = this;
    if (!p || !this.size.w || !theme) return;
    const g = this.begin(this.over);
    const groups = this.groups ?? p.group;
    const colours = tileColours(this.count, p.colormap, theme, p.shades);
    const { strong, soft } = this.marks;
    const small = p.x.length > 0 && Math.min(p.w[0], p.h[0]) * this.scale < 9;
    if ((colours.many && strong.size) || ((colours.many || small) && soft.size))
      this.fade(g, p, theme);
    for (const i of soft) {
      if (strong.has(i) || i >= p.x.length) continue;
      const full = colours.strong(groups[i]);
      const style = small
        ? { fill: mix(full, theme.text, 0.5), line: theme.text, text: theme.text }
        : { fill: colours.mid(groups[i]), line: theme.text, text: colours.textMid(groups[i]) };
      this.tile(g, p, i, { ...style, width: 1.5 });
    }
    for (const i of strong) {
      if (i >= p.x.length) continue;
      const fill = colours.strong(groups[i]);
      this.tile(g, p, i, { fill, line: theme.text, width: 3, text: textOn(fill, theme) });
    }
    this.markFrame(g, p, theme);
  }

  /**
   * Makes the tiles without a mark pale: a ramp has no stronger colour to mark with, and small
   * tiles have no space for an outline.
   * @param {Context} g
   * @param {Picture} p
   * @param {Theme} theme
   */
  fade(g, p, theme) {
    const { strong, soft } = this.marks;
    g.globalAlpha = soft.size ? 0.5 : 0.3;
    g.fillStyle = theme.paper;
    for (let i = 0; i < p.x.length; i++) {
      if (soft.has(i) || strong.has(i)) continue;
      const b = this.boxOf(p, i);
      g.fillRect(b.x, b.y, b.w + 0.5, b.h + 0.5);
    }
    g.globalAlpha = 1;
  }

  /** @param {Context} g @param {Picture} p @param {Theme} theme */
  markFrame(g, p, theme) {
    const f = p.frames[this.marks.frame];
    if (!f) return;
    const s = this.scale;
    g.strokeStyle = theme.text;
    g.lineWidth = 1.5;
    g.strokeRect(f.x * s + this.ox, f.y * s + this.oy, f.width * s, f.height * s);
  }

  /**
   * Whether there are so many tiles, too small for borders and text, that they are painted pixel by
   * pixel. All tiles of a picture have one size.
   * @param {Picture} p
   */
  tiny(p) {
    return p.x.length > MANY_TILES && p.w[0] * this.scale < 5 && p.h[0] * this.scale < 5;
  }

  /**
   * The strokes under the tiles, in the colours of mesh axes: one path for each colour and width.
   * @param {Context} g
   * @param {NonNullable<Picture["edges"]>} edges
   * @param {Theme} theme
   */
  edges(g, edges, theme) {
    const { scale: s, ox, oy, size } = this;
    /** @type {Map<string, number[]>} */
    const paths = new Map();
    for (let i = 0; i < edges.count; i++) {
      const key = `${edges.group[i]}|${Math.round(edges.width[i] * 2) / 2}`;
      const list = paths.get(key);
      if (list) list.push(i);
      else paths.set(key, [i]);
    }
    const unused = mix(theme.muted, theme.paper, 0.4);
    g.lineCap = "round";
    for (const [key, list] of paths) {
      const [group, width] = key.split("|").map(Number);
      const colour = group === MANY_GROUPS ? theme.muted : axisColour(group, theme);
      g.strokeStyle = group === NO_GROUP ? unused : colour;
      // Links that carry nothing are thin, and the finer the paler.
      g.globalAlpha = width < 1 ? clamp(width * s, 0.2, 0.6) : 1;
      g.lineWidth = Math.max(0.75, width * Math.min(1.5, s));
      g.beginPath();
      for (const i of list) {
        const [x0, x1] = [edges.x0[i] * s + ox, edges.x1[i] * s + ox];
        const [y0, y1] = [edges.y0[i] * s + oy, edges.y1[i] * s + oy];
        if (Math.max(x0, x1) < 0 || Math.min(x0, x1) > size.w) continue;
        if (Math.max(y0, y1) < 0 || Math.min(y0, y1) > size.h) continue;
        g.moveTo(x0, y0);
        g.lineTo(x1, y1);
      }
      g.stroke();
    }
    g.lineCap = "butt";
    g.globalAlpha = 1;
  }

  /**
   * Very many small tiles, pixel by pixel: a call per rectangle would take longer than a frame.
   * Each tile reaches to the next whole pixel, so that there is no gap to its neighbours.
   * @param {Context} g
   * @param {Picture} p
   * @param {ArrayLike<number>} groups
   * @param {import("./colours.js").TileColours} colours
   */
  pixels(g, p, groups, colours) {
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this.base;
    const image = g.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const s = this.scale * ratio;
    const ox = this.ox * ratio;
    const oy = this.oy * ratio;
    const w = p.w[0] * s;
    const tall = p.h[0] * s;
    const pixelOf = softPixel(colours);
    for (let i = 0; i < p.x.length; i++) {
      const left = p.x[i] * s + ox;
      const top = p.y[i] * s + oy;
      const x0 = Math.max(0, Math.round(left));
      const y0 = Math.max(0, Math.round(top));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.ceil(left + w)));
      const y1 = Math.min(height, Math.max(y0 + 1, Math.ceil(top + tall)));
      const colour = pixelOf(groups[i]);
      for (let y = y0; y < y1; y++) {
        // A call of fill would take longer than these few pixels.
        for (let at = y * width + x0; at < y * width + x1; at++) pixels[at] = colour;
      }
    }
    g.putImageData(image, 0, 0);
  }

  /**
   * @param {Context} g
   * @param {Picture} p
   * @param {number} i
   * @param {TileStyle} style
   */
  tile(g, p, i, style) {
    const box = this.boxOf(p, i);
    const { x, y, w, h: tall } = box;
    const { line, width } = style;
    if (x > this.size.w || y > this.size.h || x + w < 0 || y + tall < 0) return;
    g.fillStyle = style.fill;
    if (w < 5 || tall < 5) {
      // Too small for a border; at least one pixel, so that it can be seen.
      const [least, high] = [Math.max(w, 1), Math.max(tall, 1)];
      g.fillRect(x, y, least, high);
      if (width > 1) outline(g, { x: x - 1, y: y - 1, w: least + 2, h: high + 2 }, line, 1.5);
      return;
    }
    const inside = { x: x + width / 2, y: y + width / 2, w: w - width, h: tall - width };
    const radius = w < 26 || tall < 14 ? 0 : Math.min(5, w / 6, tall / 5);
    if (!radius) {
      // Plain rectangles: hundreds of round ones take most of a frame.
      g.fillRect(x, y, w, tall);
      outline(g, inside, line, width);
    } else {
      g.beginPath();
      if (radius > 1) g.roundRect(inside.x, inside.y, inside.w, inside.h, radius);
      else g.rect(inside.x, inside.y, inside.w, inside.h);
      g.fill();
      g.strokeStyle = line;
      g.lineWidth = width;
      g.stroke();
    }
    this.tileText(g, i, box, style.text);
  }

  /**
   * The text in a tile, as much as fits.
   * @param {Context} g
   * @param {number} i
   * @param {Box} box
   * @param {string} colour
   */
  tileText(g, i, { x, y, w, h: tall }, colour) {
    if (w < 12 || tall < 11) return;
    const lines = this.texts.lines(i);
    if (!lines.length) return;
    const corner = this.texts.corner?.(i) ?? "";
    g.fillStyle = colour;
    g.textBaseline = "middle";
    const large = isLarge(w, tall);
    g.font = `600 ${large ? 13 : Math.min(12, tall - 3)}px ${SANS}`;
    const first = fitText(g, lines[0], w - 6);
    if (!first) return;
    if (!large || this.texts.corner === undefined) {
      const second = large && lines[1] ? lines[1] : "";
      g.textAlign = "center";
      g.fillText(first, x + w / 2, y + tall / 2 - (second ? 8 : 0));
      if (second) smallText(g, second, x + w / 2, y + tall / 2 + 9, w - 8, "center");
      return;
    }
    const top = y + Math.min(17, tall * 0.36);
    g.textAlign = "left";
    g.fillText(first, x + 10, top);
    if (corner) smallText(g, corner, x + w - 9, top, w / 2, "right");
    if (lines[1])
      smallText(g, lines[1], x + 10, y + tall - Math.min(14, tall * 0.3), w - 18, "left");
  }

  /** @param {Context} g @param {Picture} p @param {Theme} theme */
  frames(g, p, theme) {
    const s = this.scale;
    const pale = mix(theme.muted, theme.paper, 0.55);
    g.lineWidth = 1;
    for (const f of p.frames) {
      if (f.width * s < 6 || f.height * s < 6) continue;
      // Around a few pixels a full stroke would be all that one sees.
      g.strokeStyle = Math.min(f.width, f.height) * s < 30 ? pale : theme.muted;
      g.setLineDash(f.dashed ? [3, 3] : []);
      g.strokeRect(f.x * s + this.ox, f.y * s + this.oy, f.width * s, f.height * s);
    }
    g.setLineDash([]);
  }

  /**
   * Labels keep their size at any zoom. One that would cover another is left out.
   * @param {Context} g
   * @param {Picture} p
   * @param {Theme} theme
   */
  labels(g, p, theme) {
    /** @type {LabelPlace[]} */
    const placed = [];
    g.textBaseline = "middle";
    for (const place of this.labelsInSight(g, p)) {
      const { left, right, y } = place;
      const under = placed.some((b) => {
        const wide = Math.min(b.right, right) - Math.max(b.left, left);
        return wide > 2 * PADDING - 2 && Math.abs(b.y - y) < 11;
      });
      if (!under) placed.push(place);
    }
    for (const { label, text, font, y, left, right } of placed) {
      g.font = font;
      if (!this.fitted) {
        g.fillStyle = theme.paper;
        g.fillRect(left, y - 8, right - left, 16);
      }
      g.fillStyle = label.role === "title" ? theme.text : theme.muted;
      g.textAlign = "left";
      g.fillText(text, left + PADDING, y);
    }
  }

  /**
   * Where the labels stand that are in sight. In a zoomed picture those above, below and left of the
   * tiles stay at the edge; and where one looks at tiles between two of them, the nearer one does.
   * @param {Context} g
   * @param {Picture} p
   */
  labelsInSight(g, p) {
    const box = contentOf(p);
    const places = thinned(placesOf(g, p, this.scale, this.size.w), box);
    const [high, low] = outermost(places, box, this.scale);
    /** @type {LabelPlace[]} */
    const seen = [];
    /** @type {Map<string, {place: LabelPlace, away: number}>} */
    const nearest = new Map();
    const sides = new Set();
    for (const { label, text, font, left: from, right: to, y: row } of places) {
      const side = this.fitted ? "" : sideOf(label, box);
      let y = row + this.oy;
      let start = from + this.ox;
      // Rows on one side stay below each other.
      if (side === "above") y = Math.max(y, 8 + row - high);
      if (side === "below") y = Math.min(y, this.size.h - 8 + row - low);
      if (side === "left") start = Math.max(start, 3);
      const width = to - from;
      const kept = label.role === "note" ? clamp(start, 3, this.size.w - width - 3) : start;
      const place = { label, text, font, y, left: kept - PADDING, right: kept + width + PADDING };
      const away = awayFrom(place, this.size);
      if (!away) {
        seen.push(place);
        sides.add(side);
      } else if (side && label.role !== "tick") {
        const known = nearest.get(side);
        if (!known || away < known.away) nearest.set(side, { place, away });
      }
    }
    const moved = [...nearest].filter(([side]) => !sides.has(side));
    return [...seen, ...moved.map(([, { place }]) => intoSight(place, this.size))];
  }
}

/** Whether a tile of this size shows all of its text. @param {number} w @param {number} tall */
export function isLarge(w, tall) {
  return tall >= 40 && w >= 66;
}

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
  return /** @type {Context} */ (canvas.getContext("2d"));
}

/** @param {Context} g @param {Box} box @param {string} colour @param {number} width */
function outline(g, box, colour, width) {
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.strokeRect(box.x, box.y, box.w, box.h);
}

/**
 * @param {Context} g
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {number} width what there is for it
 * @param {CanvasTextAlign} align
 */
function smallText(g, text, x, y, width, align) {
  g.font = `400 11px ${SANS}`;
  const fitted = fitText(g, text, width);
  g.textAlign = align;
  if (fitted) g.fillText(fitted, x, y);
}

/**
 * The text, or as much of a long one as fits with an ellipsis, or nothing.
 * @param {Context} g
 * @param {string} text
 * @param {number} width
 */
function fitText(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  const letter = g.measureText("0").width;
  const fits = Math.floor(width / letter) - 1;
  return fits >= 12 ? `${text.slice(0, fits)}…` : "";
}

/** The rows of labels farthest above and below the tiles. @param {LabelPlace[]} places @param {import("./label_places.js").ContentBox} box @param {number} scale */
function outermost(places, box, scale) {
  let [high, low] = [box.top * scale, box.bottom * scale];
  for (const { y } of places) {
    high = Math.min(high, y);
    low = Math.max(low, y);
  }
  return [high, low];
}

/** @param {Label} label @param {import("./label_places.js").ContentBox} box */
function sideOf(label, { left, top, bottom }) {
  if (label.y < top) return "above";
  if (label.y > bottom) return "below";
  return label.x <= left ? "left" : "";
}

/** How far a label is out of sight; 0 where some of it is not. @param {LabelPlace} place @param {{w: number, h: number}} size */
function awayFrom({ left, right, y }, size) {
  return Math.max(-right, left - size.w, -y, y - size.h, 0);
}

/** @param {LabelPlace} place @param {{w: number, h: number}} size @returns {LabelPlace} */
function intoSight(place, size) {
  const { left, right, y } = place;
  const to = clamp(left, 0, size.w - (right - left));
  return { ...place, left: to, right: to + right - left, y: clamp(y, 8, size.h - 8) };
}

/** @param {number} value @param {number} least @param {number} most */
export function clamp(value, least, most) {
  return Math.max(least, Math.min(value, most));
}
