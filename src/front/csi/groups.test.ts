import { execFile } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { mounted } from '#testing/csi.ts';
import { createGround } from '#testing/ground.ts';
import { type GrpcClient, grpcClient } from '#testing/grpc-client.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { aCall, collectingLog, startServer, type TestServer } from '#testing/server.ts';
import { Controller, VolumeCapability_AccessMode_Mode as Mode, Node } from '#wire/csi/generated/csi.ts';
import { createCsiServer } from './server.ts';

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

interface Server {
  readonly squash?: 'none' | 'root';
  /** Of what it exports. */
  readonly owner?: number;
}

describe.skipIf(needs('fuse', 'root', 'mount'))('pods with an fsGroup', () => {
  let folder: string;
  let exported: string;
  let file: GrpcClient;
  let server: TestServer;
  let log: ReturnType<typeof collectingLog>;
  let volumeId: string;

  beforeEach(() => {
    // What a test that failed has left mounted goes first.
    const ground = createGround('stowage-groups-');
    onTestFinished(() => ground[Symbol.dispose]());
    folder = ground.folder;
    chmodSync(folder, 0o755);
  });

  async function start(options: string, { squash = 'none', owner = 0 }: Server = {}): Promise<void> {
    const nfs = await startOwnServer({ squash, path: '/export' });
    exported = nfs.directory;
    chownSync(exported, owner, owner);
    log = collectingLog();
    mkdirSync(at('state'));
    server = await startServer({ listen: 'none', log, folder: at('state') });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const { host, port } = nfs.server;
    await server.engine.stores.add('tested', `nfs://${host}/export?port=${port}&mountport=${port}${options}`, aCall());
    const csi = { engine: server.engine, kind: 'file', clock: systemClock(), log, version: '1.2.3' } as const;
    const served = createCsiServer({ ...csi, spaceOf: async () => undefined });
    await new Promise<void>((resolve) => served.server.listen(at('file.sock'), resolve));
    file = grpcClient(at('file.sock'));
    onTestFinished(async () => {
      file.session.destroy();
      await served.close(0);
    });
    mkdirSync(at('stage'));
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

  test('see theirs where everybody is one user on the server, the next one on what is still staged, too', async () => {
    await start('&squash=all&uid=1000&gid=1000', { owner: 1000 });
    await stage(2000);
    await publish('pod', 2000);
    await as(1001, 2000, 'umask 077; mkdir d; echo one > d/file', at('pod'));
    await as(1002, 2000, 'echo two >> d/file; mv d/file d/moved; mv d/moved d/file', at('pod'));
    expect(await groupsIn('pod', 2000)).toBe(all(2000));
    await unpublish('pod');
    // The kubelet keeps it staged when the next pod comes soon enough.
    await publish('pod', 3000);
    expect(await groupsIn('pod', 3000)).toBe(all(3000));
    expect(await groupsIn('stage/volume', 3000)).toBe(all(3000));
    // One more at the same time: it may all that the first may, and sees its group.
    await publish('other', 4000);
    expect(await as(1003, 4000, 'echo three >> d/file; cat d/file', at('other'))).toBe('one\ntwo\nthree');
    expect(await groupsIn('other', 4000)).toBe(all(3000));
    const top = join(exported, 'pvc-1');
    expect([statSync(top).gid, statSync(join(top, 'd/file')).gid]).toEqual([1000, 1000]);
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
    // Who is refused has changed nothing.
    const volumeCapability = { ...ofGroup(4000), accessMode: { mode: Mode.SINGLE_NODE_SINGLE_WRITER } };
    const refused = file.call(method.nodePublishVolume, { ...staged(), targetPath: at('other'), volumeCapability });
    await expect(refused).rejects.toMatchObject({ code: 9 });
    expect(statSync(join(exported, 'pvc-1')).gid).toBe(3000);
  }, 120_000);

  test('are given what belongs to whom root is on the server', async () => {
    await start('&squash=root&uid=1000&gid=1000', { squash: 'root', owner: 1000 });
    await stage(2000);
    await publish('pod', 2000);
    const { uid, gid, mode } = statSync(join(exported, 'pvc-1'));
    expect([uid, gid, mode & 0o7777]).toEqual([1000, 2000, 0o2775]);
    await as(1001, 2000, 'umask 002; mkdir d; echo one > d/file', at('pod'));
    await as(1002, 2000, 'umask 002; echo two >> d/file; mv d/file d/moved; mv d/moved d/file', at('pod'));
    expect(await groupsIn('pod', 2000)).toBe(all(2000));
  }, 120_000);

  test('are told where the server does not let anybody give them files', async () => {
    await start('&squash=root&uid=1000&gid=1000', { squash: 'root', owner: 1000 });
    const top = join(exported, 'pvc-1');
    chownSync(top, 1001, 1001);
    await expect(stage(2000)).rejects.toMatchObject({
      ...{
        code: 7,
        message: expect.stringMatching(/does not let user 1000, .* give the volume's files to group 2000.*squash=all/),
      },
    });
  }, 120_000);
});
