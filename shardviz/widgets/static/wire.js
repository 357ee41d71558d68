// @ts-check
// Reads a Picture off the wire: `shardviz/picture/wire.py` has the format. What it says is held
// against Python, tile by tile, in `tests/picture/test_wire.py`.

/**
 * @param {{wire: any, buffers: DataView[]}} packed
 * @returns {import("./canvas.js").Picture}
 */
export function readPicture({ wire, buffers }) {
  const tiles = openTiles(wire.tiles, buffers),
    n = tiles.count;
  return {
    ...wire,
    count: wire.groups,
    tiles,
    x: spread(wire.tiles.x, buffers, n, Float32Array),
    y: spread(wire.tiles.y, buffers, n, Float32Array),
    w: spread(wire.tiles.width, buffers, n, Float32Array),
    h: spread(wire.tiles.height, buffers, n, Float32Array),
    group: spread(wire.tiles.group, buffers, n, Int32Array),
    device: spread(wire.tiles.device, buffers, n, Float64Array),
    edges: readEdges(wire.edges, buffers),
    label: (/** @type {number} */ i) => worded(wire.tiles.text, tiles, i),
    hint: (/** @type {number} */ i) => worded(wire.tiles.hint, tiles, i),
  };
}

/**
 * The strokes under the tiles, or null.
 * @param {any} edges
 * @param {DataView[]} buffers
 */
export function readEdges(edges, buffers) {
  if (!edges) return null;
  const read = (/** @type {string} */ name) =>
    spread(edges[name], buffers, edges.count, Float32Array);
  return {
    count: edges.count,
    x0: read("x0"),
    y0: read("y0"),
    x1: read("x1"),
    y1: read("y1"),
    width: read("width"),
    group: spread(edges.group, buffers, edges.count, Int32Array),
  };
}

/**
 * A column as one typed array: what is painted often must not cost a call a tile.
 * @param {any} column
 * @param {DataView[]} buffers
 * @param {number} n
 * @param {any} Kind
 */
function spread(column, buffers, n, Kind) {
  if ("value" in column) return new Kind(n).fill(column.value);
  if (!("step" in column) && Kind.name.toLowerCase().startsWith(column.dtype))
    return new Kind(bytes(buffers[column.buffer]));
  const read = reader(column, buffers),
    out = new Kind(n);
  for (let i = 0; i < n; i++) out[i] = read(i);
  return out;
}

/**
 * Whole numbers; none at all stand for 0, 1, 2, …
 * @param {DataView} view
 * @param {number} size
 * @returns {Int32Array}
 */
export function readNumbers(view, size) {
  return view.byteLength
    ? new Int32Array(bytes(view))
    : Int32Array.from({ length: size }, (_, i) => i);
}

/**
 * A copy, because a view may start where no number may.
 * @param {DataView} view
 */
function bytes(view) {
  return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
}

/**
 * One number a tile: a function of the tile's index.
 * @param {any} column
 * @param {DataView[]} buffers
 * @returns {(i: number) => number}
 */
export function reader(column, buffers) {
  if ("value" in column) return () => column.value;
  if ("step" in column) return (i) => column.start + column.step * i;
  const view = buffers[column.buffer];
  if (column.dtype === "float32") return (i) => view.getFloat32(4 * i, true);
  if (column.dtype === "int32") return (i) => view.getInt32(4 * i, true);
  return (i) => view.getFloat64(8 * i, true);
}

/**
 * The tiles with every column as a function.
 * @param {any} tiles
 * @param {DataView[]} buffers
 */
export function openTiles(tiles, buffers) {
  const get = (/** @type {any} */ c) => (c === null ? null : reader(c, buffers));
  const columns = Object.fromEntries(
    Object.entries(tiles.columns).map(([name, c]) => [name, get(c)]),
  );
  const fixed = Object.fromEntries(
    ["x", "y", "width", "height", "group", "device", "offsets", "holders"].map((name) => [
      name,
      get(tiles[name]),
    ]),
  );
  return { ...tiles, ...fixed, columns: { ...columns, group: fixed.group, device: fixed.device } };
}

/**
 * The device ids that tile `i` stands for.
 * @param {any} tiles
 * @param {number} i
 */
