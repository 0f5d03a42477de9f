import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { scope } from '#testing/contracts/store.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { expectError, refusal } from '#testing/expected-errors.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { nfsStatus } from '#wire/nfs3/index.ts';
import { create, mkdir } from '#wire/nfs3/procedures.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { newProcessMark } from './lock-marks.ts';

type Options = Readonly<Record<string, string>>;

const spec = (name: string): VolumeSpec => ({
  id: newVolumeId(),
  name: volumeName(name),
  bytes: undefined,
  access: 'filesystem',
  labels: {},
  requestId: `request ${name}`,
  createdAt: 1,
  instance: 'instance-1',
});

describe.skipIf(lacks('ganesha', 'mount'))('nfs-ganesha', () => {
  let scratch: ScratchFolder;
  let ganesha: NfsServer;

  const pathIn = (...names: readonly string[]): string => join(scratch.folder, ...names);
  const locationOf = (path: string): string => `${ganesha.host}:${pathIn(path)}`;
  // All opens belong to one process, which recognizes its own earlier files.
  const marks = { own: newProcessMark(), dead: [] };

  async function open(path: string, more: Options = {}, readOnly = false): Promise<FileStore> {
    const options = { port: `${ganesha.nfsPort}`, mountport: `${ganesha.mountPort}`, ...more };
    const store = await openNfs({ uri: `nfs://${ganesha.host}${pathIn(path)}`, options, readOnly, marks });
    onTestFinished(() => store.close());
    return store;
  }

  beforeAll(async () => {
    scratch = createScratchFolder();
    const folders = ['plain', 'squashed', 'read-only', 'privileged', 'small'];
    for (const name of folders) mkdirSync(pathIn(name));
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=256k', 'stowage-test', pathIn('small')]);
    const exportOptions = {
      squashed: { squash: 'root' },
      'read-only': { readOnly: true },
      privileged: { privilegedPort: true },
    };
    const [first, ...others] = folders.map((name) => ({
      path: pathIn(name),
      tag: name,
      ...(exportOptions as Record<string, object>)[name],
    }));
    if (first === undefined) throw new Error('no exports');
    ganesha = await startGanesha({ exports: [first, ...others], signal: scratch.scope.signal });
  });
  afterAll(async () => {
    await ganesha?.[Symbol.asyncDispose]();
    scratch?.[Symbol.dispose]();
  });

  test('reports an export that does not exist', async () => {
    const error = await refusal(open('nothing'));
    expectError(error, {
      code: 'unavailable',
      reason: 'nfs-export-withheld',
      message: new RegExp(
        `${locationOf('nothing')}\\) failed: ${ganesha.host} denies access to ${pathIn('nothing')} and does not list it: it is not exported, or not to this host; it exports ${pathIn('plain')}, `,
      ),
      action: /^Correct the path in the store's URI, or have the server's administrator export it/,
    });
  });

  test('reports a wrong port of the MOUNT service', async () => {
    const mountport = `${ganesha.nfsPort}`;
    expectError(await refusal(open('plain', { mountport })), {
      code: 'unavailable',
      reason: 'nfs-no-mount-service',
      message: new RegExp(
        `${locationOf('plain')}\\) failed: ${ganesha.host} speaks NFS, but has no MOUNT service on port ${mountport}$`,
      ),
      action: /^Correct mountport/,
    });
  });

  test('reports root squash, and works as the owner of the directory', async () => {
    expectError(await refusal(open('squashed')), {
      code: 'denied',
      reason: 'nfs-root-squash',
      message: new RegExp(`the server denies root access to ${locationOf('squashed')}: it seems to map root to nobody`),
      action:
        /^Set squash=root with the uid and gid that own the directory on the server; or have the server's administrator export it with no_root_squash\.$/,
    });
    const options = { squash: 'root', uid: '1000', gid: '1000' };
    expectError(await refusal(open('squashed', options)), {
      code: 'denied',
      reason: 'store-permission',
      message: new RegExp(`permission denied in ${locationOf('squashed')} for user 1000$`),
      action: /^On the server, make user 1000 the owner of the directory \(chown 1000 …\)/,
    });
    chownSync(pathIn('squashed'), 1000, 1000);
    const store = await open('squashed', options);
    await store.create(spec('mine'), scope);
    expect(readdirSync(pathIn('squashed')).sort()).toEqual(['.stowage', 'mine', 'mine.meta']);
  });

  test('reports that a privileged port is required, and works with one', async () => {
    expectError(await refusal(open('privileged')), {
      code: 'denied',
      reason: 'nfs-privileged-port',
      message: new RegExp(
        `${locationOf('privileged')}\\) failed: ${ganesha.host} accepts calls only from privileged ports, those below 1024$`,
      ),
      action: /^Set sourceport=privileged \(Stowage then needs root or CAP_NET_BIND_SERVICE\)/,
    });
    const store = await open('privileged', { sourceport: 'privileged' });
    await store.create(spec('mine'), scope);
    expect(readdirSync(pathIn('privileged'))).toContain('mine');
  });

  test('reports a read-only export, and works as a read-only store', async () => {
    expectError(await refusal(open('read-only')), {
      code: 'denied',
      reason: 'nfs-read-only',
      message: new RegExp(`${locationOf('read-only')} is read-only: the export, or its file system on the server$`),
      action: /^Have the server's administrator export it read-write \(rw\), or set readOnly=true on the store\.$/,
    });
    mkdirSync(pathIn('read-only', 'old'));
    const store = await open('read-only', {}, true);
    expect(await store.names(scope)).toEqual(['old']);
  });

  test('reports a full disk, and rolls back the operation', async () => {
    const store = await open('small');
    writeFileSync(pathIn('small', 'filler'), Buffer.alloc(64 * 1024));
    const fill = (): void => {
      for (let i = 0; ; i++) writeFileSync(pathIn('small', `filler-${i}`), Buffer.alloc(4096));
    };
    expect(fill).toThrow(/ENOSPC/);
    const before = readdirSync(pathIn('small'), { recursive: true }).length;
    expectError(await refusal(store.create(spec('big'), scope)), {
      code: 'exhausted',
      reason: 'store-full',
      message: new RegExp(
        `^creating volume 'big' in store test failed: no space left on the server's disk of ${locationOf('small')}$`,
      ),
      action: /^Delete volumes or files that are no longer needed, or have the server's administrator add space\.$/,
    });
    expect(readdirSync(pathIn('small'), { recursive: true })).toHaveLength(before);
  });

  test('reports a frozen server as a timeout, and a retry finds what was done', async () => {
    const store = await open('plain', { timeout: '3s' });
    await ganesha.freeze();
    try {
      expectError(await refusal(store.create(spec('late'), scope)), {
        code: 'deadline',
        reason: 'nfs-timeout',
        message: new RegExp(
          `^creating volume 'late' in store test \\(${locationOf('plain')}\\) failed: ${ganesha.host} did not answer in time; the operation may have been done, and a retry is safe$`,
        ),
        action: /^Try again\. If it persists/,
      });
      // A call that only reads has no effect, so the error must not say that it may have been done.
      const silence = new RegExp(`failed: ${ganesha.host} did not answer in time$`);
      const reading = [refusal(store.get(volumeName('late'), scope)), refusal(store.names(scope))];
      for (const error of [...(await Promise.all(reading)), await refusal(open('plain', { timeout: '3s' }))])
        expect(error).toMatchObject({ reason: 'nfs-timeout', message: expect.stringMatching(silence) });
    } finally {
      ganesha.thaw();
    }
    const thawedAt = performance.now();
    const reopened = await open('plain');
    // After the thaw the server may still execute the delayed CREATE, unless the connection was reset before.
    const isRecordComplete = (): boolean => {
      const made = statSync(pathIn('plain', 'late.meta'), { throwIfNoEntry: false });
      if (made === undefined) return performance.now() - thawedAt > 5_000;
      return Math.abs(made.mtimeMs - made.ctimeMs) > 60_000;
    };
    await expect.poll(isRecordComplete, { timeout: 10_000 }).toBe(true);
    // When the server is back, our client checks the file of its lost call. If it does so between CREATE and the setting of the mtime,
    // ganesha returns the wrong mtime for a minute. During that time the record seems to belong to another host, and create fails with 'busy'.
    const create = async (): Promise<string> => {
      try {
        return (await reopened.create(spec('late'), scope)).name;
      } catch (cause) {
        if (cause instanceof StowageError && cause.code === 'busy') return cause.code;
        throw cause;
      }
    };
    let outcome = await create();
    while (outcome === 'busy' && performance.now() - thawedAt < 150_000) outcome = await create();
    expect(outcome).toBe('late');
  }, 200_000);

  test('resends a call whose reply was lost, without an error', async () => {
    // The proxy uses the server's own address, because the MOUNT service is there, too.
    const proxy = await startProxy({ host: ganesha.host, port: ganesha.nfsPort }, ganesha.host);
    const store = await open('plain', { port: `${proxy.port}` });
    for (const [i, procedure] of [create.number, mkdir.number].entries()) {
      proxy.cutReplyTo(procedure);
      expect(await store.create(spec(`cut-${i}`), scope)).toMatchObject({ name: `cut-${i}` });
      expect(proxy.statuses).toEqual([0, nfsStatus.EXIST]);
    }
  });

  test('distinguishes an unreadable directory from a failed connection', async () => {
    mkdirSync(pathIn('plain', 'locked'));
    chmodSync(pathIn('plain', 'locked'), 0o700);
    const error = await refusal(open('plain/locked', { squash: 'root', uid: '1000' }));
    expect(error).toMatchObject({ code: 'denied', reason: 'store-permission' });
  });
});

