// @ts-check
// Computes the chunks on every device after each step of a collective, and their slots.

/**
 * Key of a collective (stage and index) -> its requested steps.
 * @typedef {Record<string, Played>} Movements
 */

/**
 * @typedef {object} Played
 * @property {MovementData | null} data
 * @property {string} error Why there are no steps.
 */

/**
 * @typedef {object} MovementData
 * @property {string} kind
 * @property {string[]} title The text before and after the names of the mesh axes.
 * @property {[name: string, number: number][]} axes The mesh axes of the collective, with their
 *   indices in the mesh.
 * @property {string} facts
 * @property {string} before The text shown before the first step.
 * @property {string[]} lines Text instead of a drawing, if the replica group is too large to draw;
 *   the properties below are then missing.
 * @property {number[]} devices
 * @property {number[]} hosts
 * @property {[column: number, row: number][]} cells The position of each device in the drawing.
 * @property {string[]} chunks The name of each chunk.
 * @property {number} contributors
 * @property {number[][] | null} start The chunks on each device at the start; null if every device
 *   has all chunks.
 * @property {MovementStep[]} steps
 */

/**
 * @typedef {object} MovementStep
 * @property {string} words
 * @property {string} sent Text with the bytes sent in this step and in all steps so far.
 * @property {number} axis The index of the mesh axis along which the step sends; -1 for several
 *   axes.
 * @property {boolean} adds
 * @property {boolean} keeps
 * @property {Send[]} sends
 */

/**
 * The chunks that one device sends to another; `network` is 1 between hosts or slices.
 * @typedef {[source: number, target: number, network: number, chunks: number[]]} Send
 */

/**
 * A chunk on a device: its slot in the device's box, and one bit for each device whose contribution
 * the chunk contains.
 * @typedef {{slot: number, bits: number}} Held
 * @typedef {Map<number, Held>[]} State for each device: chunk -> its slot and bits
 */

export class MovementSteps {
  /** @param {MovementData} data */
  constructor(data) {
    this.data = data;
    this.sums = data.contributors > 1;
    /** True if a chunk has the same slot on every device. */
    this.fixed = ["all-gather", "reduce-scatter", "all-reduce"].includes(data.kind);
    this.states = this.everyState();
    const slots = this.states.flatMap((state) =>
      state.flatMap((chunks) => [...chunks.values()].map(({ slot }) => slot + 1)),
    );
    this.slots = this.fixed ? data.chunks.length : Math.max(1, ...slots);
    this.owners = this.everyOwner();
  }

  everyState() {
    const { data } = this;
    const all = data.chunks.map((_, chunk) => chunk);
    /** @type {State} */
    let state = data.devices.map((_, device) => {
      const bits = this.sums ? 1 << device : 1;
      const start = data.start?.[device] ?? all;
      return new Map(start.map((chunk, i) => [chunk, { slot: this.fixed ? chunk : i, bits }]));
    });
    return [state, ...data.steps.map((_, i) => (state = this.after(state, i)))];
  }

  /** Returns the state of every device after a step. @param {State} before @param {number} number @returns {State} */
  after(before, number) {
    const { adds, keeps, sends } = this.data.steps[number];
    const state = before.map((chunks) => new Map(chunks));
    for (const [source, , , chunks] of keeps ? [] : sends) {
      for (const chunk of chunks) state[source].delete(chunk);
    }
    for (const [source, target, , chunks] of sends) {
      for (const chunk of chunks) {
        const present = state[target].get(chunk);
        const bits = (before[source].get(chunk)?.bits ?? 0) | (adds ? (present?.bits ?? 0) : 0);
        const slot = this.fixed ? chunk : (present?.slot ?? freeSlot(state[target]));
        state[target].set(chunk, { slot, bits });
      }
    }
    return state;
  }

  /** Returns the device that gives each chunk its colour: the first holder at the start, or in a
   * sum the device with the chunk's index. */
  everyOwner() {
    const { chunks, start, devices } = this.data;
    return chunks.map((_, chunk) => {
      if (!start) return Math.floor((chunk * devices.length) / chunks.length);
      return start.findIndex((ownChunks) => ownChunks.includes(chunk));
    });
  }

  /** Describes the chunks on a device, for screen readers. @param {number} step @param {number} device */
  holdsText(step, device) {
    const { chunks, contributors, devices } = this.data;
    const ownChunks = [...this.states[step][device]].sort(([a], [b]) => a - b);
    const words = ownChunks.map(([chunk, { bits }]) => {
      const count = this.sums ? ` ${bitCount(bits)}/${contributors}` : "";
      return `${chunks[chunk]}${count}`;
    });
    return `Device ${devices[device]} has ${words.join(", ") || "nothing"}`;
  }
}

/** @param {Map<number, Held>} chunks */
function freeSlot(chunks) {
  const usedSlots = new Set([...chunks.values()].map(({ slot }) => slot));
  let slot = 0;
  while (usedSlots.has(slot)) slot++;
  return slot;
}

/** @param {number} bits */
export function bitCount(bits) {
  let count = 0;
  for (let remaining = bits; remaining; remaining &= remaining - 1) count++;
  return count;
}
