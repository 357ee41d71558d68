// Every message between Python and the page: the traits that Python sends, and what the page
// sends back. Declared once, here; `tests/browser/messages.py` checks that Python keeps to it.

// ── Traits, each with the Python that makes it ──────────────────────────────────────────────

/** What an Explorer's model holds, by the name of the trait (`explorer.py`). */
export interface Traits {
  menus: Menus;
  view: SentView | Record<string, never>;
  /** One trait for each array, so that an edit sends only those that it changes. */
  [array: `array_${number}`]: ArrayView;
  devices: Devices;
  report_data: Report;
  /** The state as plain JAX code. */
  code_data: string;
  target: Target;
  palette: { light: Palette; dark: Palette };
  stages_data: Stages;
  plan_data: PlanView;
  explanation: Explanation | Record<string, never>;
  background: Background;
  link_data: LinkView | Record<string, never>;
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
  axisTypes: string[];
  presets: { group: string; options: Option[] }[];
  dialects: string[];
  programs: Option[];
  targets: Option[];
}

/** `session_view.py`: everything but the arrays, the pictures and the report. */
export interface SentView {
  mesh: MeshView;
  /** How many arrays there are. */
  count: number;
  selected: number;
  revision: number;
  rules: RulesView;
  program: ProgramView;
  look: { by: string; colour: string };
  notes: string[];
  /** The last message that was handled, and the page that sent it. */
  seq: number;
  client: string;
}

/** What the page shows: the view with its arrays. */
export interface View extends SentView {
  arrays: ArrayView[];
}

export interface MeshView {
  text: string;
  error: string;
  hosts: string;
  hostsError: string;
  types: string;
  axes: MeshAxis[];
  count: string;
  local: string;
}

export interface MeshAxis {
  name: string;
  size: number;
  type: string;
}

export type ArrayField = "name" | "dtype" | "shape" | "logical" | "spec";

/** An array; without a layout (where it has a problem) the fields of `ArrayLayout` are missing. */
export interface ArrayView extends Partial<ArrayLayout> {
  name: string;
  short: string;
  bytes: string;
  logical: string;
  spec: string;
  typedSpec: boolean;
  byRules: boolean;
  fields: Record<ArrayField, { text: string; error: string }>;
  problem: string;
  warnings: string[];
  shape: number[];
  dims: { name: string; axes: string[]; why: string }[];
  rank: number;
  /** The same layout in other dialects, as [dialect, text]; of the selected array only. */
  also?: [string, string][];
  /** Null where there is nothing to draw. */
  picture: PackedPicture | null;
}

export interface ArrayLayout {
  /** Blocks along each dimension. */
  counts: number[];
  /** The shape of one shard. */
  shard: number[];
  /** By mesh axis: what one step along it adds to the number of the block. */
  strides: number[];
  blocks: number;
  replicas: number;
  shardBytes: string;
  summary: string;
}

export interface RulesView {
  text: string;
  error: string;
  dialect: string;
  /** Whether the text has one rule per line, as the rows have. */
  aligned: boolean;
  rows: RuleRow[];
}

export interface RuleRow {
  line: number;
  decides: string;
  /** The dimensions that the rule leaves unsplit. */
  not_split: string;
  never: boolean;
  broken: boolean;
  note: string;
  more: string;
}

export interface ProgramView {
  value: string;
  error: string;
  lost: string;
  requested: string;
  requestedBytes: string;
  problems: string[];
}

/** `menus.py`. */
export interface Target {
  /** Targets on this machine; the described ones are in `Menus`. */
  here: Option[];
  value: string;
  error: string;
  note: string;
  offer: string;
  words: string;
}

/** `pictures.py`, from `picture/palette.py`: the colours of one theme, as #rrggbb. */
export interface Palette {
  paper: string;
  text: string;
  muted: string;
  groups: string[];
  ramp: string[];
}

// ── Pictures: `picture/serialization.py` has the format ──────────────────────────────────────────────

/** `pictures.py`: the devices, and the id and host of each in mesh order. */
export interface Devices {
  picture: PackedPicture;
  /** int32; empty for 0, 1, 2, … */
  ids: DataView;
  /** int32; empty where there is one host. */
  hosts: DataView;
  size: number;
  by: string;
  /** Whether the devices have coordinates on the target. */
  has_positions: boolean;
  note: string;
  count: string;
}

