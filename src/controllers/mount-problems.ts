import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { StoreName, VolumeName } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import { handlesOf } from '#core/volume-handles.ts';
import type { Agents } from './agents.ts';
import type { Caches } from './caches.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';

/** The kinds of mount problems, the worst first. `repaired`: remounted; containers that started before still see the dead mount. */
export const mountProblemKinds = ['dead', 'unmounted', 'client-failing', 'store-silent', 'repaired'] as const;
export type MountProblemKind = (typeof mountProblemKinds)[number];

/** A problem of a pod's mount, as the agent of its node reports it. */
export interface MountProblem {
  readonly node: string;
  readonly volume: string;
  /** Every volumeHandle by which a PersistentVolume may refer to the volume. */
  readonly handles: readonly string[];
  /** Empty if unknown. */
  readonly store: string;
  readonly pod: { readonly namespace: string; readonly name: string; readonly uid: string };
  readonly kind: MountProblemKind;
  readonly detail: string;
  /** When the mount was remounted, or zero. */
  readonly repairedAt: number;
}

/**
 * Polls every agent for the problems on its node. It polls instead of subscribing: after a change of leader or a lost connection it would
 * have to poll anyway, and almost every answer is empty.
 */
export interface MountProblems extends Controller {
  /** Looks a volume up by any of its handles. */
  problemsOf(handle: string): readonly MountProblem[];
  all(): Iterable<MountProblem>;
  /** Whether the node's agent is connected and its last two answers agree. */
  isConfirmed(node: string): boolean;
  /** Calls back with the volumes whose problems changed, each by all of its handles. */
  onChange(changed: (handles: ReadonlySet<string>) => void): void;
}

export interface MountProblemsOptions {
  readonly agents: Agents;
  readonly caches: Pick<Caches, 'nodes'>;
  readonly clock: Clock;
  readonly random?: () => number;
}

/** A problem is reported after a minute at most, after half a minute on average. */
const confirmedIntervalMs = 30_000;
/**
 * The interval after an answer that differs from the previous one: the problem may be transient, such as a server restart or an unmount.
 */
const unconfirmedIntervalMs = 10_000;
const requestTimeoutMs = 15_000;
const maxProblemsPerNode = 2_000;
const maxDetailLength = 300;

interface NodeReport {
  /** The problems in the last answer. */
  readonly lastKeys: ReadonlySet<string>;
  /** The problems in the last two answers. */
  readonly problems: readonly MountProblem[];
  /** Whether both answers had the same problems. */
  readonly isConfirmed: boolean;
}

export function createMountProblems({
  agents,
  caches,
  clock,
  random = Math.random,
}: MountProblemsOptions): MountProblems {
  const reports = new Map<string, NodeReport>();
  const listeners = new Set<(handles: ReadonlySet<string>) => void>();
  let byHandle: ReadonlyMap<string, readonly MountProblem[]> | undefined;

  function setReport(node: string, report: NodeReport | undefined): void {
    const before = reports.get(node)?.problems ?? [];
    if (report === undefined) reports.delete(node);
    else reports.set(node, report);
    byHandle = undefined;
    const [keysBefore, keysNow] = [new Map(before.map(entryOf)), new Map((report?.problems ?? []).map(entryOf))];
    const changed = new Set([
      ...before.filter((one) => !keysNow.has(keyOf(one))).flatMap(({ handles }) => handles),
      ...(report?.problems ?? []).filter((one) => !keysBefore.has(keyOf(one))).flatMap(({ handles }) => handles),
    ]);
    if (changed.size > 0) for (const listener of listeners) listener(changed);
  }

  async function reconcile(node: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    if (caches.nodes.get(node) === undefined) {
      setReport(node, undefined);
      return done;
    }
    // Keep the last report: the state of the mounts is unknown while the agent is disconnected.
    if (!agents.nodes().includes(node)) return done;
    let found: readonly MountProblem[];
    try {
      const request = { method: 'GET', path: '/v1/troubles', deadlineMs: requestTimeoutMs } as const;
      found = problemsIn(node, await agents.call(node, request, scope));
    } catch (thrown) {
      if (stowageError(thrown).reason === 'agent-absent') return done;
      throw thrown;
    }
    const before = reports.get(node)?.lastKeys ?? new Set();
    const repeated = found.filter((one) => before.has(keyOf(one)));
    const isConfirmed = repeated.length === found.length;
    setReport(node, { lastKeys: new Set(found.map(keyOf)), problems: repeated, isConfirmed });
    return requeueAfter((isConfirmed ? confirmedIntervalMs : unconfirmedIntervalMs) * (0.75 + random() / 2));
  }

  const controller = createController({
    name: 'health-looks',
    clock,
    reconcile,
    workers: 16,
    maxRetryMs: 2 * confirmedIntervalMs,
    // An agent that does not answer must not delay other agents.
    groupOf: (node) => node,
  });
  controller.follow(caches.nodes, () => []);
  caches.nodes.on({ deleted: ({ metadata: { name = '' } }) => controller.add(name) });
  agents.follow((node) => controller.add(node));
  for (const node of agents.nodes()) controller.add(node);
  return {
    ...controller,
    problemsOf: (handle) => {
      byHandle ??= groupByHandle(all());
      return byHandle.get(handle) ?? [];
    },
    all,
    isConfirmed: (node) => reports.get(node)?.isConfirmed === true && agents.nodes().includes(node),
    onChange: (changed) => void listeners.add(changed),
  };

  function* all(): Generator<MountProblem, void, undefined> {
    for (const { problems } of reports.values()) yield* problems;
  }
}

