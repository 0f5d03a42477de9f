/**
 * What agents, keepers and data paths say to each other: one JSON text per message, with the descriptors that belong to
 * it. A `spec` may hold secrets: no message, and no part of one, ever goes into a log or an error.
 */

/** Counted up when an older peer would misunderstand. A field that is added needs no new version. */
const protocolVersion = 1;

/** Of a message. A socket's buffer takes three times as much. */
export const longestMessage = 64 * 1024;
/** Of a spec, as JSON. */
export const longestSpec = 32 * 1024;
const longestText = 16 * 1024;
const longestName = 255;

type Check<T> = (value: unknown) => value is T;
type Checked<C> = C extends Check<infer T> ? T : never;

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const text =
  (from: number, to: number): Check<string> =>
  (value): value is string =>
    typeof value === 'string' && value.length >= from && value.length <= to;
const flag: Check<boolean> = (value) => typeof value === 'boolean';
const count: Check<number> = (value): value is number => Number.isSafeInteger(value) && Number(value) >= 0;
const json: Check<unknown> = (value): value is unknown => value !== undefined;
const oneOf =
  <const T extends readonly string[]>(...words: T): Check<T[number]> =>
  (value): value is T[number] =>
    words.includes(value as string);
const list =
  <T>(each: Check<T>): Check<readonly T[]> =>
  (value): value is readonly T[] =>
    Array.isArray(value) && value.every(each);
const nullable =
  <T>(check: Check<T>): Check<T | null> =>
  (value): value is T | null =>
    value === null || check(value);
/** Of a field that older peers do not know. */
const optional =
  <T>(check: Check<T>): Check<T | undefined> =>
  (value): value is T | undefined =>
    value === undefined || check(value);
type Shape = Readonly<Record<string, Check<unknown>>>;
type Shaped<S extends Shape> = { readonly [F in keyof S]: Checked<S[F]> };
const shaped =
  <S extends Shape>(shape: S): Check<Shaped<S>> =>
  (value): value is Shaped<S> =>
    isObject(value) && Object.entries(shape).every(([name, check]) => check(value[name]));

const name = text(1, longestName);
const anyText = text(0, longestText);

const worker = shaped({ pid: count, version: name, ready: flag });
const state = shaped({
  /** settling: waits for a data path that is known to live. idle: has no mounts. failing: data paths die too often. */
  doing: oneOf('settling', 'idle', 'serving', 'taking over', 'failing', 'moving'),
  active: nullable(worker),
  standby: nullable(worker),
  mounts: count,
  sockets: count,
  /** How often a data path was replaced by another. */
  takeovers: count,
  /** Data paths that died within the last minute. */
  deaths: count,
  report: anyText,
  /** It knows `copies` and `restore`. */
  shares: optional(flag),
  /** What serves was started by the keeper before, perhaps in another container, and ends with that. */
  isBorrowed: optional(flag),
});
export type KeeperState = Checked<typeof state>;

