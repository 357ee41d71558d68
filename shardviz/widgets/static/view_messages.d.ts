// The part of the messages that only the views Rules and Model show.

/** `rules_view.py`: what every rule does. */
export interface RuleUse {
  /** Whether the text has one rule per line, as the rows have. */
  aligned: boolean;
  rows: RuleRow[];
  columns: RuleColumn[];
  /** In a saved page: the sentences of the cells, each with its head. */
  saved?: Record<string, string[]>;
}

/** An array in the grid of verdicts. */
export interface RuleColumn {
  array: number;
  name: string;
  dims: string[];
  spec: string;
  /** How many other arrays have the same names and shape. */
  more?: number;
  problem?: string;
  typed?: true;
  /** The dimensions whose name no rule knows. */
  unmatched?: number[];
}

export interface RuleRow {
  line: number;
  /** A letter for each dimension of each column (`LETTERS` in `rules_view.py`). */
  cells: string;
  never?: true;
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
  axes: string[];
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

/** `rules_view.py`: the chosen cell, as `rule:array:dimension`. */
export interface Cell {
  key: string;
  head: string;
  text: string;
  /** Left out until they were looked for. */
  remedies?: Remedy[];
  /** Why there are none. */
  reason?: string;
}

/** An edit that splits the dimension of the chosen cell, and what it does. */
export interface Remedy {
  edit: string;
  spec: string;
  memory: string;
  saves: boolean;
  others: string;
}
