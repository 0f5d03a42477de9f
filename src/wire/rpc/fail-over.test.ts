import * as fs from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { type CuttingProxy, startProxy } from '#testing/cutting-proxy.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { user } from '#testing/nfs-export.ts';
import { createNfsClient, type NfsClient } from '../nfs3/client.ts';
import { fileType } from '../nfs3/structures.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from './client.ts';

const stallMs = 1_000;

describe.skipIf(lacks('root', 'mount', 'ganesha'))('a server with two addresses', () => {
  const it = exportedByGanesha({ inMemory: true });

  interface Connections {
    readonly first: CuttingProxy;
    readonly second: CuttingProxy;
    readonly rpc: RpcClient;
    readonly nfs: NfsClient;
  }

  /** Connects to the same ganesha through two proxies. */
  async function connect(options: Partial<RpcClientOptions> = {}): Promise<Connections> {
    const to = { host: it.server.host, port: it.server.nfsPort };
    const [first, second] = [await startProxy(to, '127.0.0.1'), await startProxy(to, '127.0.0.2')];
    const clientOptions = { clock: systemClock(), identity: user(0), stallMs };
    const rpc = createRpcClient({ ...clientOptions, addresses: [first, second], ...options });
    onTestFinished(() => rpc.close());
    return { first, second, rpc, nfs: createNfsClient(rpc, systemClock()) };
  }

  /** Creates many directories, and calls `interrupt` after the first 20. */
  async function makeDirectoriesWhile(nfs: NfsClient, interrupt: () => unknown, atOnce: number): Promise<void> {
    const names = Array.from({ length: 60 }, (_, i) => `sub-${i}`);
    const queue = [...names];
    let created = 0;
    const work = async (): Promise<void> => {
      for (let name = queue.shift(); name !== undefined; name = queue.shift()) {
        const { attributes } = await nfs.mkdir(it.directory, name, { mode: 0o755 }, { deadlineMs: 5_000 });
        expect(attributes?.type).toBe(fileType.directory);
        if (++created === 20) await interrupt();
      }
    };
    await Promise.all(Array.from({ length: atOnce }, work));
    expect(fs.readdirSync(it.folder).toSorted()).toEqual(names.toSorted());
  }

  test.each([1, 2, 4])(
    'calls continue over the second address when the first is cut off, with %d connections',
    async (connections) => {
      const { first, second, nfs, rpc } = await connect({ connections });
      await nfs.null();
      expect([first.connections > 0, second.connections]).toEqual([true, 0]);
      await makeDirectoriesWhile(nfs, () => first.down(), connections * 2);
      expect(second.connections).toBe(connections);
      expect(rpc.address).toMatchObject({ host: '127.0.0.2' });
    },
  );

  test.each([1, 2, 3, 4])(
    'calls continue over the second address when the first falls silent, with %d connections',
    async (connections) => {
      const { first, second, nfs, rpc } = await connect({ connections });
      await nfs.null();
      await makeDirectoriesWhile(nfs, () => first.stall(), connections * 2);
      expect(second.connections).toBe(connections);
      expect(rpc.address).toMatchObject({ host: '127.0.0.2' });
    },
  );

  test('the second address is used if the first never answered', async () => {
    const { first, second, nfs } = await connect({ connections: 2 });
    await first.down();
    await makeDirectoriesWhile(nfs, () => undefined, 4);
    expect(second.connections).toBe(2);
  });

  test('pending calls complete when either address returns after both were down', async () => {
    const { first, second, nfs } = await connect();
    await nfs.null();
    let recovered: Promise<unknown> | undefined;
    await makeDirectoriesWhile(
      nfs,
      async () => {
        // Calls that were sent are retried until their deadline.
        first.stall();
        await second.down();
        recovered = new Promise((resolve) => setTimeout(resolve, 400)).then(() => second.up());
      },
      2,
    );
    await recovered;
    expect(second.connections).toBeGreaterThan(0);
  });

  test('calls return to the first address when the second is cut off later', async () => {
    const { first, second, nfs, rpc } = await connect({ connections: 2 });
    await nfs.null();
    await first.down();
    await nfs.getattr(it.directory);
    await first.up();
    await makeDirectoriesWhile(nfs, () => second.stall(), 4);
    expect(rpc.address).toMatchObject({ host: '127.0.0.1' });
  });
});
