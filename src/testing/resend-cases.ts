import { deepEqual, equal, ok } from 'node:assert/strict';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { create, link, mkdir, remove, rename, rmdir, setattr, symlink, write } from '#wire/nfs3/procedures.ts';
import { type FileHandle, stability } from '#wire/nfs3/structures.ts';
import type { ReplayingProxy } from './replaying-proxy.ts';

/**
 * The sequences of docs/designs/nfs-resends.md. The tests run them on our own server and nfs-ganesha, and e2e/qemu/linux-nfsd.ts
 * on a Linux nfsd. They throw if the result on the server's disk is wrong.
 */

/** A folder on a server, node A which reaches it through a proxy, and node B which reaches it directly. */
export interface Nodes {
  readonly proxy: ReplayingProxy;
  readonly a: NfsClient;
  readonly b: NfsClient;
  /** An empty directory, as clients know it and on the server's disk. */
  readonly directory: FileHandle;
  readonly folder: string;
  /** Another directory, for the file by which node A learns the server's write verifier. */
  readonly witnesses: FileHandle;
}

interface Prepared {
  /** Node A does it, once. */
  byA(): Promise<unknown>;
  /** Node B changes the result afterwards. */
  byB(): Promise<unknown>;
  /** Holds after both, in this order. */
  check(): void;
}

export interface Mutation {
  readonly name: string;
  readonly procedure: number;
  readonly prepare: (nodes: Nodes) => Promise<Prepared>;
}

/** As a `hard` mount asks. */
const hard = { deadlineMs: Number.POSITIVE_INFINITY };
const guarded = { mode: 'guarded', set: { mode: 0o644 } } as const;

const namesIn = (folder: string): string[] => readdirSync(folder).toSorted();
const textOf = ({ folder }: Nodes): string => readFileSync(join(folder, 'file'), 'utf8');

/** Node B makes a file, and its data are on the disk. */
async function makeByB({ b, directory }: Nodes, name: string): Promise<FileHandle> {
  const { handle } = await b.create(directory, name, guarded);
  await b.write(handle, 0, Buffer.from('of node B'), stability.fileSync);
  return handle;
}

/** They take a name away. */
export const takingNames: readonly Mutation[] = [
  {
    ...{ name: 'REMOVE', procedure: remove.number },
    prepare: async (nodes) => {
      const meant = await makeByB(nodes, 'file');
      return {
        byA: () => nodes.a.remove(nodes.directory, 'file', { ...hard, meant }),
        byB: () => makeByB(nodes, 'file'),
        check: () => equal(textOf(nodes), 'of node B'),
      };
    },
  },
  {
    ...{ name: 'RMDIR', procedure: rmdir.number },
    prepare: async ({ a, b, directory, folder }) => {
      const { handle: meant } = await b.mkdir(directory, 'sub', {});
      return {
        byA: () => a.rmdir(directory, 'sub', { ...hard, meant }),
        byB: () => b.mkdir(directory, 'sub', {}),
        check: () => deepEqual(namesIn(folder), ['sub']),
      };
    },
  },
  {
    ...{ name: 'RENAME', procedure: rename.number },
    prepare: async (nodes) => {
      const { a, b, directory } = nodes;
      const meant = await makeByB(nodes, 'from');
      return {
        byA: () => a.rename({ directory, name: 'from' }, { directory, name: 'to' }, { ...hard, meant }),
        byB: async () => {
          await b.rename({ directory, name: 'to' }, { directory, name: 'kept' });
          await makeByB(nodes, 'from');
        },
        check: () => deepEqual(namesIn(nodes.folder), ['from', 'kept']),
      };
    },
  },
];

/** They change data. */
export const changingData: readonly Mutation[] = [
  {
    ...{ name: 'WRITE', procedure: write.number },
    prepare: async (nodes) => {
      const file = await makeByB(nodes, 'file');
      return {
        byA: () => nodes.a.write(file, 0, Buffer.from('of node A'), stability.fileSync, hard),
        byB: () => nodes.b.write(file, 0, Buffer.from('newer'), stability.fileSync),
        check: () => equal(textOf(nodes), 'newerde A'),
      };
    },
  },
  {
    ...{ name: 'SETATTR of the size', procedure: setattr.number },
    prepare: async (nodes) => {
      const file = await makeByB(nodes, 'file');
      return {
        byA: () => nodes.a.setattr(file, { size: 0 }, hard),
        byB: () => nodes.b.write(file, 0, Buffer.from('newer'), stability.fileSync),
        check: () => equal(textOf(nodes), 'newer'),
      };
    },
  },
];

