// Every message between Python and the page: the traits that Python sends, and what the page
// sends back. Declared once, here; `tests/browser/messages.py` checks that Python keeps to it.

// ── Traits, each with the Python that makes it ──────────────────────────────────────────────

/** What an Explorer's model holds, by the name of the trait (`explorer.py`). */
export interface Traits {
  menus: Menus;
  answer: Answer;
  // What a session is, in parts, so that an edit sends only those that it changes.
  view: SentView | Record<string, never>;
  mesh: SentMesh;
  rules: RulesText;
  /** Only once the view Rules was opened. */
  rule_use: RuleUse | Record<string, never>;
  cell: Cell;
  /** Only once the view Model was opened. */
  leaves: Leaves | Record<string, never>;
  model_data: ModelData | Record<string, never>;
  program: ProgramView;
  [array: `array_${number}`]: SentArray;
  /** Of an array that is split as one before it, the number of that one. */
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
  /** What was asked to be played; in a saved page, the largest collectives. */
  movements: Movements;
  /** Empty until somebody asks what would remove a collective, or lower the peak. */
  changes_data: Changes | Record<string, never>;
  problems_data: Problems | Record<string, never>;
  /** Empty where no state is pinned. */
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
  /** Whether there is something to undo and to redo. */
  undo?: true;
  redo?: true;
  /** What failed in the kernel, one sentence each. */
  failed?: string[];
}

/** `session_view.py`: what is shown, and how. */
export interface SentView {
  /** How many arrays there are. */
  count: number;
  selected: number;
  /** What an edit without a field of its own could not do. */
  notes?: string[];
  /** The view that it opens in, where that is not Layout. */
  opens?: "Rules" | "Model" | "Program";
}

/** `session_view.py`. */
export interface SentMesh {
  text: string;
  error?: string;
  hosts: string;
  /** Whose hosts these are, where the target has its own. */
  hostsOf?: string;
  hostsError?: string;
  types: string;
  /** With the type of each axis where they differ. */
  axes: ([name: string, size: number] | [name: string, size: number, type: string])[];
  count: string;
}

export type ArrayField = "name" | "dtype" | "shape" | "logical" | "spec";

/** `session_view.py`: what was typed about an array. */
export interface SentArray {
  name: string;
  type: string;
  shape: number[];
  bytes: string;
  /** The logical axis of every dimension, where there are any. */
  names?: (string | null)[];
  texts: Record<ArrayField, string>;
  errors?: Partial<Record<ArrayField, string>>;
}

