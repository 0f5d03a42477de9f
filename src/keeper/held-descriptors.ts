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
  let isDisposed = false;
  let onChange: ChangeListener = () => undefined;

  const put = <T extends { readonly id: string; readonly fd: number }>(map: Map<string, T>, entry: T): void => {
    closeAndDelete(map, entry.id);
    map.set(entry.id, entry);
  };
  const closeAndDelete = (map: Map<string, { readonly fd: number }>, id: string): boolean => {
    const found = map.get(id);
    if (found !== undefined) closeSync(found.fd);
    return map.delete(id);
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
      const existed = closeAndDelete(mounts, id);
      if (existed) onChange({ kind: 'remove', mount: id }, []);
      return existed;
    },
    addSocket: (socket) => {
      put(sockets, socket);
      onChange({ kind: 'holding', sockets: [{ socket: socket.id, about: socket.about }] }, [socket.fd]);
    },
    dropSocket: (id) => {
      const existed = closeAndDelete(sockets, id);
      if (existed) onChange({ kind: 'letGo', socket: id }, []);
      return existed;
    },
    watch: (next) => {
      onChange = next;
    },
    [Symbol.dispose]: () => {
      if (isDisposed) return;
      isDisposed = true;
      for (const id of Array.from(mounts.keys())) closeAndDelete(mounts, id);
      for (const id of Array.from(sockets.keys())) closeAndDelete(sockets, id);
      closeSync(journal);
    },
  };
}

/** Below the kernel's limits per message, with room for the other fields. */
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
  for (const batch of batches(mounts))
    connection.send(
      { kind: 'add', mounts: batch.map(({ entry }) => entry) },
      batch.map(({ fd }) => fd),
    );
  const sockets = [...held.sockets.values()].map(({ id, about, fd }) => ({ fd, entry: { socket: id, about } }));
  for (const batch of batches(sockets))
    connection.send(
      { kind: 'holding', sockets: batch.map(({ entry }) => entry) },
      batch.map(({ fd }) => fd),
    );
}

type Counts = 'mounts' | 'sockets';

function* batches<T extends { readonly entry: unknown }>(all: readonly T[]): Generator<readonly T[]> {
  let batch: T[] = [];
  let length = 0;
  for (const item of all) {
    const itemBytes = Buffer.byteLength(JSON.stringify(item.entry)) + 1;
    if (batch.length === maxBatchCount || (batch.length > 0 && length + itemBytes > maxBatchBytes)) {
      yield batch;
      [batch, length] = [[], 0];
    }
    batch.push(item);
    length += itemBytes;
  }
  if (batch.length > 0) yield batch;
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

  function requireJournal(): HeldDescriptors {
    if (held === undefined) throw new ProtocolError('received mounts before the journal');
    return held;
  }

  function addMessage(message: HeldDescriptorsMessage, descriptors: number[]): void {
    const { kind } = message;
    if (kind === 'add') addMounts(requireJournal(), message, descriptors);
    else if (kind === 'holding') holdSockets(requireJournal(), message, descriptors);
    else if (held !== undefined) throw new ProtocolError('received a second journal');
    else {
      held = createHeldDescriptors(descriptors.shift() ?? -1);
      expected = message;
    }
  }

  return {
    take: (message, descriptors) => {
      addMessage(message, descriptors);
      if (held === undefined || held.mounts.size < expected.mounts || held.sockets.size < expected.sockets)
        return undefined;
      const complete = held;
      held = undefined;
      return complete;
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
