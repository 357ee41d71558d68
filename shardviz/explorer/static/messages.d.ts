// The messages between Python and the page: traits from Python, and intents from the page.
// Data of a single panel is declared in the panel's JavaScript file, all other data here.
// `tests/browser/messages.py` checks real messages against these types.

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

/** The traits of the Explorer widget in `explorer.py`. */
export interface Traits {
  menus: Menus;
  answer: Answer;
  /** The names of the traits that are drawn. */
  drawn: string[];
  // The session as several traits, so that an edit sends only the traits that it changes.
  view: SentView | Record<string, never>;
  mesh: SentMesh;
  rules: RulesText;
  /** Empty until the Rules view is opened. */
  rule_use: RuleUse | Record<string, never>;
  cell: Cell;
  /** Empty until the Model view is opened. */
  leaves: Leaves | Record<string, never>;
  model_data: ModelData | Record<string, never>;
  program: ProgramView;
  [array: `array_${number}`]: SentArray;
  /** `same` is the index of an earlier array with the same layout. */
  [layout: `layout_${number}`]: SentLayout | { same: number };
  devices: Devices;
  report_data: Report;
  /** Title -> code: the current state as JAX code, and its rules; empty until requested. */
  code_data: Record<string, string>;
  target: Target;
  palette: { light: Palette; dark: Palette };
  stages_data: Stages;
  plan_data: PlanView;
  timeline: Timeline;
  explanation: Explanation | Record<string, never>;
  background: Background;
  link_data: LinkView | Record<string, never>;
  /** The requested steps; in a saved page, the steps of the largest collectives. */
  movements: Movements;
  /** Empty until changes are requested. */
  changes_data: Changes | Record<string, never>;
  problems_data: ProblemsData | Record<string, never>;
  /** Empty if no state is pinned. */
  compare_data: Compared | Record<string, never>;
  offline: boolean;
}

/** The model that anywidget passes to the page; in a saved page it has no `send`. */
export interface Model {
  get<K extends keyof Traits>(name: K): Traits[K] | undefined;
  on(event: string, listener: (message: CustomMessage) => void): void;
  off?(event: string, listener: (message: CustomMessage) => void): void;
  send?(message: Intents): void;
}

/**
 * A place in a view, such as an array, dimension or collective. In Layout and Rules, a leaf of the
 * model opens as an array.
 */
export interface Place {
  view: "Layout" | "Rules" | "Model" | "Program";
  array?: number;
  dim?: number;
  leaf?: number;
  collective?: string;
  /** A source line, such as `block.py:59`. */
  line?: string;
  tab?: string;
  /** The name of a mesh axis. */
  axis?: string;
}

/** A menu entry. */
export interface Option {
  value: string;
  label: string;
  title?: string;
  group?: string;
}

/** The options of all menus, from `session_view.py`. */
export interface Menus {
  axisTypes: Option[];
  presets: { group: string; options: Option[] }[];
  dialects: Option[];
  programs: Option[];
  /** Targets on this machine; `targets` has the described ones. */
  here: Option[];
  targets: Option[];
}

/** From `explorer.py`: number and sender of the last handled message, and the program's revision. */
export interface Answer {
  seq: number;
  client: string;
  revision: number;
  /** Whether there are edits to undo or redo. */
  undo?: true;
  redo?: true;
  /** Error messages from the kernel. */
  failed?: string[];
}

/** Selection, notes and start view of the page, from `session_view.py`. */
export interface SentView {
  /** The number of arrays. */
  count: number;
  selected: number;
  /** Errors of edits without a field. */
  notes?: string[];
  /** What else to open, as a name and a line of code; missing unless this is the example. */
  hints?: [string, string][];
  /** Arrays that differ only in their layer. */
  folds?: [title: string, layers: string, arrays: number[]][];
  /** The number of the model's arrays that are not among these. */
  beside?: number;
  /** The view to open; missing for Layout. */
  opens?: "Rules" | "Model" | "Program";
}

/** `session_view.py`. */
export interface SentMesh {
  text: string;
  error?: string;
  hosts: string;
  /** Explains that the target fixes the number of hosts; missing if it does not. */
  hostsOf?: string;
  hostsError?: string;
  types: string;
  /** The axes; `type` is sent only if the axes have different types. */
  axes: ([name: string, size: number] | [name: string, size: number, type: string])[];
  count: string;
}

export type ArrayField = "name" | "dtype" | "shape" | "logical" | "spec";

