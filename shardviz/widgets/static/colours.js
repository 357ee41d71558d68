// @ts-check
// The colours of tiles: mixed from a theme, which `shardviz/picture/palette.py` makes, and cached.

/** @typedef {import("./messages").Palette & {name: "light" | "dark"}} Theme */
/** @typedef {import("./messages").Shades | null | undefined} Shades */
/** @typedef {(group: number) => string} ColourOf */
/**
 * Fills (soft: nothing is pointed at; mid: a related tile is; strong: this tile is), outlines, and
 * the text on soft and mid fills. `shade` numbers the colours, from -2: many groups have few.
 * @typedef {{many: boolean, shade: (group: number) => number, soft: ColourOf, mid: ColourOf, strong: ColourOf, line: ColourOf,
 *   text: ColourOf, textMid: ColourOf}} TileColours
 */

/** How much of a group's colour is in a tile: with few groups, and with many, on a ramp. */
const SHARES = {
  light: { soft: 0.22, mid: 0.55, line: 0.5, softRamp: 0.85, midRamp: 0.9 },
  dark: { soft: 0.26, mid: 0.6, line: 0.5, softRamp: 0.7, midRamp: 0.9 },
};
const READABLE = 4.5; // the contrast that WCAG 2 asks of text
const MOST_CACHED = 200;
const SEVERAL = -2; // the group of a tile that is of several
const RAMP_STEPS = 256; // as `palette.py` has it: more blocks than these have a ramp
const DEEP = 0.75; // how much of a tint is in its outline

const TINTS = 4; // as in `palette.py`; after them stand those of an axis alone
const AXIS_COLOURS = 8; // as in `picture/tables.py`; what comes after them is grey
const PROPERTY = "--sv-group-";

/**
 * The colour of a mesh axis: the same wherever the axis is shown.
 * @param {number} number of the axis in the mesh; grey where it is none
 * @param {Theme} [theme] for a canvas, which does not know the colours of style sheets
 */
export function axisColour(number, theme) {
  if (!(number >= 0)) return theme?.muted ?? "var(--sv-not-split)";
  const at = number % AXIS_COLOURS;
  return theme?.groups[at] ?? `var(${PROPERTY}${at})`;
}

/** @param {string} hex @returns {[number, number, number]} */
function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** @param {string} a @param {string} b @param {number} share of a */
export function mix(a, b, share) {
  const x = rgb(a);
  const y = rgb(b);
  const parts = x.map((v, i) => Math.round(v * share + y[i] * (1 - share)));
  return `#${parts.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
}

/** Relative luminance, as WCAG 2 defines it. @param {string} hex */
function luminance(hex) {
  const [r, g, b] = rgb(hex).map((v) => {
    const c = v / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The WCAG 2 contrast ratio of two colours, 1 to 21. @param {string} a @param {string} b */
function contrast(a, b) {
  const [x, y] = [luminance(a) + 0.05, luminance(b) + 0.05];
  return Math.max(x, y) / Math.min(x, y);
}

/**
 * The colour of text on a fill, as `text_colours` of palette.py chooses it: the theme's own where it can
 * be read, else black or white.
 * @param {string} fill
 * @param {Theme} theme
 */
export function textOn(fill, theme) {
  for (const own of [theme.text, theme.paper]) if (contrast(own, fill) >= READABLE) return own;
  return luminance(fill) > 0.179 ? "black" : "white";
}

/** @type {Map<string, TileColours>} */
const cache = new Map();

/**
 * The colours of groups: tints of the mesh axes for the blocks of an array; else ten that can be
 * distinguished, and beyond that a ramp for order.
 * @param {number} count how many groups there are
 * @param {string} colormap a Picture's `colormap`
 * @param {Theme} theme
 * @param {Shades} [shades] what each mesh axis does to the colours of blocks
 * @returns {TileColours}
 */
export function tileColours(count, colormap, theme, shades) {
  const key = `${theme.name}|${colormap}|${count}|${JSON.stringify(shades)}`;
  const known = cache.get(key);
  if (known) return known;
  const { groups, ramp, paper, text } = theme;
  const many = count > (shades ? RAMP_STEPS : groups.length);
  const share = SHARES[theme.name];
  const stops = shades && many ? tintsOf(shades[0][0], theme).slice(0, TINTS) : ramp;
  const steps = shades ? RAMP_STEPS : ramp.length;
  const shade = (/** @type {number} */ group) => {
    if (group < 0) return Math.max(group, SEVERAL);
    if (!many) return shades ? group % count : group % groups.length;
    return Math.floor((group * (steps - 1)) / (count - 1));
  };
  const once = (/** @type {ColourOf} */ make) => cached(make, shade);
  const full = once((group) => {
    // -1 is no group; several stand out from a group that is grey itself.
    if (group < 0) return group === -1 ? theme.muted : theme.text;
    if (many) return between(stops, shade(group) / (steps - 1));
    return shades ? blockColour(group, count, shades, theme) : groups[shade(group)];
  });
  const mixed = (/** @type {number} */ part) => once((group) => mix(full(group), paper, part));
  const deep = once((group) => mix(full(group), text, DEEP));
  const soft = shades ? full : mixed(many ? share.softRamp : share.soft);
  const mid = shades ? full : mixed(many ? share.midRamp : share.mid);
  const found = {
    many,
    shade,
    soft,
    mid,
    strong: full,
    line: many ? soft : shades ? deep : mixed(share.line),
    text: once((group) => textOn(soft(group), theme)),
    textMid: once((group) => textOn(mid(group), theme)),
  };
  if (cache.size > MOST_CACHED) cache.clear();
  cache.set(key, found);
  return found;
}

/** The tints of a mesh axis, from pale to full; grey for none. @param {number} axis @param {Theme} theme */
function tintsOf(axis, { tints }) {
  return tints[axis < 0 ? AXIS_COLOURS : axis % AXIS_COLOURS];
}

/** As `_block_colours` of palette.py. @param {number} block @param {number} count @param {NonNullable<Shades>} shades @param {Theme} theme */
function blockColour(block, count, shades, theme) {
  let [tint, turn] = [count > 1 && count < TINTS ? 1 : 0, 0];
  shades.forEach(([, size, stride, step], place) => {
    const at = Math.floor(block / stride) % size;
    tint += at * step;
    turn += at * place;
  });
  const tints = tintsOf(shades.length ? shades[turn % shades.length][0] : -1, theme);
  if (shades.length !== 1 || count <= TINTS) return tints[tint % TINTS];
  return tints[TINTS + (tint % (tints.length - TINTS))];
}

/** A colour of the way from the first stop to the last. @param {string[]} stops @param {number} part of the way */
function between(stops, part) {
  const at = part * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return mix(stops[low + 1], stops[low], at - low);
}

/**
 * Groups of one shade have one colour, which is made once.
 * @template Colour
 * @param {(group: number) => Colour} make
 * @param {(group: number) => number} shade
 * @returns {(group: number) => Colour}
 */
function cached(make, shade) {
  /** @type {Colour[]} */
  const known = [];
  return (group) => (known[shade(group) - SEVERAL] ??= make(group));
}

/**
 * The soft colour of a group as a pixel of ImageData.
 * @param {TileColours} colours
 */
export function softPixel({ shade, soft }) {
  return cached((group) => {
    const [red, green, blue] = rgb(soft(group));
    return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
  }, shade);
}
