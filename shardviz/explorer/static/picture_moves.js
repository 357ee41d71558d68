// @ts-check
// Finds the previous tile of each tile, to animate changes. A device stays the same device in any
// picture. A block moves from the previous block of the first device that holds it.

/** @typedef {import("./picture_data.js").Picture} Picture */
/**
 * The previous state: the array's name, picture and block of each device, the picture of the
 * devices, and the mesh position of each of its tiles.
 * @typedef {{array: string, picture: Picture | null | undefined, groups: Int32Array | null, devices: Picture,
 *   positions: Int32Array}} Before
 */

const MOST_TILES = 4096; // larger pictures are not animated
const MOST_DEVICES = 65536; // searched for the first that holds a block

/** Maps the content of each tile to its index. @param {ArrayLike<number>} shown */
function tilesBy(shown) {
  /** @type {Map<number, number>} */
  const tiles = new Map();
  for (let i = shown.length - 1; i >= 0; i--) tiles.set(shown[i], i);
  return tiles;
}

/** @param {Before} before @param {Int32Array} positions of the devices now */
export function devicesBefore(before, positions) {
  if (positions.length > MOST_TILES || before.positions.length > MOST_TILES) return undefined;
  const tiles = tilesBy(before.positions);
  return (/** @type {number} */ tile) => tiles.get(positions[tile]) ?? -1;
}

/**
 * @param {Before} before
 * @param {Picture} picture of the array now
 * @param {Int32Array | null} groups the blocks now, by device
 */
export function blocksBefore(before, picture, groups) {
  const { picture: old, groups: oldGroups } = before;
  if (!old || !oldGroups || !groups || groups.length > MOST_DEVICES) return undefined;
  if (picture.x.length > MOST_TILES || old.x.length > MOST_TILES) return undefined;
  const [tiles, holders] = [tilesBy(old.group), tilesBy(groups)];
  return (/** @type {number} */ tile) => {
    const holder = holders.get(picture.group[tile]) ?? -1;
    return tiles.get(oldGroups[holder]) ?? -1;
  };
}
