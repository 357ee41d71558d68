// The part of the messages that the views Rules and Model show, and the list of problems.

/** `rules_view.py`: what every rule does. */
export interface RuleUse {
  /** Whether the text has one rule per line, as the rows have. */
  aligned: boolean;
  rows: RuleRow[];
  /** In a saved page: the cascades of the dimensions. */
  saved?: Record<string, Cell>;
}

export interface RuleRow {
  line: number;
  /** That it decides nothing, in a few words. */
  idle?: string;
  /** Which arrays it does not decide, and why. */
  note?: string;
}

/** `model_view.py`: the leaves of a model. */
export interface Leaves {
  paths: string[];
  /** The kind of every leaf. */
  kinds: number[];
  /** Leaves that differ in the number of their layer only, by number. */
  folds: [name: string, leaves: number[]][];
  /** The number of the parameter of every moment, or -1; empty where there are none. */
  partners: number[];
  words: string;
}

/** `model_view.py`: what the rules make of every kind, and of all together. */
export interface ModelData {
  kinds: LeafKind[];
  /** What the largest parts of the model take. */
  parts: [name: string, bytes: string][];
  words: string;
  waste: string;
  /** Shares of the bar: what an even split would take, and what replication adds. */
  needed: number;
  wasted: number;
  over: boolean;
  /** Of one device, as a share of the bar; 0 where it is not known. */
  capacity: number;
  constraints: ConstraintCall[];
}

export interface LeafKind {
  short: string;
  names?: string[];
  spec: string;
  /** By dimension its axes as [number in the mesh, size]. */
  dims: [axis: number, size: number][][];
  bytes: number;
  text?: string;
  waste: number;
  problem?: string;
  note?: string;
}

/** A call that constrains an activation, and what became of it. */
export interface ConstraintCall {
  where: string;
  effect: string;
  spec: string;
  text: string;
  warns: boolean;
}

/** `rules_view.py`: the chosen dimension as `array:dimension`, and why it is split as it is. */
export interface Cell {
  key?: string;
  /** The logical name of the dimension, or its number in words. */
  name?: string;
  /** All dimensions of its array. */
  dims?: DimCard[];
  /** What became of it, and why. */
  head?: string;
  text?: string;
  /** What was done last. */
  done?: string;
  /** The rules that name it, in table order. */
  lines?: RuleLine[];
  /** Left out until they were looked for. */
  remedies?: Remedy[];
  /** Why there are none. */
  reason?: string;
}

/** A dimension: its axes, or why it has none. */
export interface DimCard {
  name: string;
  size: number;
  state: string;
  axes?: string[];
  fails?: true;
  loses?: true;
}

/** A rule, or the array's own spec, and what became of it. */
export interface RuleLine {
  /** Its number from 0 on; of a spec none. */
  rule?: number;
  text: string;
  words: string;
  /** The kind of its verdict. */
  kind?: string;
  wins?: true;
  fails?: true;
}

/** An edit that splits the chosen dimension, and what it does. */
export interface Remedy {
  edit: string;
  spec: string;
  memory: string;
  saves: boolean;
  others: string;
  /** What the program then communicates and keeps, by its plan; not of arrays alone. */
  step?: { text: string; worse: boolean };
}

/**
 * A view and what is in it. A leaf of the model is opened as an array in Layout and Rules; a device
 * is its position in mesh order.
 */
export interface Place {
  view: "Layout" | "Rules" | "Model" | "Program";
  array?: number;
  dim?: number;
  leaf?: number;
  collective?: string;
  tab?: string;
}

/** `problems_view.py`: what fails, then what loses something, then what is worth knowing. */
export interface Problems {
  /** Of the program that they are of. */
  revision: number;
  rows: Problem[];
  /** How many fail, lose something, are worth knowing. */
  counts: number[];
  /** The bytes that all of them waste on each device; "" for none. */
  lost: string;
}

export interface Problem {
  code: string;
  severity: "fails" | "loses" | "know";
  text: string;
  /** Its place in a few words. */
  at?: string;
  /** Empty where the page has no place for it. */
  place: Partial<Place>;
  /** Whether the place has remedies. */
  mends?: true;
  /** What the mesh becomes with one click. */
  offer?: string;
}

/** `compare_view.py`: the numbers of the pinned state beside those of now. */
export interface Compared {
  revision: number;
  same: boolean;
  rows: ComparedNumber[];
}

export interface ComparedNumber {
  name: string;
  title: string;
  /** The number before and now. */
  text: string;
  change: string;
  tone: "same" | "better" | "worse" | "unknown";
}
