import { isJsonObject, jsonIn } from '#base/json.ts';

/**
 * Messages between agents, keepers and data paths: one JSON text per message, plus its descriptors. A `spec` may
 * contain secrets: no part of a message may go into a log or an error.
 */

/** Raised when an older peer would misunderstand. Adding a field needs no new version. */
const protocolVersion = 1;

/** Limit of a message. A socket's buffer holds three times as much. */
export const maxMessageBytes = 64 * 1024;
/** Limit of a spec, as JSON. */
export const maxSpecBytes = 32 * 1024;
const maxTextLength = 16 * 1024;
const maxNameLength = 255;

type Check<T> = (value: unknown) => value is T;
type Checked<C> = C extends Check<infer T> ? T : never;

const text =
  (minLength: number, maxLength: number): Check<string> =>
  (value): value is string =>
    typeof value === 'string' && value.length >= minLength && value.length <= maxLength;
const flag: Check<boolean> = (value) => typeof value === 'boolean';
const count: Check<number> = (value): value is number => Number.isSafeInteger(value) && Number(value) >= 0;
const json: Check<unknown> = (value): value is unknown => value !== undefined;
const oneOf =
  <const T extends readonly string[]>(...words: T): Check<T[number]> =>
  (value): value is T[number] =>
    words.includes(value as string);
const list =
  <T>(isElement: Check<T>): Check<readonly T[]> =>
  (value): value is readonly T[] =>
    Array.isArray(value) && value.every(isElement);
const nullable =
  <T>(check: Check<T>): Check<T | null> =>
  (value): value is T | null =>
    value === null || check(value);
/** For fields that older peers do not send. */
const optional =
  <T>(check: Check<T>): Check<T | undefined> =>
  (value): value is T | undefined =>
    value === undefined || check(value);
type Shape = Readonly<Record<string, Check<unknown>>>;
type Shaped<S extends Shape> = { readonly [F in keyof S]: Checked<S[F]> };
const shaped =
  <S extends Shape>(shape: S): Check<Shaped<S>> =>
  (value): value is Shaped<S> =>
    isJsonObject(value) && Object.entries(shape).every(([name, check]) => check(value[name]));

const name = text(1, maxNameLength);
const anyText = text(0, maxTextLength);

const worker = shaped({ pid: count, version: name, ready: flag });
const state = shaped({
  /** settling: waits for a data path known to be alive. idle: has no mounts. failing: data paths die too often. */
  doing: oneOf('settling', 'idle', 'serving', 'taking over', 'failing', 'moving'),
  active: nullable(worker),
  standby: nullable(worker),
  mounts: count,
  sockets: count,
  /** Number of times that a data path was replaced. */
  takeovers: count,
  /** Number of data paths that died in the last minute. */
  deaths: count,
  report: anyText,
  /** Supports `copies` and `restore`. */
  shares: optional(flag),
  /** The serving data path was started by the previous keeper, perhaps in another container, and ends with it. */
  isBorrowed: optional(flag),
});
export type KeeperState = Checked<typeof state>;