describe('our own server', () => {
  const open = async (own: OwnServer, path: string, more: Options = {}): Promise<FileStore> => {
    const port = `${own.server.port}`;
    const store = await openNfs({ uri: `nfs://127.0.0.1${path}`, options: { port, mountport: port, ...more } });
    onTestFinished(() => store.close());
    return store;
  };

  test('reports a removed directory, and one that was recreated', async () => {
    const own = await startOwnServer({ path: '/export' });
    const folder = join(own.directory, 'gone');
    mkdirSync(folder);
    const store = await open(own, '/export/gone');
    await store.create(spec('a'), scope);
    rmSync(folder, { recursive: true });
    expectError(await refusal(store.create(spec('b'), scope)), {
      code: 'unavailable',
      reason: 'nfs-export-unknown',
      message:
        /^creating volume 'b' in store test \(127\.0\.0\.1:\/export\/gone\) failed: 127\.0\.0\.1 has no directory \/export\/gone to mount/,
      action: /have the server's administrator export it/,
    });
    mkdirSync(folder);
    expectError(await refusal(store.create(spec('b'), scope)), {
      code: 'unavailable',
      reason: 'store-identity',
      message:
        /^127\.0\.0\.1:\/export\/gone is not the expected store: it is store without an id; expected [-0-9a-f]{36}$/,
      action: /stowage store adopt test/,
    });
    expect(readdirSync(folder)).toEqual([]);
  });

  test('reports a read-only export', async () => {
    const own = await startOwnServer({ path: '/export', readOnly: true });
    expect(await refusal(open(own, '/export'))).toMatchObject({ code: 'denied', reason: 'nfs-read-only' });
  });

  test.skipIf(lacks('linux', 'root'))('reports that MOUNT requires a privileged port, too', async () => {
    const own = await startOwnServer({ path: '/export', privilegedPorts: true });
    expect(await refusal(open(own, '/export'))).toMatchObject({ code: 'denied', reason: 'nfs-privileged-port' });
    const store = await open(own, '/export', { sourceport: 'privileged' });
    expect(await store.names(scope)).toEqual([]);
  });

  test('works with one source port if MOUNT and NFS share a port', async () => {
    const own = await startOwnServer({ path: '/export' });
    const sourceport = `${20_000 + (process.pid % 10_000)}`;
    const store = await open(own, '/export', { sourceport });
    expect(await store.names(scope)).toEqual([]);
  });
});
