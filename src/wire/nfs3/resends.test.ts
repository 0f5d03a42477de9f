import * as fs from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { user } from '#testing/nfs-export.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { type ReplayingProxy, startReplayingProxy } from '#testing/replaying-proxy.ts';
import { createRpcClient, type RpcClientOptions } from '../rpc/client.ts';
import { createNfsClient, type NfsClient } from './client.ts';
import { link, remove, rename, rmdir, setattr, write } from './procedures.ts';
import { type FileHandle, stability } from './structures.ts';

/** A folder on a server, node A which reaches it through a proxy, and node B which reaches it directly. */
interface Nodes {
  readonly proxy: ReplayingProxy;
  readonly a: NfsClient;
  readonly b: NfsClient;
  readonly directory: FileHandle;
  readonly folder: string;
}

/** As a `hard` mount asks. */
const hard = { deadlineMs: Number.POSITIVE_INFINITY };
const guarded = { mode: 'guarded', set: { mode: 0o644 } } as const;

function connected(options: Pick<RpcClientOptions, 'addresses'> & Partial<RpcClientOptions>): NfsClient {
  const rpc = createRpcClient({ clock: systemClock(), identity: user(0), ...options });
  onTestFinished(() => rpc.close());
  return createNfsClient(rpc, systemClock());
}

const text = (path: string): string => fs.readFileSync(path, 'utf8');

/** Node B makes a file, and what it holds is on the disk. */
async function makeByB({ b, directory }: Nodes, name: string): Promise<FileHandle> {
  const { handle } = await b.create(directory, name, guarded);
  await b.write(handle, 0, Buffer.from('of node B'), stability.fileSync);
  return handle;
}

interface Mutation {
  readonly name: string;
  readonly procedure: number;
  /** Node A does it, once. */
  readonly byA: (nodes: Nodes) => Promise<unknown>;
  /** Prepares it, and gives what node B changes afterwards and what must be so in the end. */
  readonly prepare: (nodes: Nodes) => Promise<{ byB(): Promise<unknown>; check(): void }>;
}

let meant: FileHandle | undefined;

const mutations: readonly Mutation[] = [
  {
    ...{ name: 'REMOVE', procedure: remove.number },
    byA: ({ a, directory }) => a.remove(directory, 'file', { ...hard, meant }),
    prepare: async (nodes) => {
      meant = await makeByB(nodes, 'file');
      return {
        byB: () => makeByB(nodes, 'file'),
        check: () => expect(text(join(nodes.folder, 'file'))).toBe('of node B'),
      };
    },
  },
  {
    ...{ name: 'RMDIR', procedure: rmdir.number },
    byA: ({ a, directory }) => a.rmdir(directory, 'sub', { ...hard, meant }),
    prepare: async ({ b, directory, folder }) => {
      ({ handle: meant } = await b.mkdir(directory, 'sub', {}));
      return {
        byB: () => b.mkdir(directory, 'sub', {}),
        check: () => expect(fs.readdirSync(folder)).toEqual(['sub']),
      };
    },
  },
  {
    ...{ name: 'RENAME', procedure: rename.number },
    byA: ({ a, directory }) => a.rename({ directory, name: 'from' }, { directory, name: 'to' }, { ...hard, meant }),
    prepare: async (nodes) => {
      meant = await makeByB(nodes, 'from');
      return {
        byB: async () => {
          await nodes.b.rename(
            { directory: nodes.directory, name: 'to' },
            { directory: nodes.directory, name: 'kept' },
          );
          await makeByB(nodes, 'from');
        },
        check: () => expect(fs.readdirSync(nodes.folder).toSorted()).toEqual(['from', 'kept']),
      };
    },
  },
  {
    ...{ name: 'LINK', procedure: link.number },
    byA: ({ a, directory }) => a.link(meant as FileHandle, { directory, name: 'two' }, hard),
    prepare: async (nodes) => {
      meant = await makeByB(nodes, 'one');
      return {
        byB: () => nodes.b.remove(nodes.directory, 'two'),
        check: () => expect(fs.readdirSync(nodes.folder)).toEqual(['one']),
      };
    },
  },
  {
    ...{ name: 'WRITE', procedure: write.number },
    byA: ({ a }) => a.write(meant as FileHandle, 0, Buffer.from('of node A'), stability.fileSync, hard),
    prepare: async (nodes) => {
      meant = await makeByB(nodes, 'file');
      return {
        byB: () => nodes.b.write(meant as FileHandle, 0, Buffer.from('newer'), stability.fileSync),
        check: () => expect(text(join(nodes.folder, 'file'))).toBe('newerde A'),
      };
    },
  },
  {
    ...{ name: 'SETATTR of the size', procedure: setattr.number },
    byA: ({ a }) => a.setattr(meant as FileHandle, { size: 0 }, hard),
    prepare: async (nodes) => {
      meant = await makeByB(nodes, 'file');
      return {
        byB: () => nodes.b.write(meant as FileHandle, 0, Buffer.from('newer'), stability.fileSync),
        check: () => expect(text(join(nodes.folder, 'file'))).toBe('newer'),
      };
    },
  },
];

/** Those that take a name away. */
const names = mutations.slice(0, 3);