/** `ask` is the requester's own number; the reply repeats it. */
const shapes = {
  /** First message on each connection. A data path sends a pidfd of itself along. */
  hello: { role: oneOf('agent', 'keeper', 'data path'), pid: count, version: name },

  // From an agent.
  /** With the descriptor of /dev/fuse. */
  adopt: { ask: count, mount: name, spec: json },
  drop: { ask: count, mount: name },
  /**
   * Commit unwritten data on the server within this time. The keeper forwards it to the data path with its own numbers.
   */
  flush: { ask: count, mount: name, ms: count },
  list: { ask: count, after: text(0, maxNameLength) },
  status: { ask: count },
  /** The path of the program to run as data path from now on. */
  upgrade: { ask: count, program: text(1, 4096) },
  end: { ask: count },
  /** Requests everything the keeper holds, now and at every change (`descriptor-copies.ts`). */
  copies: { ask: count },
  /** Follows a full transfer: restores what an earlier keeper held into one that holds nothing. */
  restore: { ask: count },

  /** Number of files still incomplete on the server. Also sent by a data path. */
  flushed: { ask: count, files: count },

  // To an agent. `failed` with ask 0 rejects a message that was not understood, from any peer.
  done: { ask: count },
  failed: { ask: count, reason: name, text: anyText },
  listed: { ask: count, mounts: list(name), more: flag },
  /** Also sent without a request after each change (ask 0). */
  state: { ask: count, state },

  // Full transfer: the journal with the first message, then mounts and sockets until the counts are reached.
  /** To a data path. `path` is where to find a keeper when this one is gone. */
  serve: { as: oneOf('first', 'successor'), path: text(1, 4096), mounts: count, sockets: count },
  /** To a keeper: from a serving data path, the previous keeper, or an agent with copies. To an agent: copies. */
  everything: { mounts: count, sockets: count },
  add: { mounts: list(shaped({ mount: name, spec: json })) },
  /** Sockets to servers. A data path also sends later ones, one by one. */
  holding: { sockets: list(shaped({ socket: name, about: text(0, maxNameLength) })) },

  // To a data path. `remove` also goes to agents with copies.
  remove: { mount: name },
  /** Stop at the next boundary between requests and reply `stopped`. */
  stop: {},
  /** Transfer everything to the keeper at this path, too. */
  moveTo: { path: text(1, 4096) },
  /** Accepts a data path that has transferred everything. */
  welcome: {},
  refused: { reason: name },

  // From a data path.
  ready: {},
  stopped: {},
  /** Also sent to agents with copies. */
  letGo: { socket: name },
  /** The kernel has ended the mount: it was unmounted everywhere, or its connection was aborted. */
  /** unserved: this data path cannot serve the mount; another one may. */
  ended: { mount: name, unserved: optional(flag) },
  report: { text: anyText },

  // Between keepers: `handover`, then a full transfer (from the data path that the old keeper told to move, or from the
  // old keeper), then `taking`; with `yours` the new keeper is in charge and the old one is not.
  handover: { path: text(1, 4096) },
  taking: {},
  yours: {},
} as const satisfies Readonly<Record<string, Shape>>;

type Shapes = typeof shapes;
export type Kind = keyof Shapes;
export type MessageOf<K extends Kind> = { [P in K]: { readonly kind: P } & Shaped<Shapes[P]> }[K];
export type Message = MessageOf<Kind>;

/** The number of descriptors that a message carries. */
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

/** Describes the fault, never the content of a message. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
}

export function encode(message: Message): Buffer {
  const bytes = Buffer.from(JSON.stringify({ v: protocolVersion, ...message }));
  if (bytes.length > maxMessageBytes) throw new ProtocolError(`a message (${message.kind}) is too long`);
  return bytes;
}

export function decode(bytes: Buffer, descriptors: number): Message {
  if (bytes.length > maxMessageBytes) throw new ProtocolError('a message is too long');
  const value = jsonIn(bytes.toString());
  if (!isJsonObject(value)) throw new ProtocolError('a message is not a JSON object');
  if (value['v'] !== protocolVersion) throw new ProtocolError(`a message is not of version ${protocolVersion}`);
  const { kind } = value;
  if (typeof kind !== 'string' || !Object.hasOwn(shapes, kind))
    throw new ProtocolError('a message is of an unknown kind');
  if (!shaped(shapes[kind as Kind])(value))
    throw new ProtocolError(`a message (${kind}) has missing or invalid fields`);
  const message = value as unknown as Message;
  if (descriptorCount(message) !== descriptors)
    throw new ProtocolError(`a message (${kind}) came with ${descriptors} descriptors`);
  return message;
}

/** A keeper's error reply. */
export class KeeperError extends Error {
  override readonly name = 'KeeperError';
  readonly reason: string;
  constructor(reason: string, message: string, cause?: unknown) {
    super(message, cause === undefined ? {} : { cause });
    this.reason = reason;
  }
}

/** For a process that hangs and cannot be killed: the kernel permits no kill from one container to another. */
export const outOfReach = (what: string): KeeperError =>
  new KeeperError('out-of-reach', `${what}, and cannot be killed from here: it runs in another container`);