/** `session_view.py`: how an array is split, and why. */
export interface SentLayout extends Partial<LayoutNumbers> {
  spec: string;
  dims: { why: string; axes?: string[] }[];
  /** The dimension that other rules would split: the one that cannot be, else the longest. */
  mend?: number;
  typedSpec?: true;
  /** Whether neither a spec nor rules say how it is split. */
  noRules?: true;
  problem?: string;
  warnings?: string[];
  /** By mesh axis: what one step along it adds to the number of the block. */
  strides?: number[];
  picture?: PackedPicture;
  /** What the picture shows, where it is of an older layout. */
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

/** `session_view.py`: the rules as they were typed. */
export interface RulesText {
  text: string;
  error?: string;
  dialect: string;
}

/** `session_view.py`. */
export interface ProgramView {
  value: string;
  lost?: string;
  /** Whether an array cannot be laid out. */
  broken?: true;
  requested: string;
  requestedBytes: string;
}

/** `targets.py`: the chosen target. */
export interface Target {
  value: string;
  /** Where it is not in the menus. */
  label?: string;
  error?: string;
  words?: string;
  /** Why nothing can run on it. */
  noRun?: string;
}

/** `pictures.py`, from `draw/palette.py`: the colours of one theme, as #rrggbb. */
export interface Palette {
  paper: string;
  text: string;
  muted: string;
  groups: string[];
  /** Of each mesh axis from pale to full, and last of what no axis splits. */
  tints: string[][];
}

// ── Pictures: `draw/serialization.py` has the format ──────────────────────────────────────────────

/** `pictures.py`: the devices, and the id and host of each in mesh order. */
export interface Devices {
  picture: PackedPicture;
  /** Left out for 0, 1, 2, … */
  ids?: Column;
  /** Left out where there is one host. */
  hosts?: Column;
  buffers?: DataView[];
  size: number;
  by: string;
  /** Why the devices have no coordinates on the target; "" where they have. */
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

/** What equals its default is left out, in the tiles as well. */
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

/** What each mesh axis does to the colours of an array's blocks, major to minor. */
export type Shades = [axis: number, size: number, stride: number, tint: number][];

/** A row without its last fields, which it has in common with the row before. */
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

/** Along a side of the tiles, as in `draw/picture.py`. */
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

/** Which dimensions of an array are shown, where it has more than two or a note. */
export interface ArrayFacts {
  /** The dimensions shown as rows and columns. */
  dims: number[];
  /** The dimensions not shown, and which block of each: null for all. */
  steps: ArrayStep[];
  /** What else there is to know of the picture. */
  note: string;
}

export type ArrayStep = { dim: number; count: number; at: number | null };

/** One number per tile: the same, or start and step, or of each tile. */
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

/** Text, and the ids of the devices in at most so many letters. */
export type Template = (string | { of: "devices"; limit: number })[];

// ── The stages of a program: `stages_view.py`, `collective_table.py` ────────────

export type StageState = "live" | "estimate" | "failed" | "none";
/** Indices of two of propagated, partitioned, compiled; -1 is requested. */
export type StagePair = [number, number];

export interface Stages {
  revisions: number[];
  target: string;
  /** Propagated, partitioned, compiled, ran. */
  stages: Stage[];
  /** What changed between two stages, in a few words. */
  marks: StageChange[];
  changes: CollectiveChange[];
  /** By stage. */
  collectives: Collective[][];
  /** By stage: how many collectives were left out. */
  left_out: number[];
  /** The number of every mesh axis. */
  axes: Record<string, number>;
  notes: string[];
  headline: Headline;
  memory: Memory;
  error: Failure | null;
}

export interface Stage {
  name: string;
  state: StageState;
  text: string;
  /** All that is known of it, for a tooltip. */
  title: string;
}

export interface StageChange {
  between: StagePair;
  text: string;
  tone: "same" | "changed" | "more";
  title: string;
}

export interface CollectiveChange {
  between: StagePair;
  kind: string;
  words: string;
  /** Numbers of collectives. */
  before: number[];
  after: number[];
}

export interface Collective {
  number: number;
  kind: string;
  axes: string[];
  bytes: string;
  /** How often it runs: "× 32", "" for once. */
  times: string;
  share: number;
  /** From stage to stage, in a few words. */
  became: string;
  tags: string[];
  /** Whether it is a full rematerialisation. */
  full: boolean;
  /** Groups, bytes in all, arrays, pass and shape. */
  facts: string;
  causes: string[];
  moreCauses: number;
  op: string;
  source: string;
  stack: string[];
  values: string[];
  /** Positions of devices, where mesh axes do not say the groups. */
  groups: number[][];
}

/** `report_view.py`: the least time of a program; no parts where it is not known. */
export interface Headline {
  seconds: string;
  where: string;
  bound: string;
  parts: HeadlinePart[];
  /** Why there are no times. */
  note: string;
  title: string;
  memory: string;
  memoryTitle: string;
  over: boolean;
}

export interface HeadlinePart {
  name: string;
  label: string;
  seconds: string;
  share: number;
  /** Of collectives: the share of each set of mesh axes, the largest first. */
  over: [axes: string[], share: number][];
}

export interface Memory {
  parts: [name: string, bytes: string][];
  /** Null where the compiler gave no buffers. */
  chart: MemoryChart | null;
  sentence: string;
  over: boolean;
  operations: LeastTime[];
  /** Only with a report: the target. */
  target?: string;
}

export interface LeastTime {
  name: string;
  seconds: string;
  share: number;
  bound: string;
  source: string;
}

/** `stages_view.py`: the work that runs in the background. */
export interface Background {
  stage?: string;
}

export interface Failure {
  title: string;
  message: string;
  source: string;
}

// ── A job and its report: `report_view.py`, `effects_view.py` ──────────────

export interface Report {
  state: "none" | "running" | "done" | "failed";
  revision: number; // of the program; -1 where it does not matter
  /** What a running job does, in words, and the stage of the row that it is in. */
  stage: string;
  at: number;
  started: number;
  times: [string, string][];
  checks: { name: string; ok: boolean | null; detail: string }[];
  /** The result of a run; how many of its checks passed. */
  verdict: string;
  passed: string;
  /** The last job, where somebody cancelled it; the rest is of the report before. */
  cancelled?: string;
  error: Failure | null;
  effects: Effects;
  cache: string;
}

export type Effects =
  | { state: "none" | "reading"; revision: number }
  | { state: "done"; revision: number; problem: string }
  | EffectsFound;

export interface EffectsFound {
  state: "done";
  revision: number;
  problem?: undefined;
  runs: boolean;
  sentence: string;
  rows: EffectRow[];
}

export interface EffectRow {
  name: string;
  ordered: boolean;
  shardable: boolean;
  nesting: string[];
  note: string;
}

/** `memory_chart.py`: columns are moments of the program, each the fullest of its stretch. */
export interface MemoryChart {
  sentence: string;
  /** The column of the peak, and the bytes at the upper edge. */
  peak: number;
  top: number;
  capacity: number; // 0 where it is not known
  where: string[];
  kinds: [kind: string, bytes: number[]][];
  /** The largest of each column. */
  buffers: MemoryBuffer[];
}

/** Its first and last column, both included; its value is "" where that is not known. */
export type MemoryBuffer = Record<"bytes" | "start" | "end", number> &
  Record<"shape" | "name" | "value" | "spec" | "source" | "about", string>;

/** `changes_view.py`: what would remove a collective, or lower the peak. */
export interface Changes {
  of: string; // the key of the collective, or "memory"
  revision: number;
  running: boolean;
  words: string;
  rows: Change[];
  /** What was tried and dropped, and advice. */
  notes: string[];
}

export interface Change extends Record<"edit" | "facts" | "values" | "code", string> {
  ok: boolean | null;
  takes: boolean; // whether the Explorer can take it as an edit
}

export * from "./plan_messages";
export * from "./player_messages";
export * from "./view_messages";
import type { Explanation, PlanView, Timeline } from "./plan_messages";
import type { Movements } from "./player_messages";
import type { Cell, Compared, Leaves, ModelData, Problems, RuleUse } from "./view_messages";

// ── What the page sends ─────────────────────────────────────────────────────────────────────

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

/** Text that was typed, or a choice; null for a button. */
export type EditValue = string | number | (string | number | boolean | null)[] | null;

/**
 * What Python sends beside the traits: a file to save; and every second that it is there, with the
 * message that it answered last and, where it changed, the line of code that opens the state again.
 */
export type CustomMessage =
  | { kind: "file"; name: string; media: string; text: string }
  | { kind: "alive"; seq?: number; client?: string; line?: string };
