// How a collective moves its data: `movements_view.py`.

/** What was asked to be played, by its key: stage and number of a collective. */
export type Movements = Record<string, Played>;

export interface Played {
  data: MovementData | null;
  /** Why there is none. */
  error: string;
}

export interface MovementData {
  kind: string;
  /** What stands before the mesh axes, and after them. */
  title: string[];
  /** The mesh axes that it runs over, and the number of each in the mesh. */
  axes: [name: string, number: number][];
  facts: string;
  /** What is said before the first step. */
  before: string;
  /** What is said instead of a drawing, of a large group; of that nothing below is listed. */
  lines: string[];
  devices: number[];
  hosts: number[];
  /** The column and the row of each device. */
  cells: [column: number, row: number][];
  /** What each is called. */
  chunks: string[];
  contributors: number;
  /** By device the chunks it has; null where every device has all. */
  start: number[][] | null;
  steps: MovementStep[];
}

export interface MovementStep {
  words: string;
  /** The bytes of this step and of all until then, in words. */
  sent: string;
  /** The number of the mesh axis along which it sends; -1 for several. */
  axis: number;
  adds: boolean;
  keeps: boolean;
  sends: Send[];
}

/** What goes from one device to another; 1 where over the network between hosts or slices. */
export type Send = [source: number, target: number, network: number, chunks: number[]];
