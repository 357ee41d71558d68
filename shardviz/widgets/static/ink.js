// @ts-check
// Colours. The palettes come from `shardviz/picture/palette.py`; this mixes and caches them.

/** @param {string} hex @returns {[number, number, number]} */
function rgb(hex) {
  return [
    parseInt(hex.slice(1, 3), 16),
    parseInt(hex.slice(3, 5), 16),
    parseInt(hex.slice(5, 7), 16),
  ];
}

/**
 * @param {string} a
 * @param {string} b
 * @param {number} share of a
 */
export function mix(a, b, share) {
  const x = rgb(a),
    y = rgb(b);
  return (
    "#" +
    x
      .map((v, i) =>
        Math.round(v * share + y[i] * (1 - share))
          .toString(16)
          .padStart(2, "0"),
      )
      .join("")
  );
}

/**
 * Relative luminance, as WCAG defines it.
 * @param {string} hex
 */
function luminance(hex) {
  const [r, g, b] = rgb(hex).map((v) => {
    const c = v / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * Black or white, whichever reads better on a colour.
 * @param {string} hex
 */
export function inkOn(hex) {
  return luminance(hex) > 0.18 ? "#14161d" : "#ffffff";
}

/** @type {Map<string, any>} */
const cache = new Map();

/**
 * The colours of groups: as many hues as can be told apart, beyond that a ramp for order.
 * @param {ArrayLike<number>} _groups @param {number} count @param {string} hue @param {any} theme
 */
export function tileColours(_groups, count, hue, theme) {
  const key = `${theme.name}|${hue}|${count}`;
  const known = cache.get(key);
  if (known) return known;
  const { groups, ramp, paper } = theme,
    many = count > groups.length;
  const base = (/** @type {number} */ i) => {
    if (i < 0) return theme.muted;
    if (hue.startsWith("#")) return hue;
    if (!many) return groups[i % groups.length];
    return ramp[Math.round((i / Math.max(1, count - 1)) * (ramp.length - 1))];
  };
  const dark = theme.name === "dark";
  const make = (/** @type {number} */ share) => memo((i) => mix(base(i), paper, share));
  const soft = make(dark ? (many ? 0.7 : 0.26) : many ? 0.85 : 0.22),
    mid = make(many ? 0.9 : dark ? 0.6 : 0.55),
    line = make(dark ? 0.5 : 0.5),
    strong = memo(base);
  const found = {
    many,
    soft,
    mid,
    line: many ? soft : line,
    strong,
    ink: memo((i) => inkOn(soft(i))),
    inkMid: memo((i) => inkOn(mid(i))),
  };
  if (cache.size > 200) cache.clear();
  cache.set(key, found);
  return found;
}

/** @param {(i: number) => string} f */
function memo(f) {
  /** @type {Map<number, string>} */
  const known = new Map();
  return (/** @type {number} */ i) => {
    let value = known.get(i);
    if (value === undefined) known.set(i, (value = f(i)));
    return value;
  };
}
