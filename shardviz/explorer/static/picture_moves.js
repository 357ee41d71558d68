// @ts-check
// Which tile of the picture before each tile was, so that one sees what moved: a device is the same
// device in any picture, and a block was where the first device that holds it had its block.

/** @typedef {import("./picture_data.js").Picture} Picture */
/**
 * What was shown: the array's name, picture and blocks by device, the picture of the devices, and
 * the position in mesh order of each of its tiles.
 * @typedef {{array: string, picture: Picture | null | undefined, groups: Int32Array | null, devices: Picture,
 *   positions: Int32Array}} Before
 */

const MOST_TILES = 4096; // beyond, nothing moves
const MOST_DEVICES = 65536; // to look through for the first that holds a block

/** By what they show, the numbers of tiles. @param {ArrayLike<number>} shown */
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