/** What every server that remembers its answers has to be used for. */
function recognised(nodesOf: () => Promise<Nodes>): void {
  test.each(mutations)('$name: the reply is lost, and node B goes on before it is resent', async (mutation) => {
    const nodes = await nodesOf();
    const { byB, check } = await mutation.prepare(nodes);
    const lost = nodes.proxy.loseReply(mutation.procedure);
    const done = mutation.byA(nodes);
    await lost;
    await nodes.proxy.down();
    await byB();
    await nodes.proxy.up();
    await done;
    check();
    expect(nodes.proxy.passed(mutation.procedure)).toBe(2);
    expect(new Set(nodes.proxy.ports).size).toBe(1);
  });

  test.each(mutations)('$name: the first copy runs after the second was answered', async (mutation) => {
    const nodes = await nodesOf();
    const { byB, check } = await mutation.prepare(nodes);
    const first = nodes.proxy.holdCall(mutation.procedure);
    await mutation.byA(nodes);
    await byB();
    await first.release();
    check();
    expect(nodes.proxy.passed(mutation.procedure)).toBe(2);
  });
}

describe('a server that recognises resent calls as Linux does, by their xid, address and port', () => {
  let own: OwnServer;
  let root: FileHandle;
  async function nodesOf(more: Partial<RpcClientOptions> = {}): Promise<Nodes> {
    own = await startOwnServer({ replaysByPort: true });
    const mounted = await own.mount();
    root = mounted.root;
    const { handle: directory } = await mounted.nfs.mkdir(root, 'work', { mode: 0o755 });
    const proxy = await startReplayingProxy(own.server);
    const a = connected({ addresses: [proxy], ...more });
    return { proxy, a, b: mounted.nfs, directory, folder: join(own.directory, 'work') };
  }
  recognised(nodesOf);

  test.each(names)(
    '$name: the server restarts and forgets it, and node B goes on before it is resent',
    async (mutation) => {
      const nodes = await nodesOf();
      const { byB, check } = await mutation.prepare(nodes);
      // Node A tells one run of the server from the next by the verifier that it was given for a write.
      const { handle } = await nodes.a.create(root, 'witness', guarded);
      await nodes.a.write(handle, 0, Buffer.from('x'), stability.fileSync);
      const lost = nodes.proxy.loseReply(mutation.procedure);
      const done = mutation.byA(nodes);
      await lost;
      await nodes.proxy.down();
      await own.restart();
      await byB();
      await nodes.proxy.up();
      await done;
      check();
      expect(nodes.proxy.passed(mutation.procedure)).toBe(1);
    },
  );

  test.each(names)('$name: the server restarts before it was done: it is done afterwards', async (mutation) => {
    const nodes = await nodesOf();
    await mutation.prepare(nodes);
    const { handle } = await nodes.a.create(root, 'witness', guarded);
    await nodes.a.write(handle, 0, Buffer.from('x'), stability.fileSync);
    const first = nodes.proxy.holdCall(mutation.procedure);
    const done = mutation.byA(nodes);
    await first.held;
    await nodes.proxy.down();
    await own.restart();
    await nodes.proxy.up();
    await done;
    expect(fs.readdirSync(nodes.folder)).toEqual(mutation.name === 'RENAME' ? ['to'] : []);
  });

  test('REMOVE: the port is taken meanwhile: what the name means decides', async () => {
    const nodes = await nodesOf({ stallMs: 500 });
    const [removal] = mutations as readonly [Mutation];
    const { byB, check } = await removal.prepare(nodes);
    const lost = nodes.proxy.loseReply(removal.procedure);
    const done = removal.byA(nodes);
    await lost;
    await nodes.proxy.down();
    const occupant = createServer().listen(nodes.proxy.ports[0], '0.0.0.0');
    onTestFinished(() => void occupant.close());
    await byB();
    await nodes.proxy.up();
    await done;
    check();
    expect(nodes.proxy.passed(removal.procedure)).toBe(1);
    expect(new Set(nodes.proxy.ports).size).toBe(2);
  });
});

describe.skipIf(needs('root', 'mount', 'ganesha'))('nfs-ganesha', () => {
  const it = exportedByGanesha();
  recognised(async () => {
    const to = { host: it.server.host, port: it.server.nfsPort };
    const proxy = await startReplayingProxy(to);
    return { proxy, a: connected({ addresses: [proxy] }), b: it.nfs, directory: it.directory, folder: it.folder };
  });
});

describe('a server with two addresses', () => {
  test.each(names)('$name: node B goes on before node A has failed over', async (mutation) => {
    const own = await startOwnServer({ replaysByPort: true });
    const { nfs: b, root: directory } = await own.mount();
    const [first, second] = [await startProxy(own.server), await startProxy(own.server, '127.0.0.2')];
    const a = connected({ addresses: [first, second], stallMs: 500 });
    const nodes = { a, b, directory, folder: own.directory, proxy: first as unknown as ReplayingProxy };
    const { byB, check } = await mutation.prepare(nodes);
    const held = first.holdReplyTo(mutation.procedure);
    const done = mutation.byA(nodes);
    await held;
    first.stall();
    await byB();
    await done;
    check();
    expect(second.connections).toBeGreaterThan(0);
  });
});
