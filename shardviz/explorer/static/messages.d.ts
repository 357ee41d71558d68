// The messages between Python and the page: the traits that Python sends, and the page's intents.
// The data of a panel is declared in the panel's JavaScript file, the rest here.
// `tests/browser/messages.py` checks real messages against both.

import type { Cell } from "./cascade.js";
import type { Changes } from "./changes.js";
import type { Compared } from "./compare.js";
import type { Leaves, ModelData } from "./model_panel.js";
import type { Movements } from "./movement_steps.js";
import type { PlanView } from "./plan_data.js";
import type { ProblemsData } from "./problems.js";
import type { Report } from "./report_tabs.js";
import type { RuleUse } from "./rule_table.js";
import type { Background, Stages } from "./stages.js";
import type { Timeline } from "./timeline.js";
import type { Explanation } from "./value_details.js";

// ── Traits, each with its Python module ──────────────────────────────────────────────

/** The traits of an Explorer's model (`explorer.py`). */
export interface Traits {
  menus: Menus;
  answer: Answer;
  // The session in parts, so that an edit sends only the parts that it changes.
  view: SentView | Record<string, never>;
  mesh: SentMesh;
  rules: RulesText;
  /** Only once the Rules view was opened. */
  rule_use: RuleUse | Record<string, never>;
  cell: Cell;
  /** Only once the Model view was opened. */
  leaves: Leaves | Record<string, never>;
  model_data: ModelData | Record<string, never>;
  program: ProgramView;
  [array: `array_${number}`]: SentArray;
  /** For an array with the same layout as an earlier one, the index of that one. */
  [layout: `layout_${number}`]: SentLayout | { same: number };
  devices: Devices;
  report_data: Report;
  /** The state as plain JAX code. */
  code_data: string;
  target: Target;
  palette: { light: Palette; dark: Palette };
  stages_data: Stages;
  plan_data: PlanView;
  timeline: Timeline;
  explanation: Explanation | Record<string, never>;
  background: Background;
  link_data: LinkView | Record<string, never>;
  /** The requested steps; in a saved page, those of the largest collectives. */
  movements: Movements;
  /** Empty until changes are requested. */
  changes_data: Changes | Record<string, never>;
  problems_data: ProblemsData | Record<string, never>;
  /** Empty if no state is pinned. */
  compare_data: Compared | Record<string, never>;
  offline: boolean;
}

/** The model as anywidget hands it to the page; a saved page has no `send`. */
export interface Model {
  get<K extends keyof Traits>(name: K): Traits[K] | undefined;
  on(event: string, listener: (message: CustomMessage) => void): void;
  off?(event: string, listener: (message: CustomMessage) => void): void;
  send?(message: Intents): void;
}

/**
 * A place in a view. A leaf of the model opens as an array in Layout and Rules; a device is given by
 * its mesh position.
 */
export interface Place {
  view: "Layout" | "Rules" | "Model" | "Program";
  array?: number;
  dim?: number;
  leaf?: number;
  collective?: string;
  tab?: string;
}

/** An entry of a menu. */
export interface Option {
  value: string;
  label: string;
  title?: string;
  group?: string;
}

/** `session_view.py`: the options of all menus. */
export interface Menus {
  axisTypes: Option[];
  presets: { group: string; options: Option[] }[];
  dialects: Option[];
  programs: Option[];
  /** Targets on this machine, and described ones. */
  here: Option[];
  targets: Option[];
}

/** `explorer.py`: the last message that was handled, the page that sent it, and the program's revision. */
export interface Answer {
  seq: number;
  client: string;
  revision: number;
  /** True if there is something to undo, and to redo. */
  undo?: true;
  redo?: true;
  /** Failures in the kernel, one sentence each. */
  failed?: string[];
}

/** `session_view.py`: the content of the page. */
export interface SentView {
  /** The number of arrays. */
  count: number;
  selected: number;
  /** The error of an edit that has no field. */
  notes?: string[];
  /** The view to open, if it is not Layout. */
  opens?: "Rules" | "Model" | "Program";
}

/** `session_view.py`. */
export interface SentMesh {
  text: string;
  error?: string;
  hosts: string;
  /** The owner of these hosts, if the target has hosts. */
  hostsOf?: string;
  hostsError?: string;
  types: string;
  /** With the type of each axis if they differ. */
  axes: ([name: string, size: number] | [name: string, size: number, type: string])[];
  count: string;
}

export type ArrayField = "name" | "dtype" | "shape" | "logical" | "spec";

/** `session_view.py`: the typed fields of an array. */
export interface SentArray {
  name: string;
  type: string;
  shape: number[];
  bytes: string;
  /** The logical axis of every dimension, if it has any. */
  names?: (string | null)[];
  texts: Record<ArrayField, string>;
  errors?: Partial<Record<ArrayField, string>>;
}

/** `session_view.py`: the sharding of an array, with reasons. */
export interface SentLayout extends Partial<LayoutNumbers> {
  spec: string;
  dims: { why: string; axes?: string[] }[];
  /** The dimension that other rules would split: the one that fails, otherwise the longest. */
  mend?: number;
  typedSpec?: true;
  /** True if neither a spec nor rules define its sharding. */
  noRules?: true;
  problem?: string;
  warnings?: string[];
  /** For each mesh axis, the change of the block index per step along it. */
  strides?: number[];
  picture?: PackedPicture;
  /** The content of the picture, if it shows an older layout. */
  pictured?: LayoutNumbers;
}