function groupByHandle(all: Iterable<MountProblem>): ReadonlyMap<string, readonly MountProblem[]> {
  const pairs = [...all].flatMap((problem) => problem.handles.map((handle) => ({ handle, problem })));
  const groups = Map.groupBy(pairs, ({ handle }) => handle);
  return new Map(Array.from(groups, ([handle, those]) => [handle, those.map(({ problem }) => problem)]));
}

const keyOf = ({ volume, pod, kind, detail, repairedAt }: MountProblem): string =>
  JSON.stringify([volume, pod.uid, kind, detail, repairedAt]);
const entryOf = (problem: MountProblem): readonly [string, MountProblem] => [keyOf(problem), problem];

type Answer = Readonly<Record<string, unknown>>;
const isAnswer = (value: unknown): value is Answer => typeof value === 'object' && value !== null;
const textIn = (value: unknown): string => (typeof value === 'string' ? value : '');

/** Returns only the problems of pods: other mounts of the node do not concern the cluster. An agent is trusted only about its own node. */
function problemsIn(node: string, answer: unknown): readonly MountProblem[] {
  const items: readonly unknown[] = isAnswer(answer) && Array.isArray(answer['items']) ? answer['items'] : [];
  return items.slice(0, maxProblemsPerNode).flatMap((item) => {
    if (!isAnswer(item) || !isAnswer(item['user'])) return [];
    const pod = podFrom(textIn(item['user']['kind']), textIn(item['user']['name']), textIn(item['target']));
    const volume = textIn(item['volume']);
    if (pod === undefined || !isVolumeId(volume)) return [];
    const repairedAt = Date.parse(textIn(item['repairedAt'])) || 0;
    const condition = textIn(item['condition']);
    const kind = mountProblemKinds.find((one) => one === condition) ?? (repairedAt > 0 ? 'repaired' : undefined);
    if (kind === undefined) return [];
    const [store = '', name = ''] = textIn(item['name']).split('/');
    const handles = handlesOf({ id: volume, store: store as StoreName, name: name as VolumeName });
    return [
      { node, volume, handles, store, pod, kind, detail: textIn(item['detail']).slice(0, maxDetailLength), repairedAt },
    ];
  });
}

/** The pod's uid is in the path that the kubelet chose: in a path below `pods/`, or as the last part of the path of a block device. */
function podFrom(kind: string, name: string, target: string): MountProblem['pod'] | undefined {
  const [, namespace, podName] = /^([^/]+)\/([^/]+)$/.exec(name) ?? [];
  const uuid = '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}';
  const [, inPods, ofDevice] = new RegExp(`/pods/(${uuid})/|/publish/[^/]+/(${uuid})$`).exec(target) ?? [];
  const uid = inPods ?? ofDevice;
  if (kind !== 'pod' || namespace === undefined || podName === undefined || uid === undefined) return undefined;
  return { namespace, name: podName, uid };
}
