// How a collective moves its data: `movements_view.py`.

/** What was asked to be played, by its key: stage and number of a collective. */
export type Movements = Record<string, Played>;

export interface Played {
  data: MovementData | null;
  /** Why there is none. */
  error: string;
  /** The groups that can be chosen; the value of each is a key. */
  groups: PlayOption[];
}

export interface PlayOption {
  value: string;
  label: string;
}

export interface MovementData {
  kind: string;
  title: string;
  formula: string;
  filledIn: string;
  /** The least time in words, or "". */
  took: string;
  notes: string[];
  size: number;
  devices: number[];
  hosts: number[];
  grid: { sizes: number[]; at: number[][] };
  /** What each is called; none of a group that is not drawn. */
  chunks: string[];
  contributors: number;
  /** By device the chunks it has; null where every device has all. */
  start: number[][] | null;
  steps: MovementStep[];
}

export interface MovementStep {
  words: string;
  bytes: string;
  adds: boolean;
  keeps: boolean;
  /** How many like it there are, in a group that is not drawn. */
  times: number;
  source: number[];
  target: number[];
  chunk: number[];
  /** 1 where it goes over the network between hosts, or between slices. */
  network: number[];
}
