// Reads the wire form of a Picture (see shardviz/picture/wire.py) as a painter in a browser would,
// and prints what it finds as JSON. `node wire_reader.mjs FILE`, FILE being {"wire", "buffers"} with
// the buffers in base64.
// @ts-check

/** One number a tile: a function of the tile's index.
 * @param {any} column @param {DataView[]} buffers @returns {(i: number) => number} */
export function reader(column, buffers) {
  if ("value" in column) return () => column.value;
  if ("step" in column) return (i) => column.start + column.step * i;
  const view = buffers[column.buffer];
  if (column.dtype === "float32") return (i) => view.getFloat32(4 * i, true);
  if (column.dtype === "int32") return (i) => view.getInt32(4 * i, true);
  return (i) => view.getFloat64(8 * i, true);
}

/** The tiles with every column as a function.
 * @param {any} tiles @param {DataView[]} buffers */
export function open(tiles, buffers) {
  const get = (/** @type {any} */ c) => (c === null ? null : reader(c, buffers));
  const columns = Object.fromEntries(
    Object.entries(tiles.columns).map(([name, c]) => [name, get(c)]));
  const fixed = Object.fromEntries(
    ["x", "y", "width", "height", "group", "device", "offsets", "holders"]
      .map((name) => [name, get(tiles[name])]));
  return { ...tiles, ...fixed, columns: { ...columns, group: fixed.group, device: fixed.device } };
}

/** The device ids that tile `i` stands for. @param {any} tiles @param {number} i */
export function devicesOf(tiles, i) {
  if (!tiles.offsets) return tiles.device(i) < 0 ? [] : [tiles.device(i)];
  const ids = [];
  for (let k = tiles.offsets(i); k < tiles.offsets(i + 1); k++) ids.push(tiles.holders(k));
  return ids;
}

/** The devices of the other tiles of the group of tile `i`. @param {any} tiles @param {number} i */
function peersOf(tiles, i) {
  const group = tiles.group(i), ids = [];
  for (let k = 0; k < tiles.count; k++) if (k !== i && tiles.group(k) === group) ids.push(tiles.device(k));
  return ids;
}

/** A template, filled for tile `i`. @param {any[]} template @param {any} tiles @param {number} i */
export function fill(template, tiles, i) {
  return template.map((part) => {
    if (typeof part === "string") return part;
    if (part.of === "devices") return idsText(devicesOf(tiles, i), part.limit ?? 0);
    if (part.of === "peers") return idsText(peersOf(tiles, i), part.limit ?? 0);
    let n = part.of === "index" ? i : tiles.columns[part.of](i);
    n = Math.floor(n / (part.divide ?? 1));
    if (part.modulo) n %= part.modulo;
    n = n * (part.times ?? 1) + (part.plus ?? 0);
    return part.words ? part.words[n] : String(n);
  }).join("");
}

/** `ids_text` of shardviz/picture/ids.py. @param {number[]} ids @param {number} limit */
export function idsText(ids, limit = 0) {
  if (!ids.length) return "no device";
  if (limit && ids.length <= limit) {
    const spread = ids.join(" · ");
    if (spread.length <= limit) return spread;
  }
  const folded = fold(ids);
  return limit && folded.length > limit ? `${ids.length.toLocaleString("en-US")} devices` : folded;
}

/** @param {number[]} ids */
function fold(ids) {
  const consecutive = ids.length > 2 && ids.every((v, i) => v === ids[0] + i);
  if (ids.length <= 4 && !consecutive) return ids.join(", ");
  const levels = nest(ids);
  return levels ? nested(ids[0], levels) : runs(ids).join(", ");
}

/** @param {number[]} ids @returns {number[][] | null} */
function nest(ids) {
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

/** @param {number} first @param {number[][]} levels @returns {string} */
function nested(first, levels) {
  if (!levels.length) return String(first);
  const inner = levels.slice(0, -1), [count, step] = levels[levels.length - 1];
  if (!inner.length) return run(first, count, step);
  const shown = count <= 3 ? [...Array(count).keys()] : [0, 1, count - 1];
  let items = shown.map((i) => nested(first + i * step, inner));
  const pair = count > 3 && inner[0][0] === 2 && Math.abs(inner[0][1]) !== 1;
  if (inner.length > 1 || pair) items = items.map((item) => `(${item})`);
  return count <= 3 ? items.join(", ") : `${items[0]}, ${items[1]} … ${items[2]}`;
}

/** @param {number} first @param {number} count @param {number} step */
function run(first, count, step) {
  const last = first + (count - 1) * step;
  if (count === 1) return String(first);
  if (count === 2 && step !== 1) return `${first}, ${last}`;
  return `${first}–${last}` + (step === 1 ? "" : ` step ${step}`);
}

/** @param {number[]} ids */
function runs(ids) {
  const parts = [];
  for (let at = 0; at < ids.length; ) {
    let end = at + 1;
    const step = end < ids.length ? ids[end] - ids[at] : 0;
    while (end < ids.length && ids[end] - ids[end - 1] === step) end++;
    const count = end - at < 3 ? 1 : end - at;
    parts.push(run(ids[at], count, step));
    at += count;
  }
  return parts;
}
