import { StowageError } from '#core/errors.ts';
import type { Access, Labels, StoreName, Volume } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import { roomForVolumes } from '#core/store-limits.ts';

/** The fields in use of a volume in an agent's answer. An agent is trusted only about its own node, and every answer is validated. */
export type AgentVolume = Pick<Volume, 'id' | 'name' | 'store' | 'bytes' | 'access' | 'labels' | 'createdAt'>;

/** A store as one node has it. */
export interface NodeStore {
  readonly name: string;
  readonly isOpen: boolean;
  /** The identity recorded in the store itself. */
  readonly identity: string | undefined;
  /** Why the store is not open. */
  readonly problem: string | undefined;
  readonly access: readonly Access[];
  readonly volumes: number;
  readonly totalBytes: bigint;
  /** The space for new volumes: the free space of the file system, bounded by the limits of the store. */
  readonly freeBytes: bigint;
}

/** Bounds on what is kept of an agent's answer: a compromised node must not fill the controller's memory. */
const maxText = 1_024;
const maxLabels = 256;
/** More than any cluster has. */
const maxStores = 10_000;

type Answer = Readonly<Record<string, unknown>>;

const modes: readonly Access[] = ['filesystem', 'block'];

const isAnswer = (value: unknown): value is Answer => typeof value === 'object' && value !== null;
const answerIn = (value: unknown): Answer => {
  if (isAnswer(value)) return value;
  throw unexpectedAnswer();
};
const textIn = (answer: Answer, key: string): string => {
  const { [key]: value } = answer;
  if (typeof value === 'string' && value.length <= maxText) return value;
  throw unexpectedAnswer();
};
/** Bounded by what a volume can have. */
function labelsIn({ labels }: Answer): Labels {
  if (!isAnswer(labels)) return {};
  const all = Object.entries(labels);
  const isSmall = all.every(([key, value]) => key.length <= maxText && String(value).length <= maxText);
  if (all.length <= maxLabels && isSmall) return labels as Labels;
  throw unexpectedAnswer();
}
const bytesIn = (answer: Answer, key: string): bigint | undefined => {
  const { [key]: value } = answer;
  return typeof value === 'string' && /^\d{1,20}$/.test(value) ? BigInt(value) : undefined;
};
const identityIn = (value: unknown): string | undefined =>
  typeof value === 'string' && value.length <= maxText ? value : undefined;
const itemsIn = ({ items }: Answer): readonly Answer[] => (Array.isArray(items) ? items.filter(isAnswer) : []);

export const unexpectedAnswer = (): StowageError =>
  new StowageError("the agent's answer does not have the expected form", {
    code: 'internal',
    reason: 'agent-answer',
    action: 'Check that the agents and the controller have the same version.',
  });

export function volumeFrom(value: unknown): AgentVolume {
  const answer = answerIn(value);
  const id = textIn(answer, 'id');
  if (!isVolumeId(id)) throw unexpectedAnswer();
  return {
    id,
    name: textIn(answer, 'name') as Volume['name'],
    store: textIn(answer, 'store') as StoreName,
    bytes: bytesIn(answer, 'bytes'),
    access: answer['access'] === 'block' ? 'block' : 'filesystem',
    labels: labelsIn(answer),
    createdAt: Date.parse(textIn(answer, 'createdAt')),
  };
}

/** A volume that was just created, with the identity of its store. An agent that is too old does not report the identity. */
export interface CreatedAgentVolume {
  readonly volume: AgentVolume;
  readonly identity: string | undefined;
}

export function createdVolumeFrom(value: unknown): CreatedAgentVolume {
  const { storeIdentity } = answerIn(value);
  return { volume: volumeFrom(value), identity: identityIn(storeIdentity) };
}

export interface VolumesPage {
  readonly volumes: readonly AgentVolume[];
  readonly next: string | undefined;
  /** Stores that did not answer; their volumes are listed as last seen. */
  readonly unanswered: readonly string[];
}

export function volumesFrom(value: unknown): VolumesPage {
  const answer = answerIn(value);
  const { next, unanswered } = answer;
  return {
    volumes: itemsIn(answer).map(volumeFrom),
    next: typeof next === 'string' ? next : undefined,
    unanswered: Array.isArray(unanswered) ? unanswered.map(String) : [],
  };
}

/** A store in a list, without the figures that only a check of the store has. */
export type ListedStore = Omit<NodeStore, 'totalBytes' | 'freeBytes'> & {
  readonly kind: string;
  readonly state: string;
  readonly bytes: bigint;
  readonly maxBytes: bigint | undefined;
  readonly maxVolumes: number | undefined;
};

/** Each known store once. */
export function storesFrom(value: unknown, isKnown: (name: string) => boolean): readonly ListedStore[] {
  const items = itemsIn(answerIn(value));
  if (items.length > maxStores) throw unexpectedAnswer();
  const known = items.filter((item) => isKnown(textIn(item, 'name')));
  return [...new Map(known.map((item) => [textIn(item, 'name'), item])).values()].map(storeFrom);
}

const shortened = (text: string): string => text.slice(0, maxText);

export function storeFrom(value: unknown): ListedStore {
  const answer = answerIn(value);
  const { problem, access, volumes, maxVolumes, identity } = answer;
  const state = textIn(answer, 'state');
  return {
    name: textIn(answer, 'name'),
    kind: textIn(answer, 'kind'),
    state,
    isOpen: state === 'open',
    identity: identityIn(identity),
    problem: isAnswer(problem) ? shortened(`${problem['message']}. ${problem['action']}`) : undefined,
    access: Array.isArray(access) ? modes.filter((mode) => access.includes(mode)) : [],
    volumes: typeof volumes === 'number' ? volumes : 0,
    bytes: bytesIn(answer, 'bytes') ?? 0n,
    maxBytes: bytesIn(answer, 'maxBytes'),
    maxVolumes: typeof maxVolumes === 'number' ? maxVolumes : undefined,
  };
}

/** Combines a listed store with the result of its check. */
export function nodeStoreFrom(listed: ListedStore, check: unknown): NodeStore {
  const answer = answerIn(check);
  const steps = Array.isArray(answer['steps']) ? answer['steps'].filter(isAnswer) : [];
  const failed = steps.find(({ ok }) => ok === false);
  const { name, access, identity, volumes } = listed;
  const why = failed && [failed['detail'], failed['action']].filter((text) => typeof text === 'string').join('. ');
  return {
    name,
    access,
    identity,
    volumes,
    isOpen: failed === undefined,
    problem: (why && shortened(why)) ?? (failed === undefined ? undefined : listed.problem),
    totalBytes: bytesIn(answer, 'totalBytes') ?? 0n,
    freeBytes: roomForVolumes(bytesIn(answer, 'freeBytes') ?? 0n, listed, listed),
  };
}
