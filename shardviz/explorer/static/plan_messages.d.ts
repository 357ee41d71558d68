// The part of the messages that is about a plan and its values: `values_view.py`.

import type { Headline } from "./messages";

export type PlanView = NoPlan | Plan;

export interface NoPlan {
  count: 0;
  error: string;
  waiting: true;
}

/** A plan in columns: a number is an index into the table of its name, or into `text`. */
export interface Plan {
  waiting: false;
  axes: string[];
  count: number;
  words: string;
  seconds: string;
  error: string;
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
  /** By the number of the value; "-1" for those that belong to none. */
  moves: Record<string, PlanCollective[]>;
  explanations: Record<string, Explanation>;
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
export type PlanCollective = [
  kind: number,
  axes: number[],
  bytes: number,
  trips: number,
  cause: number,
];

/** Why a value is sharded as it is. */
export interface Explanation {
  value: string;
  lines: string[];
  rule: string;
  stack: string[];
  error: string;
}

/** `timeline_view.py`: why there is none, and targets that have one; or the least times in order. */
export type Timeline = (NoTimeline | TimelineData) & {
  /** Of the program, and the target that it runs on. */
  revision: number;
  target: string;
  /** By the plan, until the program is compiled for this target. */
  headline?: Headline;
};

export interface NoTimeline {
  words: string;
  examples: string[];
}

export interface TimelineData {
  /** The mesh axes of each, with their numbers; the first two are arithmetic and memory. */
  lanes: [axis: string, number: number][][];
  /** The stage whose collectives these are: 0 for the plan, 2 for the compiled program. */
  stage: 0 | 2;
  spans: TimelineSpan[];
  serial: Schedule;
  overlapped: Schedule;
  notes: string[];
  what: string;
  text: string[];
}

export interface Schedule {
  name: string;
  time: string;
  words: string;
}

/** The number of the collective is -1 for an operation; the last five are of `text`. */
export type TimelineSpan = [
  microseconds: number | null,
  arithmetic: number | null, // of an operation, its share of each part in microseconds
  memory: number | null,
  lane: number,
  collective: number,
  trips: number, // 0 where that is not known
  name: number,
  words: number,
  source: number,
  cause: number,
  value: number,
];
