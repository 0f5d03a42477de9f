import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { needs } from '#testbed/needs.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { openExport, rpcTo, user } from '#testing/nfs-export.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { createNfsClient } from './client.ts';
import { create } from './procedures.ts';
import { nfsStatus } from './status.ts';

const { EXIST } = nfsStatus;

describe.skipIf(needs('go-nfs'))('a server without exclusive CREATE', () => {
  /** Replaces it: guarded, with an mtime that no other client sets. */
  const marked = (seconds: number) => ({ mode: 'guarded', set: { mtime: { seconds, nanoseconds: 0 } } }) as const;

  async function served() {
    const ground = createScratchFolder();
    onTestFinished(() => ground[Symbol.dispose]());
    const server = await startGoNfs({ path: ground.folder, signal: ground.scope.signal });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const open = await openExport(server, '/');
    onTestFinished(() => open[Symbol.dispose]());
    const proxy = await startProxy({ host: server.host, port: server.nfsPort });
    const rpc = rpcTo(proxy.host, proxy.port, { identity: user(0) });
    onTestFinished(() => rpc.close());
    return {
      ...open,
      proxy,
      through: createNfsClient(rpc, systemClock()),
      on: (name: string) => join(ground.folder, name),
    };
  }

  test('answers NOTSUPP and creates nothing; a guarded CREATE then shows who was first', async () => {
    const { nfs, root, on } = await served();
    await expect(nfs.create(root, 'file', { mode: 'exclusive', verifier: 7n })).rejects.toMatchObject({
      statusName: 'NOTSUPP',
    });
    expect(fs.existsSync(on('file'))).toBe(false);
    const results = await Promise.allSettled([1, 2, 3, 4].map((n) => nfs.create(root, 'file', marked(n))));
    const refused = results.filter(({ status }) => status === 'rejected');
    expect(refused).toHaveLength(3);
    for (const one of refused) expect(one).toMatchObject({ reason: { statusName: 'EXIST' } });
  });

  test('after a lost reply our own file is recognised, and the file of another client is not', async () => {
    const { nfs, through, root, proxy } = await served();
    proxy.cutReplyTo(create.number);
    const { attributes } = await through.create(root, 'mine', marked(1_000_001));
    expect(proxy.statuses).toEqual([0, EXIST]);
    expect(attributes?.mtime).toBe(1_000_001);
    await nfs.create(root, 'theirs', marked(1_000_002));
    proxy.cutReplyTo(create.number);
    await expect(through.create(root, 'theirs', marked(1_000_003))).rejects.toThrow('CREATE: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });
});
