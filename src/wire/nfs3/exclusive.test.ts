import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { lacks } from '#testbed/lacks.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { openExport, rpcTo, user } from '#testing/nfs-export.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { createNfsClient } from './client.ts';
import { create } from './procedures.ts';
import { nfsStatus } from './status.ts';

const { EXIST } = nfsStatus;

describe.skipIf(lacks('go-nfs'))('a server without exclusive CREATE', () => {
  /** Replaces exclusive CREATE: guarded, with an mtime that no other client sets. */
  const guardedWithMtime = (seconds: number) =>
    ({ mode: 'guarded', set: { mtime: { seconds, nanoseconds: 0 } } }) as const;

  async function startServer() {
    const scratch = createScratchFolder();
    onTestFinished(() => scratch[Symbol.dispose]());
    const server = await startGoNfs({ path: scratch.folder, signal: scratch.scope.signal });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const open = await openExport(server, '/');
    onTestFinished(() => open[Symbol.dispose]());
    const proxy = await startProxy({ host: server.host, port: server.nfsPort });
    const rpc = rpcTo(proxy.host, proxy.port, { identity: user(0) });
    onTestFinished(() => rpc.close());
    return {
      ...open,
      proxy,
      proxiedNfs: createNfsClient(rpc, systemClock()),
      pathOf: (name: string) => join(scratch.folder, name),
    };
  }

  test('answers NOTSUPP and creates nothing; of concurrent guarded CREATEs only one succeeds', async () => {
    const { nfs, root, pathOf } = await startServer();
    await expect(nfs.create(root, 'file', { mode: 'exclusive', verifier: 7n })).rejects.toMatchObject({
      statusName: 'NOTSUPP',
    });
    expect(fs.existsSync(pathOf('file'))).toBe(false);
    const results = await Promise.allSettled([1, 2, 3, 4].map((n) => nfs.create(root, 'file', guardedWithMtime(n))));
    const rejections = results.filter(({ status }) => status === 'rejected');
    expect(rejections).toHaveLength(3);
    for (const one of rejections) expect(one).toMatchObject({ reason: { statusName: 'EXIST' } });
  });

  test('lets the client recognise its own file after a lost reply, and not take the file of another client', async () => {
    const { nfs, proxiedNfs, root, proxy } = await startServer();
    proxy.cutReplyTo(create.number);
    const { attributes } = await proxiedNfs.create(root, 'mine', guardedWithMtime(1_000_001));
    expect(proxy.statuses).toEqual([0, EXIST]);
    expect(attributes?.mtime).toBe(1_000_001);
    await nfs.create(root, 'theirs', guardedWithMtime(1_000_002));
    proxy.cutReplyTo(create.number);
    await expect(proxiedNfs.create(root, 'theirs', guardedWithMtime(1_000_003))).rejects.toThrow(
      'CREATE: NFS3ERR_EXIST',
    );
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });
});
