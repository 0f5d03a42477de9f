import { chmodSync, chownSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall, collectingLog } from '#testing/core-calls.ts';
import { grpcClient } from '#testing/grpc-client.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { asGroup, everythingOwnedBy, type PodsOfGroups, podsOfGroups } from '#testing/pods-of-groups.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { startServer, type TestServer } from '#testing/server.ts';
import { VolumeCapability_AccessMode_Mode as Mode } from '#wire/csi/generated/csi.ts';
import { createCsiServer } from './server.ts';

interface Server {
  readonly squash?: 'none' | 'root';
  /** The squash option of the export. */
  readonly owner?: number;
}

describe.skipIf(lacks('fuse', 'root', 'mount'))('pods with an fsGroup', () => {
  let folder: string;
  let exported: string;
  let server: TestServer;
  let log: ReturnType<typeof collectingLog>;
  let pods: PodsOfGroups;

  beforeEach(() => {
    // Unmount what a failed test has left mounted.
    const ground = createScratchFolder('stowage-groups-');
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
    await server.core.stores.add('tested', `nfs://${host}/export?port=${port}&mountport=${port}${options}`, aCall());
    const csi = { core: server.core, driver: fileDriver, clock: systemClock(), log, version: '1.2.3' } as const;
    const served = createCsiServer({ ...csi, spaceOf: async () => undefined });
    await new Promise<void>((resolve) => served.server.listen(at('file.sock'), resolve));
    const file = grpcClient(at('file.sock'));
    onTestFinished(async () => {
      file.session.destroy();
      await served.close(0);
    });
    pods = await podsOfGroups(file, folder);
  }

  const at = (name: string): string => join(folder, name);

  test('see their own group where the server maps all users to one, also the next pod on a volume that is still staged', async () => {
    await start('&squash=all&uid=1000&gid=1000', { owner: 1000 });
    await pods.stage(2000);
    await pods.publish('pod', 2000);
    await asGroup(1001, 2000, 'umask 077; mkdir d; echo one > d/file', at('pod'));
    await asGroup(1002, 2000, 'echo two >> d/file; mv d/file d/moved; mv d/moved d/file', at('pod'));
    expect(await pods.groupsIn('pod', 2000)).toBe(everythingOwnedBy(2000));
    await pods.unpublish('pod');
    // The kubelet keeps the volume staged if the next pod starts soon enough.
    await pods.publish('pod', 3000);
    expect(await pods.groupsIn('pod', 3000)).toBe(everythingOwnedBy(3000));
    expect(await pods.groupsIn('stage/volume', 3000)).toBe(everythingOwnedBy(3000));
    // A second pod at the same time has the same access as the first one, and sees the first one's group.
    await pods.publish('other', 4000);
    expect(await asGroup(1003, 4000, 'echo three >> d/file; cat d/file', at('other'))).toBe('one\ntwo\nthree');
    expect(await pods.groupsIn('other', 4000)).toBe(everythingOwnedBy(3000));
    const top = join(exported, 'pvc-1');
    expect([statSync(top).gid, statSync(join(top, 'd/file')).gid]).toEqual([1000, 1000]);
  }, 120_000);

  test('own the files on other servers, including those that existed before', async () => {
    await start('');
    await pods.stage(2000);
    await pods.publish('pod', 2000);
    await asGroup(1001, 2000, 'umask 022; mkdir d; echo one > d/file', at('pod'));
    expect(await pods.groupsIn('pod', 2000)).toBe(everythingOwnedBy(2000));
    await pods.unpublish('pod');
    await pods.publish('pod', 3000);
    expect(await pods.groupsIn('pod', 3000)).toBe(everythingOwnedBy(3000));
    await asGroup(1002, 3000, 'echo two >> d/file; mv d/file d/moved', at('pod'));
    await expect(asGroup(1003, 4000, 'touch d/no', at('pod'))).rejects.toThrow('Permission denied');
    // The refused call has changed nothing.
    const refused = pods.publish('other', 4000, Mode.SINGLE_NODE_SINGLE_WRITER);
    await expect(refused).rejects.toMatchObject({ code: 9 });
    expect(statSync(join(exported, 'pvc-1')).gid).toBe(3000);
  }, 120_000);

  test('own the files of the user that root is mapped to on the server', async () => {
    await start('&squash=root&uid=1000&gid=1000', { squash: 'root', owner: 1000 });
    await pods.stage(2000);
    await pods.publish('pod', 2000);
    const { uid, gid, mode } = statSync(join(exported, 'pvc-1'));
    expect([uid, gid, mode & 0o7777]).toEqual([1000, 2000, 0o2775]);
    await asGroup(1001, 2000, 'umask 002; mkdir d; echo one > d/file', at('pod'));
    await asGroup(1002, 2000, 'umask 002; echo two >> d/file; mv d/file d/moved; mv d/moved d/file', at('pod'));
    expect(await pods.groupsIn('pod', 2000)).toBe(everythingOwnedBy(2000));
  }, 120_000);

  test('get an error if the server does not allow chown', async () => {
    await start('&squash=root&uid=1000&gid=1000', { squash: 'root', owner: 1000 });
    const top = join(exported, 'pvc-1');
    chownSync(top, 1001, 1001);
    await expect(pods.stage(2000)).rejects.toMatchObject({
      code: 7,
      message: expect.stringMatching(
        /does not let user 1000, .* change the group of the volume's files to 2000.*squash=all/,
      ),
    });
  }, 120_000);
});
