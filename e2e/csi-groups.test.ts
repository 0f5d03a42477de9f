import { chownSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { grpcClient } from '#testing/grpc-client.ts';
import { asGroup, everythingOwnedBy, type PodsOfGroups, podsOfGroups } from '#testing/pods-of-groups.ts';
import {
  createServerFolders,
  killKeepers,
  pollOptions,
  type ServerFolders,
  waitUntilServing,
} from './nfs-mount-fixture.ts';
import { type Stowage, startStowage } from './stowage.ts';

describe.skipIf(lacks('ganesha', 'fuse', 'root', 'mount'))('pods with an fsGroup', () => {
  let folders: ServerFolders;
  let folder: string;
  let exported: string;
  let serverSquash: 'none' | 'root';
  let stowage: Stowage;
  let pods: PodsOfGroups;

  beforeEach(async () => {
    folders = await createServerFolders();
    folder = folders.top;
    exported = join(folder, 'export');
    mkdirSync(exported);
    serverSquash = 'none';
  });

  async function start(options: string): Promise<void> {
    const { signal } = new AbortController();
    const exports = [{ path: exported, tag: '/export', squash: serverSquash }] as const;
    const nfs = await startGanesha({ exports, signal });
    onTestFinished(() => nfs[Symbol.asyncDispose]());
    const uri = `nfs://${nfs.host}${exported}?port=${nfs.nfsPort}&mountport=${nfs.mountPort}${options}`;
    const config = join(folder, 'stowage.yaml');
    writeFileSync(config, JSON.stringify({ version: 1, stores: { tested: uri } }));
    const sockets = join(folder, 'csi');
    stowage = await startStowage({
      state: folders.state,
      socket: folders.socket,
      config,
      options: ['--plugins', 'none', '--csi', sockets],
    });
    onTestFinished(() => stowage.stop());
    const file = grpcClient(join(sockets, 'file.sock'));
    onTestFinished(() => file.session.destroy());
    pods = await podsOfGroups(file, folder);
  }

  test('see the files of their group after a dead mount was replaced', async () => {
    chownSync(exported, 1000, 1000);
    await start('&squash=all&uid=1000&gid=1000');
    await pods.stage(2000);
    await pods.publish('pod', 2000);
    await asGroup(1001, 2000, 'mkdir d; echo one > d/file', pods.at('pod'));
    await waitUntilServing(stowage);
    killKeepers(folder);
    await expect.poll(() => stowage.output(), pollOptions).toContain('a dead mount was remounted');
    await expect.poll(() => pods.groupsIn('pod', 2000).catch(String), pollOptions).toBe(everythingOwnedBy(2000));
    expect(await pods.groupsIn('stage/volume', 2000)).toBe(everythingOwnedBy(2000));
  }, 120_000);

  test('get the files on another node, including files that existed before', async () => {
    await start('');
    await pods.stage(2000);
    await pods.publish('pod', 2000);
    await asGroup(1001, 2000, 'umask 022; mkdir d; echo one > d/file', pods.at('pod'));
    expect(await pods.groupsIn('pod', 2000)).toBe(everythingOwnedBy(2000));
    await pods.unpublish('pod');
    await pods.publish('pod', 3000);
    expect(await pods.groupsIn('pod', 3000)).toBe(everythingOwnedBy(3000));
    await asGroup(1002, 3000, 'echo two >> d/file; mv d/file d/moved', pods.at('pod'));
    await expect(asGroup(1003, 4000, 'touch d/no', pods.at('pod'))).rejects.toThrow('Permission denied');
  }, 120_000);

  test('get files whose owner is the user that the server maps root to', async () => {
    serverSquash = 'root';
    chownSync(exported, 1000, 1000);
    await start('&squash=root&uid=1000&gid=1000');
    await pods.stage(2000);
    await pods.publish('pod', 2000);
    const { uid, gid, mode } = statSync(join(exported, 'pvc-1'));
    expect([uid, gid, mode & 0o7777]).toEqual([1000, 2000, 0o2775]);
    await asGroup(1001, 2000, 'umask 002; mkdir d; echo one > d/file', pods.at('pod'));
    await asGroup(1002, 2000, 'umask 002; echo two >> d/file; mv d/file d/moved; mv d/moved d/file', pods.at('pod'));
    expect(await pods.groupsIn('pod', 2000)).toBe(everythingOwnedBy(2000));
  }, 120_000);
});
