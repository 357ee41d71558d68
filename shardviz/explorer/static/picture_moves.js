// @ts-check
// Finds the previous tile of each tile, to animate changes.
// A device tile moves from the previous tile of the same device.
// A block moves from the block that its first device held before.

/** @typedef {import("./picture_data.js").Picture} Picture */
/**
 * The previous state: the array's name and picture, the block of each device (`groups`), the
 * picture of the devices, and the mesh position of each device tile.
 * @typedef {{array: string, picture: Picture | null | undefined, groups: Int32Array | null, devices: Picture,
 *   positions: Int32Array}} Before
 */

const MOST_TILES = 4096; // larger pictures are not animated
const MOST_DEVICES = 65536; // arrays on more devices are not animated

/** Maps the device or block of each tile to the tile's index. @param {ArrayLike<number>} shown */
function tilesBy(shown) {
  /** @type {Map<number, number>} */
  const tiles = new Map();
  for (let i = shown.length - 1; i >= 0; i--) tiles.set(shown[i], i);
  return tiles;
}

/** @param {Before} before @param {Int32Array} positions the mesh position of each device tile now */
export function devicesBefore(before, positions) {
  if (positions.length > MOST_TILES || before.positions.length > MOST_TILES) return undefined;
  const tiles = tilesBy(before.positions);
  return (/** @type {number} */ tile) => tiles.get(positions[tile]) ?? -1;
}

/**
 * @param {Before} before
 * @param {Picture} picture the array's picture now
 * @param {Int32Array | null} groups the block of each device now
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
