// What the modules of the pages hand each other, and what the API answers as far as they use it. For `tsc` alone.

type Json = any;
type Child = Node | string | null | undefined;
type Query = Record<string, string | number | boolean | null | undefined>;
/** What a view shows that is live by itself; `close` ends its connection. */
interface Going { nodes: Child[]; close: () => void }
type View = ((r: Route) => Promise<Child[] | Going>) & { still?: boolean };
/** `none`: what stands for no choice, in place of "any". */
type Field = [name: string, text: string, options?: string[] | string, none?: string];

/** What the address names. */
interface Route { id: string; view: string; rest: string[]; query: URLSearchParams }

interface Page<T> { items: T[]; total: number; offset: number; limit: number }

interface StoredError { node: string; error: string; error_class: string; at: number }

interface Listed {
  id: string; status: string; error: StoredError | null; since: number | null; behind: number; waiting: number | null;
  age: number; deadline: number | null; slowest: { id: string; age: number; deadline: number | null } | null; late: string[]; stopped: string[]; down: string[]; dead: number; recent: number[];
}
interface Summary { at: number; pipelines: number; attention: number; recent: number[] }

interface ShownProcessor { id: string; plugin: string }
interface Graph {
  pipeline: string; dag_id: string;
  sources: { id: string; plugin: string; processors: ShownProcessor[] }[];
  processors: ShownProcessor[];
  destinations: { id: string; plugin: string; pipe: string; filters: number; processors: ShownProcessor[] }[];
}

interface Breaker { opened: number; since: number | null; until: number | null; left: number; failures: number; error: string }
type Work = "at work" | "waits" | "none";
/** `acked` is null where it has more `parts` than are streamed. */
interface ShownSource {
  id: string; read: number; done: number; filtered: number; nacked: number; work: Work; parts: number; acked: Record<string, Json> | null;
  task_id: string;
}
interface ShownDestination {
  id: string; status: string; cursor: number; lag: { records: number; bytes: number; age: number }; delivered: number; retried: number;
  done: number; work: Work; dead: number; parked_keys: number; breaker: Breaker | null;
  outage: Outage | null; task_id: string;
}
/** The task that holds a lease, as far as its owner tells it, and the user may see its DAG. */
interface NamedTask { dag_id: string; run_id: string; task_id: string | null }
type Held = NamedTask | { dag_id: null; run_id: null; task_id: null };
/** Why a destination does not take what it is sent, and who met that last. */
type Outage = Held & { error: string; since: number; at: number };
/** How much of a stage is done; of an open micro-batch nobody knows what is to be delivered. */
interface Done { done: number; of: number }
interface Front {
  number: number; state: "open" | "sealed" | "done"; records: number | null; after: number; failed: "read" | "processed" | "sealed" | null; read: Done; processed: Done | null; sealed: Done;
  delivered: Record<string, Done | { done: number | null; of: null }>; acked: Done;
}
interface Bottleneck { node: string; rule: string; why: string; waiting: string[] }
interface Shown {
  at: number; pipeline: string; dag_id: string; status: string; description: string; lost: string | null; error: StoredError | null;
  isolate: boolean; recovering: { node: string; failures: number }[]; sealed: number; held: boolean; holders: Record<string, Held | undefined>;
  front: Front | null; bottleneck: Bottleneck | null; sources: ShownSource[]; processors: { done: number; work: Work } | null;
  destinations: ShownDestination[];
}
/** All that a look tells, and what differs in the next one; of sources and destinations only those that do. */
interface Live extends Shown { graph: Graph }
interface News extends Partial<Shown> { at: number; graph?: undefined }
/** Records per second of a node; null: nobody knows yet. */
type RateOf = (node: string) => number | null;
/** A part of a page, and what shows a look in it. */
interface Part { node: HTMLElement; show: (p: Live, rateOf: RateOf) => void }
/** What stands in a cell of a live table; a function fills the cell. */
type Cell = string | number | HTMLElement | ((cell: HTMLElement) => void);