/** They make a name. */
export const makingNames: readonly Mutation[] = [
  {
    ...{ name: 'LINK', procedure: link.number },
    prepare: async (nodes) => {
      const file = await makeByB(nodes, 'one');
      return {
        byA: () => nodes.a.link(file, { directory: nodes.directory, name: 'two' }, hard),
        byB: () => nodes.b.remove(nodes.directory, 'two'),
        check: () => deepEqual(namesIn(nodes.folder), ['one']),
      };
    },
  },
  {
    ...{ name: 'CREATE', procedure: create.number },
    prepare: async ({ a, b, directory, folder }) => ({
      byA: () => a.create(directory, 'new', guarded, hard),
      byB: () => b.remove(directory, 'new'),
      check: () => deepEqual(namesIn(folder), []),
    }),
  },
  {
    ...{ name: 'MKDIR', procedure: mkdir.number },
    prepare: async ({ a, b, directory, folder }) => ({
      byA: () => a.mkdir(directory, 'new', { mode: 0o755 }, hard),
      byB: () => b.rmdir(directory, 'new'),
      check: () => deepEqual(namesIn(folder), []),
    }),
  },
  {
    ...{ name: 'SYMLINK', procedure: symlink.number },
    prepare: async ({ a, b, directory, folder }) => ({
      byA: () => a.symlink(directory, 'new', 'target', {}, hard),
      byB: () => b.remove(directory, 'new'),
      check: () => deepEqual(namesIn(folder), []),
    }),
  },
];

export const mutations: readonly Mutation[] = [...takingNames, ...changingData, ...makingNames];

/** The reply is lost, and node B goes on before the call is resent. `meanwhile`: while node A cannot connect. */
export async function loseReply(
  nodes: Nodes,
  { procedure, prepare }: Mutation,
  meanwhile: () => Promise<void> = async () => undefined,
): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  await meanwhile();
  await byB();
  await proxy.up();
  await done;
  check();
  equal(proxy.passed(procedure), 2);
  equal(new Set(proxy.ports).size, 1);
}

/** The first copy runs after the second was answered. */
export async function delayFirstCopy(nodes: Nodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const first = proxy.holdCall(procedure);
  await byA();
  await byB();
  await first.release();
  check();
  equal(proxy.passed(procedure), 2);
}

/** Node A tells one run of the server from the next by the verifier that it was given for a write. */
async function learnVerifier({ a, witnesses }: Nodes): Promise<void> {
  const { handle } = await a.create(witnesses, 'witness', { mode: 'unchecked', set: { mode: 0o644 } });
  await a.write(handle, 0, Buffer.from('x'), stability.fileSync);
}

/** The server restarts after it has done the call, and node B goes on before node A asks. */
export async function restartAfter(nodes: Nodes, mutation: Mutation, restart: () => Promise<void>): Promise<void> {
  const { procedure, prepare } = mutation;
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  await learnVerifier(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  await restart();
  await byB();
  await proxy.up();
  await done;
  check();
  equal(proxy.passed(procedure), 1);
}

/** The server restarts before it has done the call: the client does it again. */
export async function restartBefore(nodes: Nodes, mutation: Mutation, restart: () => Promise<void>): Promise<void> {
  const { proxy } = nodes;
  const { byA } = await mutation.prepare(nodes);
  await learnVerifier(nodes);
  const first = proxy.holdCall(mutation.procedure);
  const done = byA();
  await first.held;
  await proxy.down();
  await restart();
  await proxy.up();
  await done;
  deepEqual(namesIn(nodes.folder), mutation.procedure === rename.number ? ['to'] : []);
}

/** Another process takes the port while the connection is lost: the client decides instead of resending. */
export async function takePort(nodes: Nodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  const occupant = createServer().listen(proxy.ports[0], '0.0.0.0');
  try {
    await once(occupant, 'listening');
    await byB();
    await proxy.up();
    await done;
  } finally {
    occupant.close();
  }
  check();
  equal(proxy.passed(procedure), 1);
  equal(new Set(proxy.ports).size, 2);
}

/** The first address does the call and falls silent; node B goes on before node A has failed over to the second. */
export async function failOver(nodes: Nodes, { procedure, prepare }: Mutation, second: ReplayingProxy): Promise<void> {
  const { byA, byB, check } = await prepare(nodes);
  const stalled = nodes.proxy.stallReply(procedure);
  const done = byA();
  await stalled;
  await byB();
  await done;
  check();
  ok(second.ports.length > 0, 'node A did not fail over');
}
