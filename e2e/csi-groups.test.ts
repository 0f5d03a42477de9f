import { execFile } from 'node:child_process';
import { chownSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { needs } from '#testbed/needs.ts';
import { mounted } from '#testing/csi.ts';
import { type GrpcClient, grpcClient } from '#testing/grpc-client.ts';
import { Controller, VolumeCapability_AccessMode_Mode as Mode, Node } from '#wire/csi/generated/csi.ts';
import { keeperPids, type Place, patience, place, serving } from './nfs-mounted.ts';
import { type Stowage, startStowage } from './stowage.ts';

// What a kubelet asks of a driver that sees to groups itself, for pods with an fsGroup.

const run = promisify(execFile);
const { method } = Node;

const ofGroup = (group: number) => ({
  accessType: { case: 'mount' as const, value: { volumeMountGroup: String(group) } },
  accessMode: { mode: Mode.MULTI_NODE_MULTI_WRITER },
});

/** As a container of a pod with that fsGroup runs its processes. */
const as = async (uid: number, group: number, script: string, at: string): Promise<string> => {
  const user = ['--reuid', `${uid}`, '--regid', `${uid}`, '--groups', `${group}`];
  return (await run('setpriv', [...user, 'sh', '-ec', `cd "$1"; ${script}`, 'sh', at])).stdout.trim();
};

describe.skipIf(needs('ganesha', 'fuse', 'root', 'mount'))('pods with an fsGroup', () => {
  let own: Place;
  let folder: string;
  let exported: string;
  let serverSquash: 'none' | 'root';
  let file: GrpcClient;
  let stowage: Stowage;
  let volumeId: string;

  beforeEach(async () => {
    own = await place();
    folder = own.top;
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
      ...{ state: own.state, socket: own.socket, config },
      options: ['--plugins', 'none', '--csi', sockets],
    });
    onTestFinished(() => stowage.stop());
    file = grpcClient(join(sockets, 'file.sock'));
    onTestFinished(() => file.session.destroy());
    mkdirSync(join(folder, 'stage'));
    const volumeCapabilities = [mounted('MULTI_NODE_MULTI_WRITER')];
    const { volume } = await file.call(Controller.method.createVolume, { name: 'pvc-1', volumeCapabilities });
    volumeId = volume?.volumeId ?? '';
    onTestFinished(async () => {
      await unpublish('pod').catch(() => undefined);
      await unpublish('other').catch(() => undefined);
      await file.call(method.nodeUnstageVolume, staged()).catch(() => undefined);
    });
  }

  const at = (name: string): string => join(folder, name);
  const staged = () => ({ volumeId, stagingTargetPath: at('stage') });
  const stage = (group: number) => file.call(method.nodeStageVolume, { ...staged(), volumeCapability: ofGroup(group) });
  const publish = (name: string, group: number) =>
    file.call(method.nodePublishVolume, { ...staged(), targetPath: at(name), volumeCapability: ofGroup(group) });
  const unpublish = (name: string) => file.call(method.nodeUnpublishVolume, { volumeId, targetPath: at(name) });
  const groupsIn = (name: string, group: number) => as(1001, group, 'stat -c %g . d d/file', at(name));
  const all = (group: number): string => `${group}\n${group}\n${group}`;

  test('see theirs when a dead mount was mounted anew', async () => {
    chownSync(exported, 1000, 1000);
    await start('&squash=all&uid=1000&gid=1000');
    await stage(2000);
    await publish('pod', 2000);
    await as(1001, 2000, 'mkdir d; echo one > d/file', at('pod'));
    await serving(stowage);
    for (const pid of keeperPids(folder)) process.kill(pid, 'SIGKILL');
    await expect.poll(() => stowage.output(), patience).toContain('a dead mount was mounted anew');
    await expect.poll(() => groupsIn('pod', 2000).catch(String), patience).toBe(all(2000));
    expect(await groupsIn('stage/volume', 2000)).toBe(all(2000));
  }, 120_000);

  test('are given the files elsewhere, those that were there before, too', async () => {
    await start('');
    await stage(2000);
    await publish('pod', 2000);
    await as(1001, 2000, 'umask 022; mkdir d; echo one > d/file', at('pod'));
    expect(await groupsIn('pod', 2000)).toBe(all(2000));
    await unpublish('pod');
    await publish('pod', 3000);
    expect(await groupsIn('pod', 3000)).toBe(all(3000));
    await as(1002, 3000, 'echo two >> d/file; mv d/file d/moved', at('pod'));
    await expect(as(1003, 4000, 'touch d/no', at('pod'))).rejects.toThrow('Permission denied');
  }, 120_000);

  test('are given what belongs to whom root is on the server', async () => {
    serverSquash = 'root';
    chownSync(exported, 1000, 1000);
    await start('&squash=root&uid=1000&gid=1000');
    await stage(2000);
    await publish('pod', 2000);
    const { uid, gid, mode } = statSync(join(exported, 'pvc-1'));
    expect([uid, gid, mode & 0o7777]).toEqual([1000, 2000, 0o2775]);
    await as(1001, 2000, 'umask 002; mkdir d; echo one > d/file', at('pod'));
    await as(1002, 2000, 'umask 002; echo two >> d/file; mv d/file d/moved; mv d/moved d/file', at('pod'));
    expect(await groupsIn('pod', 2000)).toBe(all(2000));
  }, 120_000);
});
