// How a collective or a reshard moves its data: `pictures.py`, and `picture/serialization.py`,
// which says what each field means.

/** What was asked to be played, by its key: stage and number of a collective, or a value. */
export type Movements = Record<string, Played>;

export interface Played {
  data: MovementData | null;
  /** Why there is none. */
  error: string;
  /** The algorithms and the groups that can be chosen; the value of each is a key. */
  algorithms: PlayOption[];
  groups: PlayOption[];
}

export interface PlayOption {
  value: string;
  label: string;
}

export interface MovementData {
  kind: string;
  algorithm: string;
  title: string;
  formula: string;
  filledIn: string;
  rateSource: string;
  summedUp: string;
  bytes: number;
  sentBytes: number;
  seconds: number | null;
  meshAxes: string[];
  notes: string[];
  size: number;
  devices: number[];
  hosts: number[];
  grid: { sizes: number[]; names: string[]; at: number[][] };
  links: string[];
  chunks: { count: number; labels: string[]; bytes: number | number[] };
  contributors: number;
  /** null where every device has all chunks. */
  start: number[][] | null;
  end: number[][] | null;
  routes: MovementRoute[];
  steps: MovementStep[];
  /** Added for the page: bytes in words, by step; the time. */
  bytesText: string[];
  took: string;
}

export interface MovementRoute {
  source: number[];
  target: number[];
  link: number | number[];
}

export interface MovementStep {
  words: string;
  bytes: number;
  adds: boolean;
  keeps: boolean;
  chunk: number[];
  times?: number;
  route?: number;
}