/** `pictures.py`: an array without a layout (it has a problem) has none of these. */
export interface LayoutNumbers {
  /** Blocks along each dimension. */
  counts: number[];
  /** The shape of one shard. */
  shard: number[];
  replicas: number;
  shardBytes: string;
}

/** `session_view.py`: the rules as typed. */
export interface RulesText {
  text: string;
  error?: string;
  dialect: string;
}

/** `session_view.py`. */
export interface ProgramView {
  value: string;
  lost?: string;
  /** True if an array cannot be laid out. */
  broken?: true;
  requested: string;
  requestedBytes: string;
}

/** `targets.py`: the chosen target. */
export interface Target {
  value: string;
  /** Its text, if it is not in the menus. */
  label?: string;
  error?: string;
  words?: string;
  /** The reason, if nothing can run on it. */
  noRun?: string;
}

/** `pictures.py`, from `draw/palette.py`: the colours of one theme, as #rrggbb. */
export interface Palette {
  paper: string;
  text: string;
  muted: string;
  groups: string[];
  /** For each mesh axis from pale to full; the last entry is for unsplit blocks. */
  tints: string[][];
}

// ── Pictures: `draw/serialization.py` defines the format ──────────────────────────────────────────────

/** `pictures.py`: the devices, and the id and host of each in mesh order. */
export interface Devices {
  picture: PackedPicture;
  /** Omitted for 0, 1, 2, … */
  ids?: Column;
  /** Omitted if there is one host. */
  hosts?: Column;
  buffers?: DataView[];
  size: number;
  by: string;
  /** The reason why the devices have no coordinates on the target, or "". */
  no_positions: string;
  note: string;
  count: string;
}

/** `links_view.py`: the links that the chosen collective uses. */
export interface LinkView {
  key: string;
  words: string;
  edges?: EdgeData;
  buffers?: DataView[];
}

export interface PackedPicture {
  data: PictureData;
  buffers?: DataView[];
}

/** Default values are omitted, in the tiles too. */
export interface PictureData {
  width: number;
  height: number;
  groups?: number;
  shades?: Shades;
  facts?: ArrayFacts;
  labels?: Row<LabelRow>[];
  frames?: Row<FrameRow>[];
  tiles: TileData;
  edges?: EdgeData;
  rulers?: Partial<Ruler>[];
}

/** The effect of each mesh axis on the colours of an array's blocks, major to minor. */
export type Shades = [axis: number, size: number, stride: number, tint: number][];

/** A row without its last fields, if they equal those of the row before. */
export type Row<R extends unknown[]> = Partial<R>;
export type LabelRow = [
  x: number,
  y: number,
  text: string,
  role: string,
  anchor: "start" | "middle" | "end",
  tone: string,
];
export type FrameRow = [
  x: number,
  y: number,
  label: string,
  w: number,
  h: number,
  dashed: boolean,
  named: boolean,
];

/** A ruler along a side of the tiles, as in `draw/picture.py`. */
export interface Ruler {
  words: string[];
  axes: [number: number, name: string][];
  down: boolean;
  start: number;
  length: number;
  repeats: [count: number, pitch: number][];
  count: number;
  pitch: number;
  extent: number;
  step: number;
  size: number;
}

/** The shown dimensions of an array, if it has more than two or a note. */
export interface ArrayFacts {
  /** The dimensions shown as rows and columns. */
  dims: number[];
  /** The other dimensions with their shown block, or null for all blocks. */
  steps: ArrayStep[];
  /** A note about the picture. */
  note: string;
}

export type ArrayStep = { dim: number; count: number; at: number | null };

/** One number per tile, as a constant, as start and step, or as a list. */
export type Column =
  | number
  | [start: number, step: number]
  | { values: number[] }
  | { buffer: number; dtype: "float32" | "int32" | "float64" };

export interface TileData {
  count: number;
  x: Column;
  y: Column;
  width: Column;
  height: Column;
  group?: Column;
  device?: Column;
  offsets?: Column;
  holders?: Column;
  text?: Template;
}

export interface EdgeData {
  count: number;
  x0: Column;
  y0: Column;
  x1: Column;
  y1: Column;
  width: Column;
  group: Column;
}

/** Text, and the ids of the devices in at most that many letters. */
export type Template = (string | { of: "devices"; limit: number })[];

// ── The stages of a program: `stages_view.py`, `collective_table.py` ────────────

// ── A job and its report: `report_view.py`, `effects_view.py` ──────────────

// ── Messages of the page ─────────────────────────────────────────────────────────────────────

/** Intents in order; the view that answers them has the same `client` and `seq`. */
export interface Intents {
  client: string;
  seq: number;
  intents: Intent[];
}

export type Intent =
  | { kind: "edit"; field: string; value: EditValue; array?: number; burst?: string }
  | {
      kind: "links" | "why" | "show" | "cell" | "apply" | "play" | "changes" | "take";
      value: string | null;
    }
  | { kind: ActionKind };

/** Intents without a value. */
export type ActionKind =
  | "plan"
  | "compile"
  | "run"
  | "cancel"
  | "undo"
  | "redo"
  | "code"
  | "effects"
  | "leaves"
  | "pin"
  | "unpin"
  | "back"
  | "picture"
  | "save";

/** Typed text, or a choice; null for a button. */
export type EditValue = string | number | (string | number | boolean | null)[] | null;

/**
 * Messages of Python besides the traits: a file to save, and every second a beat, with the last
 * answered message and, if it changed, the line of code that restores the state.
 */
export type CustomMessage =
  | { kind: "file"; name: string; media: string; text: string }
  | { kind: "alive"; seq?: number; client?: string; line?: string };