/** `ask` is the asker's own number, and comes back with the answer. */
const shapes = {
  /** First on each connection. A data path sends a descriptor of its own process along. */
  hello: { role: oneOf('agent', 'keeper', 'data path'), pid: count, version: name },

  // From an agent.
  /** With the descriptor of /dev/fuse. */
  adopt: { ask: count, mount: name, spec: json },
  drop: { ask: count, mount: name },
  /** Also to a data path, with numbers of the keeper: put on the server's disk what is not there yet, within this time. */
  flush: { ask: count, mount: name, ms: count },
  list: { ask: count, after: text(0, longestName) },
  status: { ask: count },
  /** The program that data paths are from now on: its path. */
  upgrade: { ask: count, program: text(1, 4096) },
  end: { ask: count },
  /** Everything that the keeper holds, now and whenever it changes: a second holder (`descriptor-copies.ts`). */
  copies: { ask: count },
  /** After everything that belongs to it: what an earlier keeper held, for one that has nothing. */
  restore: { ask: count },

  /** Also from a data path: so many files are not whole on the server's disk. */
  flushed: { ask: count, files: count },

  // To an agent. `failed` also answers what could not be understood (ask 0), whoever sent it.
  done: { ask: count },
  failed: { ask: count, reason: name, text: anyText },
  listed: { ask: count, mounts: list(name), more: flag },
  /** Also without being asked, when it changes (ask 0). */
  state: { ask: count, state },

  // Everything that a keeper holds: the journal with the first message, then mounts and sockets until the counts are full.
  /** To a data path. `path` is where it finds a keeper when this one is gone. */
  serve: { as: oneOf('first', 'successor'), path: text(1, 4096), mounts: count, sockets: count },
  /** To a keeper: from a data path that serves, from the keeper before, or from an agent that has copies. To an agent: copies. */
  everything: { mounts: count, sockets: count },
  add: { mounts: list(shaped({ mount: name, spec: json })) },
  /** Sockets to servers. From a data path also later, one by one. */
  holding: { sockets: list(shaped({ socket: name, about: text(0, longestName) })) },

  // To a data path. `remove` also to an agent that has copies.
  remove: { mount: name },
  /** At the next boundary between requests: give up everything and say `stopped`. */
  stop: {},
  /** Make yourself known to the keeper there, too. */
  moveTo: { path: text(1, 4096) },
  /** To one that has given everything. */
  welcome: {},
  refused: { reason: name },

  // From a data path.
  ready: {},
  stopped: {},
  /** Also to an agent that has copies. */
  letGo: { socket: name },
  /** The kernel has ended it: it was unmounted everywhere, or its connection was cut. */
  /** unserved: this data path cannot serve it; another one may. */
  ended: { mount: name, unserved: optional(flag) },
  report: { text: anyText },

  // Between keepers: `handover`, then everything arrives (from the data path that was told to move, or from the old keeper),
  // then `taking`, and with `yours` the new one is in charge and the old one is not.
  handover: { path: text(1, 4096) },
  taking: {},
  yours: {},
} as const satisfies Readonly<Record<string, Shape>>;

type Shapes = typeof shapes;
export type Kind = keyof Shapes;
export type MessageOf<K extends Kind> = { [P in K]: { readonly kind: P } & Shaped<Shapes[P]> }[K];
export type Message = MessageOf<Kind>;

/** How many descriptors belong to a message. */
function descriptorCount(message: Message): number {
  switch (message.kind) {
    case 'hello':
      return message.role === 'data path' ? 1 : 0;
    case 'adopt':
    case 'serve':
    case 'everything':
      return 1;
    case 'add':
      return message.mounts.length;
    case 'holding':
      return message.sockets.length;
    default:
      return 0;
  }
}

/** Says what is wrong, never what was in it. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
}

export function encode(message: Message): Buffer {
  const bytes = Buffer.from(JSON.stringify({ v: protocolVersion, ...message }));
  if (bytes.length > longestMessage) throw new ProtocolError(`a message (${message.kind}) is too long`);
  return bytes;
}

export function decode(bytes: Buffer, descriptors: number): Message {
  if (bytes.length > longestMessage) throw new ProtocolError('a message is too long');
  const value = parsed(bytes);
  if (!isObject(value)) throw new ProtocolError('a message is no JSON object');
  if (value['v'] !== protocolVersion) throw new ProtocolError(`a message is not of version ${protocolVersion}`);
  const { kind } = value;
  if (typeof kind !== 'string' || !Object.hasOwn(shapes, kind))
    throw new ProtocolError('a message is of no known kind');
  if (!shaped(shapes[kind as Kind])(value)) throw new ProtocolError(`a message (${kind}) lacks what belongs to it`);
  const message = value as unknown as Message;
  if (descriptorCount(message) !== descriptors)
    throw new ProtocolError(`a message (${kind}) came with ${descriptors} descriptors`);
  return message;
}

function parsed(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString());
  } catch {
    // The cause would quote the text.
    return undefined;
  }
}

/** What a keeper answers that could not do what it was asked. */
export class KeeperError extends Error {
  override readonly name = 'KeeperError';
  readonly reason: string;
  constructor(reason: string, message: string, cause?: unknown) {
    super(message, cause === undefined ? {} : { cause });
    this.reason = reason;
  }
}

/** Of a process that hangs and cannot be killed: the kernel lets nobody do that from one container to another. */
export const outOfReach = (what: string): KeeperError =>
  new KeeperError('out-of-reach', `${what}, and cannot be ended from here: it runs in another container`);