/** `pictures.py`: the links that the chosen collective uses. */
export interface LinkView {
  key: string;
  words: string;
  picture?: PackedPicture | null;
}

export interface PackedPicture {
  data: PictureData;
  buffers: DataView[];
}

export interface PictureData {
  version?: 1;
  width: number;
  height: number;
  alt: string;
  colormap: string;
  groups: number;
  facts: Facts;
  labels: Label[];
  frames: { x: number; y: number; width: number; height: number; label: string; dashed: boolean }[];
  legend: { group: number; text: string; x: number; y: number }[];
  palette: null;
  tiles: TileData;
  edges: EdgeData | null;
  panels: { x: number; y: number; picture: PictureData }[];
}

/** What a picture shows, beyond its shapes. */
export type Facts = ArrayFacts | { kind: "devices"; by: string };

export interface ArrayFacts {
  kind: "array";
  /** The dimensions shown as rows and columns. */
  dims: number[];
  /** The dimensions not shown, and which block of each: null for all. */
  steps: ArrayStep[];
  toScale: boolean;
}

export type ArrayStep = { dim: number; count: number; at: number | null };

export interface Label {
  x: number;
  y: number;
  text: string;
  anchor: "start" | "middle" | "end";
  role: "title" | "axis" | "tick" | "note" | "mono";
  tone: "" | "text" | "muted" | "good" | "warn" | "bad";
}

/** One number per tile. */
export type Column =
  | { value: number }
  | { start: number; step: number }
  | { buffer: number; dtype: "float32" | "int32" | "float64" };