/** The text fields of an array, from `session_view.py`. */
export interface SentArray {
  name: string;
  type: string;
  shape: number[];
  bytes: string;
  /** The logical axis of every dimension; missing if the array has no names. */
  names?: (string | null)[];
  texts: Record<ArrayField, string>;
  errors?: Partial<Record<ArrayField, string>>;
}

/** The sharding of an array, with reasons, from `session_view.py`. */
export interface SentLayout extends Partial<LayoutNumbers> {
  spec: string;
  dims: { why: string; axes?: string[] }[];
  /** The dimension for which to suggest other rules: the one that fails, otherwise the longest one that is not split. */
  mend?: number;
  typedSpec?: true;
  /** True if neither a spec nor rules define the sharding. */
  noRules?: true;
  problem?: string;
  warnings?: string[];
  /** For each mesh axis, the change of the block index per step along the axis. */
  strides?: number[];
  picture?: PackedPicture;
  /** The numbers of the layout in the picture, if that is an older layout. */
  pictured?: LayoutNumbers;
}

/** Numbers of a layout, from `session_view.py`; missing if the array cannot be laid out. */
export interface LayoutNumbers {
  /** The number of blocks along each dimension. */
  counts: number[];
  /** The shape of one shard. */
  shard: number[];
  replicas: number;
  shardBytes: string;
}

/** The rules field, from `session_view.py`. */
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

/** The selected target, from `targets.py`. */
export interface Target {
  value: string;
  /** The text of a target that is not in the menus. */
  label?: string;
  error?: string;
  words?: string;
  /** Why programs cannot run on the target; missing if they can. */
  noRun?: string;
}

/** The colours of one theme, as #rrggbb, from `pictures.py`. */
export interface Palette {
  paper: string;
  text: string;
  muted: string;
  groups: string[];
  /** The ladder of each mesh axis, from pale to full; the last entry is for unsplit blocks. */
  ladders: string[][];
}

// ── Pictures: `draw/serialization.py` defines the format ──────────────────────────────────────────────

/** The picture of the devices, with id and host of each device in mesh order, from `pictures.py`. */
export interface Devices {
  picture: PackedPicture;
  /** Device ids; omitted if they are 0, 1, 2, … */
  ids?: Column;
  /** Host of each device; omitted if there is only one host. */
  hosts?: Column;
  buffers?: DataView[];
  size: number;
  by: string;
  /** Why the devices have no coordinates on the target; "" if they do. */
  no_positions: string;
  note: string;
  count: string;
}

/** The links that the selected collective uses, from `links_view.py`. */
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

/** A picture; fields with default values are omitted, also in the tiles. */
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

/** The mesh axes that colour an array's blocks, major to minor. */
export type Shades = [axis: number, size: number, stride: number][];

/** A row of a table; the last fields are omitted if they equal the previous row's. */
export type Row<R extends unknown[]> = Partial<R>;
export type LabelRow = [x: number, y: number, text: string, anchor: "start" | "middle" | "end"];
export type FrameRow = [
  x: number,
  y: number,
  label: string,
  w: number,
  h: number,
  dashed: boolean,
  named: boolean,
];

/** A ruler along one side of the tiles, as in `draw/picture.py`. */
export interface Ruler {
  words: string[];
  axes: [number: number, name: string, size: number][];
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

/** The shown dimensions of an array; only sent if it has more than two dimensions or a note. */
export interface ArrayFacts {
  /** The dimensions shown as rows and columns. */
  dims: number[];
  /** The other dimensions, each with its shown block (`at`), or null for all blocks. */
  steps: ArrayStep[];
  /** A note about the picture. */
  note: string;
}

export type ArrayStep = { dim: number; count: number; at: number | null };

/** One number per tile: a constant, start and step, a list, or a binary buffer. */
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

/** Literal text, and the ids of the tile's devices, cut to `limit` letters. */
export type Template = (string | { of: "devices"; limit: number })[];

// ── Messages of the page ─────────────────────────────────────────────────────────────────────

/** A message from the page. The kernel's answer has the same `client` and `seq`. */
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
  | "measure"
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

/** Typed text, or the value of a choice; null for a button. */
export type EditValue = string | number | (string | number | boolean | null)[] | null;

/**
 * Custom messages from Python: a file to save, or the beat that is sent every second. A beat has
 * the number of the last answered message and, if it changed, the line of code that restores the
 * state.
 */
export type CustomMessage =
  | { kind: "file"; name: string; media: string; text: string }
  | { kind: "alive"; seq?: number; client?: string; line?: string };
