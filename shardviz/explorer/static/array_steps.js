// @ts-check
// Menus for the dimensions shown as rows and columns, and for the blocks of other dimensions.
import { Choice } from "./controls.js";
import { fill, h, isNew } from "./dom.js";

/** @typedef {import("./view_data.js").ArrayView} ArrayView */
/** @typedef {import("./messages").ArrayFacts} ArrayFacts */

const MOST_CHOICES = 1024; // blocks in a menu

export class ArraySteps {
  /** @param {import("./explorer.js").Requests} page */
  constructor(page) {
    this.page = page;
    this.key = "";
    this.node = h("div", { class: "sv-steps", role: "group", "aria-label": "Shown dimensions" });
  }

  /** @param {ArrayView | undefined} array @param {ArrayFacts | undefined} facts */
  show(array, facts) {
    const { counts, shard } = array?.pictured ?? array ?? {};
    if (!isNew(this, [array?.names, counts, shard, facts])) return;
    const two = array && counts && shard && facts && facts.dims.length === 2;
    fill(this.node, ...(two ? this.controls(dimensionsOf(array, counts, shard), facts) : []));
  }

  /** @param {Dimension[]} dimensions @param {ArrayFacts} facts */
  controls(dimensions, { dims, steps }) {
    const options = dimensions.map(({ name }, dim) => ({ value: String(dim), label: name }));
    const [rows, columns] = ["rows", "columns"].map((word, side) => {
      const choose = (/** @type {string} */ value) => {
        const chosen = Number(value);
        // If the chosen dimension is already on the other side, swap rows and columns.
        const paired = dims[1 - side] === chosen ? dims[side] : dims[1 - side];
        this.page.edit("dims", side ? [paired, chosen] : [chosen, paired]);
      };
      const choice = new Choice(word[0].toUpperCase() + word.slice(1), choose, word);
      choice.sync(options, String(dims[side]));
      return choice.node;
    });
    const hidden = [...dimensions.keys()].filter((dim) => !dims.includes(dim));
    const selects = hidden.map((dim) => {
      const step = steps.find((candidate) => candidate.dim === dim);
      return step ? this.blocks(dimensions, hidden, steps, step) : all(dimensions[dim]);
    });
    return [rows, columns, ...selects];
  }

  /**
   * A menu of the blocks of one dimension: all blocks, or one of them.
   * @param {Dimension[]} dimensions
   * @param {number[]} hidden the dimensions that are neither rows nor columns
   * @param {import("./messages").ArrayStep[]} steps
   * @param {import("./messages").ArrayStep} step
   */
  blocks(dimensions, hidden, steps, { dim, count, at }) {
    const { name, size, shard } = dimensions[dim];
    const options = [{ value: "", label: `all ${size}` }];
    for (let block = 0; block < Math.min(count, MOST_CHOICES); block++) {
      const label = `${block * shard}–${(block + 1) * shard - 1}`;
      options.push({ value: String(block), label: shard === 1 ? String(block) : label });
    }
    const choose = (/** @type {string} */ value) => {
      const shown = hidden.map(
        (hiddenDim) => steps.find((candidate) => candidate.dim === hiddenDim)?.at ?? 0,
      );
      shown[hidden.indexOf(dim)] = Number(value);
      this.page.edit("at", value ? shown : null);
    };
    const choice = new Choice(`Blocks of ${name}`, choose, name);
    choice.sync(options, at === null ? "" : String(at));
    return choice.node;
  }
}

/** @typedef {{name: string, size: number, shard: number}} Dimension */

/** @param {Dimension} dimension that is not split */
const all = ({ name, size }) => h("span", { text: `${name}: all ${size}` });

/**
 * The dimensions of an array, with their names (or numbers if unnamed).
 * @param {ArrayView} array
 * @param {number[]} counts
 * @param {number[]} shard
 * @returns {Dimension[]}
 */
function dimensionsOf({ names }, counts, shard) {
  return counts.map((count, dim) => ({
    name: names[dim] ?? `dim ${dim}`,
    size: count * shard[dim],
    shard: shard[dim],
  }));
}
