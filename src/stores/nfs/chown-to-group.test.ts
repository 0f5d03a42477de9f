import { execFile } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  lchownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Source } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import type { FileHandle, NfsClient, SetAttributes } from '#wire/nfs3/index.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import { createChownToGroup } from './chown-to-group.ts';
import { createConnect } from './connect.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import { parseOptions } from './options.ts';

const run = promisify(execFile);
const group = 2000;

interface Volume {
  readonly directory: string;
  readonly parent: string;
  readonly nfs: NfsClient;
  readonly root: FileHandle;
  /** For each SETATTR, in order: whether it changed the top directory or something below. */
  readonly changedPlaces: string[];
  readonly changes: SetAttributes[];
  chownToGroup(group: number, signal?: AbortSignal): Promise<unknown>;
  describeFile(name: string): string;
}

async function startVolume(
  serverSquash: 'root' | 'none',
  options: Readonly<Record<string, string>> = {},
  beforeChange: (volume: Pick<Volume, 'changedPlaces'>) => void = () => undefined,
): Promise<Volume> {
  const parent = mkdtempSync(join(tmpdir(), 'stowage-giving-'));
  onTestFinished(() => rmSync(parent, { recursive: true, force: true }));
  const directory = join(parent, 'exported');
  mkdirSync(directory);
  chmodSync(directory, 0o755);
  const clock = systemClock();
  const server = await createNfsServer({
    clock,
    directory,
    state: join(parent, 'state'),
    port: 0,
    path: '/export',
    squash: serverSquash,
    onError: () => undefined,
  });
  onTestFinished(() => server.close());
  const ports = { port: String(server.port), mountport: String(server.port) };
  const parsed = parseOptions(`nfs://${server.host}/export`, { ...ports, ...options });
  const session = await createConnect(clock)(parsed, () => undefined, scope.signal);
  onTestFinished(() => session.close());
  const root = await session.mount(scope.signal);
  const changedPlaces: string[] = [];
  const changes: SetAttributes[] = [];
  const setattr: NfsClient['setattr'] = async (handle, ...rest) => {
    changes.push(rest[0]);
    changedPlaces.push(Buffer.from(handle).equals(Buffer.from(root)) ? 'top' : 'below');
    beforeChange({ changedPlaces });
    return await session.nfs.setattr(handle, ...rest);
  };
  const nfs = { ...session.nfs, setattr };
  const storeRoot = { session: { ...session, nfs }, failure: (cause: unknown) => cause } as unknown as NfsStoreRoot;
  const way = { root: Buffer.from(root).toString('base64') };
  const source = { kind: 'nfs', hosts: [server.host], path: '/export', way } as unknown as Source;
  return {
    directory,
    parent,
    nfs: session.nfs,
    root,
    changedPlaces,
    changes,
    chownToGroup: (to, signal = scope.signal) =>
      createChownToGroup(storeRoot, parsed)(source, to, { ...scope, signal }).catch((thrown: unknown) => thrown),
    describeFile: (name) => {
      const { uid, gid, mode } = lstatSync(join(directory, name));
      return `${uid}:${gid} ${(mode & 0o7777).toString(8)}`;
    },
  };
}

/** Creates files as users do, and a file outside the volume as the target of a link. */
function plantFiles({ directory, parent }: Volume): void {
  mkdirSync(join(directory, 'a/b'), { recursive: true, mode: 0o755 });
  writeFileSync(join(directory, 'a/b/file'), '');
  writeFileSync(join(directory, 'a/program'), '');
  writeFileSync(join(parent, 'outside'), '');
  symlinkSync(join(parent, 'outside'), join(directory, 'link'));
  for (const name of ['a', 'a/b', 'a/b/file', 'a/program']) chownSync(join(directory, name), 1001, 1001);
  lchownSync(join(directory, 'link'), 1001, 1001);
  chmodSync(join(directory, 'a/b/file'), 0o600);
  chmodSync(join(directory, 'a/program'), 0o6755);
}

const allNames = ['.', 'a', 'a/b', 'a/b/file', 'a/program', 'link'];