export function devicesOf(tiles, i) {
  if (!tiles.offsets) return tiles.device(i) < 0 ? [] : [tiles.device(i)];
  const ids = [];
  for (let k = tiles.offsets(i); k < tiles.offsets(i + 1); k++) ids.push(tiles.holders(k));
  return ids;
}

/**
 * The devices of the other tiles of the group of tile `i`.
 * @param {any} tiles
 * @param {number} i
 */
function peersOf(tiles, i) {
  const group = tiles.group(i),
    ids = [];
  for (let k = 0; k < tiles.count; k++)
    if (k !== i && tiles.group(k) === group) ids.push(tiles.device(k));
  return ids;
}

/**
 * A template, filled for tile `i`.
 * @param {any[]} template
 * @param {any} tiles
 * @param {number} i
 */
export function worded(template, tiles, i) {
  return template
    .map((part) => {
      if (typeof part === "string") return part;
      if (part.of === "devices") return idsText(devicesOf(tiles, i), part.limit ?? 0);
      if (part.of === "peers") return idsText(peersOf(tiles, i), part.limit ?? 0);
      let n = part.of === "index" ? i : tiles.columns[part.of](i);
      n = Math.floor(n / (part.divide ?? 1));
      if (part.modulo) n %= part.modulo;
      n = n * (part.times ?? 1) + (part.plus ?? 0);
      return part.words ? part.words[n] : String(n);
    })
    .join("");
}

/**
 * `ids_text` of shardviz/picture/ids.py.
 * @param {number[]} ids
 * @param {number} limit
 */
export function idsText(ids, limit = 0) {
  if (!ids.length) return "no device";
  if (limit && ids.length <= limit) {
    const spread = ids.join(" · ");
    if (spread.length <= limit) return spread;
  }
  const short = folded(ids);
  return limit && short.length > limit ? `${ids.length.toLocaleString("en-US")} devices` : short;
}

/** @param {number[]} ids */
function folded(ids) {
  const consecutive = ids.length > 2 && ids.every((v, i) => v === ids[0] + i);
  if (ids.length <= 4 && !consecutive) return ids.join(", ");
  const levels = nestLevels(ids);
  return levels ? nested(ids[0], levels) : stretches(ids).join(", ");
}

/** @param {number[]} ids @returns {number[][] | null} */
function nestLevels(ids) {
  const levels = [];
  while (ids.length > 1) {
    const step = ids[1] - ids[0];
    let count = 2;
    while (count < ids.length && ids[count] - ids[count - 1] === step) count++;
    if (ids.length % count) return null;
    for (let i = 0; i < ids.length; i++)
      if (ids[i] - ids[i - (i % count)] !== (i % count) * step) return null;
    levels.push([count, step]);
    ids = ids.filter((_, i) => i % count === 0);
  }
  return levels;
}

/**
 * @param {number} first
 * @param {number[][]} levels
 * @returns {string}
 */
function nested(first, levels) {
  if (!levels.length) return String(first);
  const inner = levels.slice(0, -1),
    [count, step] = levels[levels.length - 1];
  if (!inner.length) return stretch(first, count, step);
  const shown = count <= 3 ? [...Array(count).keys()] : [0, 1, count - 1];
  let items = shown.map((i) => nested(first + i * step, inner));
  const pair = count > 3 && inner[0][0] === 2 && Math.abs(inner[0][1]) !== 1;
  if (inner.length > 1 || pair) items = items.map((item) => `(${item})`);
  return count <= 3 ? items.join(", ") : `${items[0]}, ${items[1]} … ${items[2]}`;
}

/**
 * @param {number} first
 * @param {number} count
 * @param {number} step
 */
function stretch(first, count, step) {
  const last = first + (count - 1) * step;
  if (count === 1) return String(first);
  if (count === 2 && step !== 1) return `${first}, ${last}`;
  return `${first}–${last}` + (step === 1 ? "" : ` step ${step}`);
}

/** @param {number[]} ids */
function stretches(ids) {
  const parts = [];
  for (let at = 0; at < ids.length; ) {
    let end = at + 1;
    const step = end < ids.length ? ids[end] - ids[at] : 0;
    while (end < ids.length && ids[end] - ids[end - 1] === step) end++;
    const count = end - at < 3 ? 1 : end - at;
    parts.push(stretch(ids[at], count, step));
    at += count;
  }
  return parts;
}
