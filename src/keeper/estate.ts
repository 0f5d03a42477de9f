import { closeSync } from 'node:fs';
import type { Line } from './line.ts';
import { longestMessage, type MessageOf, ProtocolError } from './protocol.ts';

/** Everything that must outlive a data path. The descriptors are its own, and closed exactly when they are dropped. */
export interface Estate extends Disposable {
  readonly journal: number;
  readonly mounts: ReadonlyMap<string, HeldMount>;
  readonly sockets: ReadonlyMap<string, HeldSocket>;
  addMount(mount: HeldMount): void;
  dropMount(id: string): boolean;
  hold(socket: HeldSocket): void;
  letGo(id: string): boolean;
  /** Who hears of every change, in the words of the protocol. One at a time. */
  watch(heard: Heard): void;
}

/** The descriptors stay the estate's. */
export type Heard = (
  message: MessageOf<'add' | 'remove' | 'holding' | 'letGo'>,
  descriptors: readonly number[],
) => void;

export interface HeldMount {
  readonly id: string;
  /** For the data path alone; may hold secrets. */
  readonly spec: unknown;
  readonly fd: number;
}

/** A connection to a server. */
export interface HeldSocket {
  readonly id: string;
  readonly about: string;
  readonly fd: number;
}

/** As many as the journal has rows and memory for. */
export const mostMounts = 1024;
const mostSockets = 4096;

export function createEstate(journal: number): Estate {
  const mounts = new Map<string, HeldMount>();
  const sockets = new Map<string, HeldSocket>();
  let isOver = false;
  let heard: Heard = () => undefined;

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
    ...{ journal, mounts, sockets },
    addMount: (mount) => {
      put(mounts, mount);
      heard({ kind: 'add', mounts: [{ mount: mount.id, spec: mount.spec }] }, [mount.fd]);
    },
    dropMount: (id) => {
      const wasThere = take(mounts, id);
      if (wasThere) heard({ kind: 'remove', mount: id }, []);
      return wasThere;
    },
    hold: (socket) => {
      put(sockets, socket);
      heard({ kind: 'holding', sockets: [{ socket: socket.id, about: socket.about }] }, [socket.fd]);
    },
    letGo: (id) => {
      const wasThere = take(sockets, id);
      if (wasThere) heard({ kind: 'letGo', socket: id }, []);
      return wasThere;
    },
    watch: (next) => {
      heard = next;
    },
    [Symbol.dispose]: () => {
      if (isOver) return;
      isOver = true;
      for (const id of [...mounts.keys()]) take(mounts, id);
      for (const id of [...sockets.keys()]) take(sockets, id);
      closeSync(journal);
    },
  };
}

/** Below what the kernel takes in one message, with room for the rest of it. */
const mostTogether = 200;
const longestTogether = longestMessage - 1024;

/** As many messages as it takes. */
export function sendEstate(line: Line, estate: Estate, head: 'everything' | Omit<MessageOf<'serve'>, Counts>): void {
  const counts = { mounts: estate.mounts.size, sockets: estate.sockets.size };
  line.send(head === 'everything' ? { kind: head, ...counts } : { ...head, ...counts }, [estate.journal]);
  const mounts = [...estate.mounts.values()].map(({ id, spec, fd }) => ({ fd, entry: { mount: id, spec } }));
  for (const some of together(mounts))
    line.send(
      { kind: 'add', mounts: some.map(({ entry }) => entry) },
      some.map(({ fd }) => fd),
    );
  const sockets = [...estate.sockets.values()].map(({ id, about, fd }) => ({ fd, entry: { socket: id, about } }));
  for (const some of together(sockets))
    line.send(
      { kind: 'holding', sockets: some.map(({ entry }) => entry) },
      some.map(({ fd }) => fd),
    );
}

type Counts = 'mounts' | 'sockets';

function* together<T extends { readonly entry: unknown }>(all: readonly T[]): Generator<readonly T[]> {
  let some: T[] = [];
  let length = 0;
  for (const each of all) {
    const more = Buffer.byteLength(JSON.stringify(each.entry)) + 1;
    if (some.length === mostTogether || (some.length > 0 && length + more > longestTogether)) {
      yield some;
      [some, length] = [[], 0];
    }
    some.push(each);
    length += more;
  }
  if (some.length > 0) yield some;
}

/** Puts together what `sendEstate` sent. */
export interface Collector extends Disposable {
  /** The estate when it is whole, which is then the caller's. */
  take(message: EstateMessage, descriptors: number[]): Estate | undefined;
}

export type EstateMessage = MessageOf<'serve' | 'everything' | 'add' | 'holding'>;

export function createCollector(): Collector {
  let estate: Estate | undefined;
  let want = { mounts: 0, sockets: 0 };

  function begun(): Estate {
    if (estate === undefined) throw new ProtocolError('mounts came before the journal');
    return estate;
  }

  function put(message: EstateMessage, descriptors: number[]): void {
    const { kind } = message;
    if (kind === 'add') addMounts(begun(), message, descriptors);
    else if (kind === 'holding') holdSockets(begun(), message, descriptors);
    else if (estate !== undefined) throw new ProtocolError('a second journal came');
    else {
      estate = createEstate(descriptors.shift() ?? -1);
      want = message;
    }
  }

  return {
    take: (message, descriptors) => {
      put(message, descriptors);
      if (estate === undefined || estate.mounts.size < want.mounts || estate.sockets.size < want.sockets)
        return undefined;
      const whole = estate;
      estate = undefined;
      return whole;
    },
    [Symbol.dispose]: () => estate?.[Symbol.dispose](),
  };
}

export function addMounts(estate: Estate, { mounts }: MessageOf<'add'>, descriptors: number[]): void {
  if (estate.mounts.size + mounts.length > mostMounts) throw new ProtocolError('too many mounts');
  for (const { mount, spec } of mounts) estate.addMount({ id: mount, spec, fd: descriptors.shift() ?? -1 });
}

export function holdSockets(estate: Estate, { sockets }: MessageOf<'holding'>, descriptors: number[]): void {
  if (estate.sockets.size + sockets.length > mostSockets) throw new ProtocolError('too many sockets');
  for (const { socket, about } of sockets) estate.hold({ id: socket, about, fd: descriptors.shift() ?? -1 });
}
