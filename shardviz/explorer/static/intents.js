// @ts-check
// Sends the user's actions to the kernel.
// Typed text is sent after a pause, because incomplete text may be invalid.
// While a message is in flight, only the newest text of each field is queued.
// Every click of a button is sent.

/** @import { Intent } from "./messages" */

const PAUSE_MS = 400; // longer than the pause between two keystrokes
const ANSWER_MS = 4000; // timeout for an answer; a kernel that runs a cell answers late
const MOST_INTENTS = 100; // limit per message in the kernel
/** Intents whose effect depends on the state before them, so their order matters. */
const COMMANDS = [
  ...["add", "remove", "split", "axis", "size", "remove_axis", "move_axis"],
  ...["fit", "preset", "tidy", "move"],
];

export class IntentQueue {
  /**
   * @param {import("./messages").Model} model
   * @param {() => void} gaveUp called when no answer has come in time
   */
  constructor(model, gaveUp) {
    this.model = model;
    this.whenGivenUp = gaveUp;
    // Several views can share one model; the id identifies answers to this view's intents.
    this.client = Math.random().toString(36).slice(2);
    this.sent = 0;
    this.answered = 0;
    /** @type {Intent[]} */ this.waiting = [];
    /** The edit with the text that the user is typing. @type {Intent | null} */
    this.typed = null;
  }

  /** Holds back typed text until a pause, or until the next edit. @param {Intent} intent */
  hold(intent) {
    if (this.typed && keyOf(this.typed) !== keyOf(intent)) this.commit();
    this.typed = intent;
    window.clearTimeout(this.pause);
    this.pause = window.setTimeout(() => this.commit(), PAUSE_MS);
  }

  /** Sends the held text; called after a pause, on Enter, or when the field loses the focus. */
  commit() {
    window.clearTimeout(this.pause);
    const { typed: held } = this;
    this.typed = null;
    if (held) this.enqueue(held);
  }

  /** @param {Intent} intent */
  send(intent) {
    // Send held text before edits; other requests don't depend on it.
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
   * Returns the index of the queued edit that this intent can replace, or -1. This is older text of
   * the same field, with no command queued after it.
   * @param {Intent} intent
   */
  replaceable(intent) {
    if (isCommand(intent)) return -1;
    const command = this.waiting.map(isCommand).lastIndexOf(true);
    const at = this.waiting.map(keyOf).lastIndexOf(keyOf(intent));
    return at > command ? at : -1;
  }

  /**
   * Records the kernel's answer; returns true if every message has been answered.
   * @param {import("./messages").Answer} view
   */
  receive(view) {
    if (view.client === this.client) this.answered = Math.max(this.answered, view.seq);
    return !this.pending && !this.waiting.length && !this.typed;
  }

  /** Whether a message is in flight. */
  get pending() {
    return this.sent > this.answered;
  }

  flush() {
    if (this.pending || !this.waiting.length) return;
    const intents = this.waiting.splice(0, MOST_INTENTS);
    const seq = ++this.sent;
    this.model.send?.({ client: this.client, seq, intents });
    // A lost answer must not block the page forever.
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

  /** Stops all timers when the page is removed. */
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

/** Returns a key for the field that an intent edits. @param {Intent} intent */
function keyOf(intent) {
  return intent.kind === "edit" ? `${intent.field}:${intent.array ?? ""}` : intent.kind;
}