describe.skipIf(lacks('root'))('changing the group of a volume', () => {
  test('changes the group and mode of all files, keeps owners, and does not follow links', async () => {
    const served = await startVolume('none');
    plantFiles(served);
    expect(await served.chownToGroup(group)).toBeUndefined();
    expect(allNames.map(served.describeFile)).toEqual([
      '0:2000 2775',
      '1001:2000 2775',
      '1001:2000 2775',
      '1001:2000 660',
      '1001:2000 775',
      '1001:2000 777',
    ]);
    // Servers treat the mode of a link differently, so it must not be set.
    expect(served.changes).toContainEqual({ gid: group });
    const { gid, mode } = lstatSync(join(served.parent, 'outside'));
    expect([gid, mode & 0o7777]).toEqual([0, 0o644]);
  });

  test('a second call makes one GETATTR, and another group changes all files again', async () => {
    const served = await startVolume('none');
    plantFiles(served);
    await served.chownToGroup(group);
    served.changedPlaces.length = 0;
    lchownSync(join(served.directory, 'a/b/file'), 1001, 3000);
    expect(await served.chownToGroup(group)).toBeUndefined();
    expect([served.changedPlaces, served.describeFile('a/b/file')]).toEqual([[], '1001:3000 660']);
    expect(await served.chownToGroup(4000)).toBeUndefined();
    expect(allNames.map((name) => lstatSync(join(served.directory, name)).gid)).toEqual(allNames.map(() => 4000));
  });

  test('the top directory comes last, so that an interrupted call is continued', async () => {
    const controller = new AbortController();
    const served = await startVolume('none', {}, ({ changedPlaces }) => {
      if (changedPlaces.length === 3)
        controller.abort(new StowageError('cut short', { code: 'canceled', reason: 'canceled', action: '' }));
    });
    plantFiles(served);
    expect(await served.chownToGroup(group, controller.signal)).toMatchObject({ message: 'cut short' });
    expect(served.describeFile('.')).toBe('0:0 755');
    expect(await served.chownToGroup(group)).toBeUndefined();
    expect(allNames.map((name) => lstatSync(join(served.directory, name)).gid)).toEqual(allNames.map(() => group));
    expect([served.changedPlaces.filter((one) => one === 'top'), served.changedPlaces.at(-1)]).toEqual([
      ['top'],
      'top',
    ]);
  });

  test("with squash=root the store's user changes its own files", async () => {
    const served = await startVolume('root', { squash: 'root', uid: '1001', gid: '1001' });
    plantFiles(served);
    chownSync(served.directory, 1001, 1001);
    expect(await served.chownToGroup(group)).toBeUndefined();
    expect(served.describeFile('.')).toBe('1001:2000 2775');
    expect(served.describeFile('a/b/file')).toBe('1001:2000 660');
  });

  test.each([
    ['a server that maps root to nobody', 'root', {}, 'let root change the group'],
    ['files of another user', 'root', { squash: 'root', uid: '7', gid: '7' }, 'let user 7, to which root is mapped'],
  ] as const)('%s: the call fails with an action', async (_, squash, options, message) => {
    const served = await startVolume(squash, options);
    plantFiles(served);
    expect(await served.chownToGroup(group)).toMatchObject({
      code: 'denied',
      reason: 'group-refused',
      message: expect.stringContaining(message),
      action: expect.stringContaining('squash=all'),
    });
    expect(served.describeFile('.')).toBe('0:0 755');
  });
});

describe.skipIf(lacks('root', 'fuse'))('a mounted volume after its group was changed', () => {
  const runAs = (uid: number, script: string, ...args: readonly string[]) =>
    run('setpriv', [
      '--reuid',
      `${uid}`,
      '--regid',
      `${uid}`,
      '--groups',
      `${group}`,
      'sh',
      '-ec',
      script,
      'sh',
      ...args,
    ]);

  test('lets two users of the group change each other’s files', async () => {
    const served = await startVolume('none');
    plantFiles(served);
    await served.chownToGroup(group);
    chmodSync(served.parent, 0o755);
    await using mount = await mountNfs(served.parent, served);
    await runAs(1003, 'umask 002; cd "$1"; echo first > a/b/file; mkdir d; echo first > d/file', mount.at);
    await runAs(1004, 'umask 002; cd "$1"; echo second >> d/file; mv d/file a/moved; touch d/own', mount.at);
    await runAs(1003, 'cd "$1"; rm a/program; mv d/own d/other; echo third >> a/moved', mount.at);
    expect(served.describeFile('a/moved')).toBe(`1003:${group} 664`);
    expect(served.describeFile('d')).toBe(`1003:${group} 2775`);
    const outsider = run('setpriv', [
      '--reuid',
      '1005',
      '--regid',
      '1005',
      '--clear-groups',
      'touch',
      `${mount.at}/no`,
    ]);
    await expect(outsider).rejects.toThrow('Permission denied');
  });
});
