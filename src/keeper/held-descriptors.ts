import { closeSync } from 'node:fs';
import type { Connection } from './connection.ts';
import { type MessageOf, maxMessageBytes, ProtocolError } from './protocol.ts';

/** Everything that must outlive a data path. Owns its descriptors and closes each one exactly when it is dropped. */
export interface HeldDescriptors extends Disposable {
  readonly journal: number;
  readonly mounts: ReadonlyMap<string, HeldMount>;
  readonly sockets: ReadonlyMap<string, HeldSocket>;
  addMount(mount: HeldMount): void;
  dropMount(id: string): boolean;
  addSocket(socket: HeldSocket): void;
  dropSocket(id: string): boolean;
  /** Registers the only listener for changes, in the protocol's messages. */
  watch(onChange: ChangeListener): void;
}

/** The listener must not close the descriptors. */
export type ChangeListener = (
  message: MessageOf<'add' | 'remove' | 'holding' | 'letGo'>,
  descriptors: readonly number[],
) => void;

export interface HeldMount {
  readonly id: string;
  /** Opaque to the keeper; may contain secrets. */
  readonly spec: unknown;
  readonly fd: number;
}

/** A connection to a server. */
export interface HeldSocket {
  readonly id: string;
  readonly about: string;
  readonly fd: number;
}

/** Limited by the rows and memory of the journal. */
export const maxMounts = 1024;
const maxSockets = 4096;

export function createHeldDescriptors(journal: number): HeldDescriptors {
  const mounts = new Map<string, HeldMount>();
  const sockets = new Map<string, HeldSocket>();
  let isOver = false;
  let onChange: ChangeListener = () => undefined;

  const put = <T extends { readonly id: string; readonly fd: number }>(where: Map<string, T>, what: T): void => {
    take(where, what.id);
    where.set(what.id, what);
  };
  const take = (where: Map<string, { readonly fd: number }>, id: string): boolean => {
    const found = where.get(id);
    if (found !== undefined) closeSync(found.fd);
    return where.delete(id);
  };

  return {
    journal,
    mounts,
    sockets,
    addMount: (mount) => {
      put(mounts, mount);
      onChange({ kind: 'add', mounts: [{ mount: mount.id, spec: mount.spec }] }, [mount.fd]);
    },
    dropMount: (id) => {
      const wasThere = take(mounts, id);
      if (wasThere) onChange({ kind: 'remove', mount: id }, []);
      return wasThere;
    },
    addSocket: (socket) => {
      put(sockets, socket);
      onChange({ kind: 'holding', sockets: [{ socket: socket.id, about: socket.about }] }, [socket.fd]);
    },
    dropSocket: (id) => {
      const wasThere = take(sockets, id);
      if (wasThere) onChange({ kind: 'letGo', socket: id }, []);
      return wasThere;
    },
    watch: (next) => {
      onChange = next;
    },
    [Symbol.dispose]: () => {
      if (isOver) return;
      isOver = true;
      for (const id of Array.from(mounts.keys())) take(mounts, id);
      for (const id of Array.from(sockets.keys())) take(sockets, id);
      closeSync(journal);
    },
  };
}

/** Below the kernel's limits per message, with room for the rest of it. */
const maxBatchCount = 200;
const maxBatchBytes = maxMessageBytes - 1024;

/** Sends everything in as many messages as needed. */
export function sendHeldDescriptors(
  connection: Connection,
  held: HeldDescriptors,
  head: 'everything' | Omit<MessageOf<'serve'>, Counts>,
): void {
  const counts = { mounts: held.mounts.size, sockets: held.sockets.size };
  connection.send(head === 'everything' ? { kind: head, ...counts } : { ...head, ...counts }, [held.journal]);
  const mounts = [...held.mounts.values()].map(({ id, spec, fd }) => ({ fd, entry: { mount: id, spec } }));
  for (const some of batches(mounts))
    connection.send(
      { kind: 'add', mounts: some.map(({ entry }) => entry) },
      some.map(({ fd }) => fd),
    );
  const sockets = [...held.sockets.values()].map(({ id, about, fd }) => ({ fd, entry: { socket: id, about } }));
  for (const some of batches(sockets))
    connection.send(
      { kind: 'holding', sockets: some.map(({ entry }) => entry) },
      some.map(({ fd }) => fd),
    );
}

type Counts = 'mounts' | 'sockets';

function* batches<T extends { readonly entry: unknown }>(all: readonly T[]): Generator<readonly T[]> {
  let some: T[] = [];
  let length = 0;
  for (const each of all) {
    const more = Buffer.byteLength(JSON.stringify(each.entry)) + 1;
    if (some.length === maxBatchCount || (some.length > 0 && length + more > maxBatchBytes)) {
      yield some;
      [some, length] = [[], 0];
    }
    some.push(each);
    length += more;
  }
  if (some.length > 0) yield some;
}

/** Assembles the messages of `sendHeldDescriptors`. */
export interface Collector extends Disposable {
  /** Returns the complete set, which the caller then owns; undefined until it is complete. */
  take(message: HeldDescriptorsMessage, descriptors: number[]): HeldDescriptors | undefined;
}

export type HeldDescriptorsMessage = MessageOf<'serve' | 'everything' | 'add' | 'holding'>;

export function createCollector(): Collector {
  let held: HeldDescriptors | undefined;
  let expected = { mounts: 0, sockets: 0 };

  function started(): HeldDescriptors {
    if (held === undefined) throw new ProtocolError('received mounts before the journal');
    return held;
  }

  function put(message: HeldDescriptorsMessage, descriptors: number[]): void {
    const { kind } = message;
    if (kind === 'add') addMounts(started(), message, descriptors);
    else if (kind === 'holding') holdSockets(started(), message, descriptors);
    else if (held !== undefined) throw new ProtocolError('received a second journal');
    else {
      held = createHeldDescriptors(descriptors.shift() ?? -1);
      expected = message;
    }
  }

  return {
    take: (message, descriptors) => {
      put(message, descriptors);
      if (held === undefined || held.mounts.size < expected.mounts || held.sockets.size < expected.sockets)
        return undefined;
      const whole = held;
      held = undefined;
      return whole;
    },
    [Symbol.dispose]: () => held?.[Symbol.dispose](),
  };
}

export function addMounts(held: HeldDescriptors, { mounts }: MessageOf<'add'>, descriptors: number[]): void {
  if (held.mounts.size + mounts.length > maxMounts) throw new ProtocolError('too many mounts');
  for (const { mount, spec } of mounts) held.addMount({ id: mount, spec, fd: descriptors.shift() ?? -1 });
}

export function holdSockets(held: HeldDescriptors, { sockets }: MessageOf<'holding'>, descriptors: number[]): void {
  if (held.sockets.size + sockets.length > maxSockets) throw new ProtocolError('too many sockets');
  for (const { socket, about } of sockets) held.addSocket({ id: socket, about, fd: descriptors.shift() ?? -1 });
}
