// @ts-check
// Sends what the person does to the kernel. What is typed is sent once nobody types any more: a text
// that is half written means something else. While one message is under way only the newest text
// of each field is kept, so that typing never queues up; what buttons do counts every time.

/** @import { Intent } from "./messages" */

const PAUSE_MS = 400; // longer than between two keys, and short enough to wait for
const ANSWER_MS = 4000; // a kernel that is busy with a cell answers late
const MOST_INTENTS = 100; // that the kernel takes in one message
/** Edits that depend on what was there before; so their order counts, too. */
const COMMANDS = [
  ...["add", "remove", "split", "axis", "size", "remove_axis", "move_axis"],
  ...["fit", "preset", "tidy", "move"],
];

export class IntentQueue {
  /**
   * @param {import("./messages").Model} model
   * @param {() => void} given Called when an answer is no longer waited for.
   */
  constructor(model, given) {
    this.model = model;
    this.given = given;
    // Several views may share one model: each waits for the answers to its own intents.
    this.client = Math.random().toString(36).slice(2);
    this.sent = 0;
    this.answered = 0;
    /** @type {Intent[]} */ this.waiting = [];
    /** The text that is being typed. @type {Intent | null} */
    this.held = null;
  }

  /** Sends a typed text after a pause, or before the next edit. @param {Intent} intent */
  hold(intent) {
    if (this.held && keyOf(this.held) !== keyOf(intent)) this.commit();
    this.held = intent;
    window.clearTimeout(this.pause);
    this.pause = window.setTimeout(() => this.commit(), PAUSE_MS);
  }

  /** Sends the text that was typed: a pause, Enter, or another field. */
  commit() {
    window.clearTimeout(this.pause);
    const { held } = this;
    this.held = null;
    if (held) this.enqueue(held);
  }

  /** @param {Intent} intent */
  send(intent) {
    // The page looks at things by itself while somebody types; only edits come after the text.
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
   * Where an older text of the same field waits, with no command after it; or -1.
   * @param {Intent} intent
   */
  replaceable(intent) {
    if (isCommand(intent)) return -1;
    const command = this.waiting.map(isCommand).lastIndexOf(true);
    const at = this.waiting.map(keyOf).lastIndexOf(keyOf(intent));
    return at > command ? at : -1;
  }

  /**
   * Takes note of the answer in a view; whether everything that was sent is answered.
   * @param {import("./messages").Answer} view
   */
  receive(view) {
    if (view.client === this.client) this.answered = Math.max(this.answered, view.seq);
    return !this.pending && !this.waiting.length && !this.held;
  }

  /** Whether a message is under way. */
  get pending() {
    return this.sent > this.answered;
  }

  flush() {
    if (this.pending || !this.waiting.length) return;
    const intents = this.waiting.splice(0, MOST_INTENTS);
    const seq = ++this.sent;
    this.model.send?.({ client: this.client, seq, intents });
    // An answer that is lost must not lock the page.
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.giveUp(seq), ANSWER_MS);
  }

  /** @param {number} seq */
  giveUp(seq) {
    if (this.answered >= seq) return;
    this.answered = seq;
    this.flush();
    this.given();
  }

  /** Waits for nothing any more: the page is gone. */
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

/** Which field an intent is about. @param {Intent} intent */
function keyOf(intent) {
  return intent.kind === "edit" ? `${intent.field}:${intent.array ?? ""}` : intent.kind;
}
