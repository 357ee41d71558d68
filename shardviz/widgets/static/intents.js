// @ts-check
// Sends what the person does to the kernel. While one message is under way only the newest text of
// each field is kept, so that typing never queues up.

/** @typedef {import("./messages").Intent} Intent */

const ANSWER_MS = 4000; // a kernel that is busy with a cell answers late

export class IntentQueue {
  /** @param {import("./messages").Model} model */
  constructor(model) {
    this.model = model;
    // Several views may share one model: each waits for the answers to its own intents.
    this.client = Math.random().toString(36).slice(2);
    this.sent = 0;
    this.answered = 0;
    /** @type {Map<string, Intent>} */ this.waiting = new Map();
  }

  /** @param {Intent} intent */
  send(intent) {
    const key = intent.kind === "edit" ? `${intent.field}:${intent.array ?? ""}` : intent.kind;
    this.waiting.delete(key);
    this.waiting.set(key, intent);
    this.flush();
  }

  /**
   * Takes note of the answer in a view; whether everything that was sent is answered.
   * @param {import("./view_data.js").View} view
   */
  receive(view) {
    if (view.client === this.client) this.answered = Math.max(this.answered, view.seq);
    return !this.pending && !this.waiting.size;
  }

  /** Whether a message is under way. */
  get pending() {
    return this.sent > this.answered;
  }

  flush() {
    if (this.pending || !this.waiting.size) return;
    const intents = [...this.waiting.values()];
    this.waiting.clear();
    const seq = ++this.sent;
    this.model.send?.({ client: this.client, seq, intents });
    // An answer that is lost must not lock the page.
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.giveUp(seq), ANSWER_MS);
  }

  /** @param {number} seq */
  giveUp(seq) {
    this.answered = Math.max(this.answered, seq);
    this.flush();
  }
}