interface ShownMicroBatch {
  number: number; state: string; missing?: string[]; records?: number; bytes?: number; sealed_at?: number | null;
  destinations: Record<string, { delivered: boolean; confirmed: number | null }>;
}

type Figures = (number | null)[];
type Interval = [from: number, to: number] | null;
interface Series {
  times: number[]; step: number; at: number; total: { read: number[] }; outcomes: Record<string, number[]>;
  destinations: Record<string, Record<string, Figures> | undefined>;
}
interface Charts { node: HTMLElement; set: (curves: Series) => void }

interface Line { label: string; color: number; dash?: number; step?: boolean }
interface Plotted {
  id: string; title: string; lines: Line[]; format?: (n: number) => string; steps?: number[]; stacked?: boolean;
  zoom: (to: Interval) => void; pick?: (at: number) => void;
}

interface Letter {
  destination: string; epoch: number; micro_batch: number; seq: number; ord: number; id: string; node: string; error_class: string;
  error: string; attempts: number; at: string; key: string | null; connector: string; partition: string; record: Json;
}
interface Log { dag: string; run: string; task: string; map_index: number; try: number }
interface Issue {
  id: string; kind: "dead letters" | "task"; state: string; node: string; error_class: string; shape: string; count: number; first: string;
  last: string; succeeded: string | null; log: Log | null; sample: { error: string }; keys: string[]; affected: number;
  days: Record<string, number>; decision: { state: string; by: string; until: number | null } | null; advice: string;
}

/** The issues of all pipelines that somebody may see; `beyond`: more than can be paged; `unread`: pipeline → why. */
interface AllIssues extends Page<Issue & { pipeline: string }> {
  beyond: number; open: number; pipelines: number; withheld: number; unread: Record<string, string>; pending: number; files: number;
}

/** A redrive that was asked for here. `query`: its filters; `until`: its letters are older; `since`: when it was asked for; `stuck`: letters that cannot go. */
interface Sending { query: Query; until: string; since: string; letters: number; stuck: number; dag: string; run: string }

interface Peeked {
  micro_batch: number; seq: number | null; id: string; place: string; state: string | null; record: Json;
  error?: { node: string; class: string; message: string } | null; sent?: { records: Json[]; left_out: string[] } | null; steps: Step[] | null;
  answer?: { outcome: string; ended: string; run: string; exact: boolean; error_class: string | null; error: string | null } | null;
}

/** A place in the file. */
interface At { line: number; column: number }
interface Fault { key: string; expression: string; line: number | null; column: number | null }
interface Step {
  step: string; node: string; processor?: string; plugin?: string; outcome: string; why?: string; error_class?: string; error?: string;
  place?: At | null; fault?: Fault | null; before: Json[]; after: Json[]; before_count?: number; after_count?: number;
  filters: { filter: Json; matches: boolean; error?: string | null; attributes: Record<string, Json> }[];
}
interface Tried {
  error: string | null; steps: Step[]; cut: boolean; findings: (At & { severity: string; code: string; message: string })[];
}

interface WayStep {
  step: string; node: string; began: number | null; ended: number | null; outcome: string | null; exact: boolean; status: string | null;
  error_class: string | null; error: string | null; sends: number | null; retried: number | null; epoch: number | null; run: string | null;
}
interface Place {
  micro_batch: number; seq: number; ord: number; id: string; source: string; partition: string; state: string; steps: WayStep[]; notes: string[];
  targets: { destination: string; attempts: number; outcome: string; error_class: string | null; seconds: number | null }[];
}
interface Searched { left: number; more: boolean; searched: { micro_batches: number; records: number } }

interface Replayed {
  dag_id: string; run_id: string; state: string; dry_run: boolean; from: string; to: string; what: string; destinations: string[];
  found: { read?: number; would?: Record<string, number> } | null;
  sent: Record<string, { delivered: number; dead: number; filtered: number }>;
}
