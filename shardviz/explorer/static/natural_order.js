// @ts-check
// Sorts names by the numbers in them; JAX sorts dict keys as text: layers 0, 1, 10, 2.

/**
 * Returns the order in which to show names. Names that differ only in numbers are sorted by number,
 * within the positions that they occupied before; all other names keep their positions.
 * @param {string[]} names
 * @returns {number[]} the indices of the names
 */
export function naturalOrder(names) {
  /** @type {Map<string, number[]>} */
  const alike = new Map();
  names.forEach((name, i) => {
    const words = name.replace(/\d+/g, "#");
    const group = alike.get(words);
    if (group) group.push(i);
    else alike.set(words, [i]);
  });
  const order = names.map((_, i) => i);
  for (const places of alike.values()) {
    const sorted = [...places].sort((a, b) => countedBefore(names[a], names[b]));
    places.forEach((place, i) => (order[place] = sorted[i]));
  }
  return order;
}

/** Compares two names by the numbers in them; negative if `first` comes before `second`. @param {string} first @param {string} second */
export function countedBefore(first, second) {
  return first.localeCompare(second, "en", { numeric: true });
}