export interface TileData {
  count: number;
  radius: number;
  align: "start" | "middle";
  x: Column;
  y: Column;
  width: Column;
  height: Column;
  group: Column;
  device: Column;
  offsets: Column | null;
  holders: Column | null;
  columns: Record<string, Column>;
  text: Template;
  hint: Template;
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

export type Template = (string | Slot)[];

export interface Slot {
  of: string;
  divide?: number;
  modulo?: number;
  times?: number;
  plus?: number;
  words?: string[];
  limit?: number;
}

// ── The stages of a program: `stages_view.py`, `report_view.py` ─────────────

export type StageState = "live" | "estimate" | "failed" | "none";
/** Indices of two of propagated, partitioned, compiled; -1 is requested. */
export type StagePair = [number, number];

export interface Stages {
  revisions: number[];
  target: string;
  /** Propagated, partitioned, compiled. */
  stages: Stage[];
  /** What changed between two stages, in a few words. */
  marks: StageChange[];
  changes: CollectiveChange[];
  /** By stage. */
  collectives: Collective[][];
  rows: StageRow[];
  /** By stage: how many collectives were left out. */
  left_out: number[];
  /** The number of every mesh axis. */
  axes: Record<string, number>;
  notes: string[];
  memory: Memory;
  error: Failure | null;
}

export interface Stage {
  name: string;
  state: StageState;
  text: string;
  took: string;
  more: string;
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

/** Matched collectives: their numbers on every stage. */
export interface StageRow {
  cells: number[][];
  bytes: string;
  share: number;
}

export interface Collective {
  number: number;
  kind: string;
  axes: string[];
  bytes: string;
  share: number;
  total: string;
  tags: string[];
  /** Whether it is a full rematerialisation. */
  full: boolean;
  phase: string;
  size: number;
  causes: string[];
  moreCauses: number;
  op: string;
  shape: string;
  source: string;
  stack: string[];
  values: string[];
  /** Positions of devices, where mesh axes do not say the groups. */
  groups: number[][];
}

export interface Memory {
  parts: { name: string; bytes: string; share: number }[];
  sentence: string;
  over: boolean;
  cost: [string, string][];
  times: LeastTime[];
  operations: LeastTime[];
  timesNote: string;
  /** Only with a report: the capacity as a share of the bar, and the target. */
  capacity?: number;
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

// ── A job and its report: `report_view.py`, `background.py` ───────────────

export interface Report {
  state: "none" | "running" | "done" | "failed";
  stale: boolean;
  stage: string;
  started: number;
  times: [string, string][];
  checks: { name: string; ok: boolean | null; detail: string }[];
  verdict: string;
  error: Failure | null;
  effects: Effects;
  cache: Cache;
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
  devices: string;
  rows: EffectRow[];
  tokens: string[];
  note: string;
  /** Only after the order was requested. */
  watching?: boolean;
  failed?: string;
  observed?: EffectEvent[];
}

export interface EffectRow {
  name: string;
  kind: string;
  ordered: boolean;
  shardable: boolean;
  where: string;
  nesting: string[];
  calls: number;
  note: string;
}

export interface EffectEvent {
  number: number;
  device: number | null;
  name: string;
  what: string;
  nesting: string;
  ordered: boolean;
  values: string;
}

export interface Cache {
  rows: { key: string; name: string; compile: string; hits: number; waited: number }[];
  hits: number;
  misses: number;
  size: number;
  history: { what: string; found: string; why: string; jax: string }[];
}

// ── A plan and its values: `values_view.py` ─────────────────────────────────────────────────

export type PlanView = NoPlan | Plan;

export interface NoPlan {
  count: 0;
  error: string;
  waiting: true;
}

/** A plan in columns: a number is an index into the table of its name, or into `text`. */
export interface Plan {
  waiting: false;
  program: string;
  mesh: string;
  axes: { name: string; size: number; colour: string }[];
  count: number;
  words: string;
  seconds: string;
  error: string;
  diagnosis: Diagnosis | null;
  notes: string[];
  moreNotes: number;
  kinds: string[];
  originKinds: string[];
  columns: Record<PlanColumn, number[]>;
  specs: PlanSpec[];
  /** The type in words, then the shape. */
  types: [string, ...number[]][];
  scopes: string[][];
  origins: [axis: string, kind: number, name: number, source: number][][];
  operands: number[][];
  trips: Record<string, number>;
  valueNotes: Record<string, number>;
  steps: [number: number, op: number, moves: PlanMove[]][];
  stepAxes: string[];
  /** By the number of the value; "-1" for those that belong to none. */
  moves: Record<string, PlanCollective[]>;
  explanations: Record<string, PackedExplanation>;
  text: string[];
}

export type PlanColumn =
  | "name"
  | "kind"
  | "opcode"
  | "type"
  | "spec"
  | "source"
  | "scope"
  | "region"
  | "origins"
  | "flags";

/** The sharding in words; by dimension its axes as [number in the mesh, parts, name]; unreduced axes. */
export type PlanSpec = [
  text: string,
  dims: [axis: number, parts: number, name: string][][],
  unreduced: string[],
];
export type PlanMove = [axis: number, from: number, to: number | number[]];
export type PlanCollective = [
  kind: number,
  axes: number[],
  bytes: number,
  trips: number,
  cause: number,
];

/** Why a program with Explicit axes is refused, and what would be accepted. */
export interface Diagnosis {
  op: string;
  source: string;
  problem: string;
  operands: string[];
  choices: { spec: string; cost: string; words: string }[];
}

/** Why a value is sharded as it is. */
export interface Explanation {
  value: string;
  lines: string[];
  rule: string;
  op: string;
  stack: string[];
  error: string;
}

/** The same with a number for every string. */
export type PackedExplanation = {
  [K in keyof Explanation]: Explanation[K] extends string[] ? number[] : number;
};

// ── What the page sends ─────────────────────────────────────────────────────────────────────

/** Intents in order; the view that answers them has the same `client` and `seq`. */
export interface Intents {
  client: string;
  seq: number;
  intents: Intent[];
}

export type Intent =
  | { kind: "edit"; field: string; value: EditValue; array?: number }
  | { kind: "links" | "why"; value: string | null }
  | { kind: ActionKind };

/** Intents without a value. */
export type ActionKind =
  | "plan"
  | "compile"
  | "run"
  | "cancel"
  | "code"
  | "effects"
  | "observe"
  | "save";

/** Text that was typed, or a choice; null for a button. */
export type EditValue = string | number | (number | null)[] | null;

/** What Python sends beside the traits: the saved page. */
export interface CustomMessage {
  kind: "page";
  name: string;
  html: string;
}
