// @ts-check
// Sends the user's actions to the kernel. Typed text is sent after a pause, because half-written
// text means something else. While a message is in flight, only the newest text of each field is
// kept, so typing never queues up; every click of a button is sent.

/** @import { Intent } from "./messages" */

const PAUSE_MS = 400; // longer than the pause between two keys, but short to wait for
const ANSWER_MS = 4000; // a kernel that runs a cell answers late
const MOST_INTENTS = 100; // the kernel's limit per message
/** Edits that depend on the previous state, so their order matters. */
const COMMANDS = [
  ...["add", "remove", "split", "axis", "size", "remove_axis", "move_axis"],
  ...["fit", "preset", "tidy", "move"],
];

export class IntentQueue {
  /**
   * @param {import("./messages").Model} model
   * @param {() => void} gaveUp called when it stops waiting for an answer
   */
  constructor(model, gaveUp) {
    this.model = model;
    this.whenGivenUp = gaveUp;
    // Several views can share one model; each waits for the answers to its own intents.
    this.client = Math.random().toString(36).slice(2);
    this.sent = 0;
    this.answered = 0;
    /** @type {Intent[]} */ this.waiting = [];
    /** The text that is being typed. @type {Intent | null} */
    this.typed = null;
  }

  /** Sends a typed text after a pause, or before the next edit. @param {Intent} intent */
  hold(intent) {
    if (this.typed && keyOf(this.typed) !== keyOf(intent)) this.commit();
    this.typed = intent;
    window.clearTimeout(this.pause);
    this.pause = window.setTimeout(() => this.commit(), PAUSE_MS);
  }

  /** Sends the typed text, after a pause, on Enter, or when the field is left. */
  commit() {
    window.clearTimeout(this.pause);
    const { typed: held } = this;
    this.typed = null;
    if (held) this.enqueue(held);
  }

  /** @param {Intent} intent */
  send(intent) {
    // Requests of the page need not wait for typed text; only edits must follow it.
    if (intent.kind === "edit" || isCommand(intent)) this.commit();
    this.enqueue(intent);
  }

  /** @param {Intent} intent */
  enqueue(intent) {
    const at = this.replaceable(intent);
    if (at >= 0) this.waiting.splice(at, 1);
    this.waiting.push(intent);
    this.flush();
  }

  /**
   * The index of an older text of the same field with no command after it, or -1.
   * @param {Intent} intent
   */
  replaceable(intent) {
    if (isCommand(intent)) return -1;
    const command = this.waiting.map(isCommand).lastIndexOf(true);
    const at = this.waiting.map(keyOf).lastIndexOf(keyOf(intent));
    return at > command ? at : -1;
  }

  /**
   * Records the answer in a view; returns true if everything sent has been answered.
   * @param {import("./messages").Answer} view
   */
  receive(view) {
    if (view.client === this.client) this.answered = Math.max(this.answered, view.seq);
    return !this.pending && !this.waiting.length && !this.typed;
  }

  /** True while a message is in flight. */
  get pending() {
    return this.sent > this.answered;
  }

  flush() {
    if (this.pending || !this.waiting.length) return;
    const intents = this.waiting.splice(0, MOST_INTENTS);
    const seq = ++this.sent;
    this.model.send?.({ client: this.client, seq, intents });
    // A lost answer must not lock the page.
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.giveUp(seq), ANSWER_MS);
  }

  /** @param {number} seq */
  giveUp(seq) {
    if (this.answered >= seq) return;
    this.answered = seq;
    this.flush();
    this.whenGivenUp();
  }

  /** Stops waiting because the page is gone. */
  stop() {
    window.clearTimeout(this.timer);
    window.clearTimeout(this.pause);
  }
}

/** @param {Intent} intent */
function isCommand(intent) {
  if (["undo", "redo", "apply"].includes(intent.kind)) return true;
  return intent.kind === "edit" && COMMANDS.includes(intent.field);
}

/** The field that an intent edits. @param {Intent} intent */
function keyOf(intent) {
  return intent.kind === "edit" ? `${intent.field}:${intent.array ?? ""}` : intent.kind;
}
