import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, realpath, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { type Stowage, startStowage } from './stowage.ts';

const exec = promisify(execFile);

/**
 * State and store on a separate file system. After `cut`, everything continues with exactly what the device holds at
 * that moment.
 */
async function createMachine(
  filesystem: string,
): Promise<{ readonly disk: string; start(): Promise<Stowage>; cut(): Promise<void> }> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-cut-')));
  const [image, disk] = [join(top, 'image'), join(top, 'disk')];
  await writeFile(image, '');
  await truncate(image, 500 * 1024 * 1024);
  await exec(`mkfs.${filesystem}`, ['-q', image]);
  await mkdir(disk);
  mountImage(image, disk);
  let server: Stowage | undefined;
  onTestFinished(async () => {
    await server?.stop();
    await exec('umount', [disk]);
    await rm(top, { recursive: true });
  });
  return {
    disk,
    start: async () => {
      server = await startStowage({ state: join(disk, 'state') });
      return server;
    },
    cut: async () => {
      // The shutdown drops the file system's log: everything that has not reached the device is lost, as in a power
      // cut.
      await exec('xfs_io', ['-x', '-c', 'shutdown', disk]);
      server?.signal('SIGKILL');
      await server?.ended();
      // Copies the device: another mount namespace may keep the dead file system mounted, and a mount of the same
      // device would return that one instead of reading the device.
      await exec('cp', ['--sparse=always', image, `${image}-after`]);
      await exec('umount', [disk]);
      mountImage(`${image}-after`, disk, ...(filesystem === 'xfs' ? ['nouuid'] : []));
      // The machine has not rebooted, so the test changes the recorded boot.
      using db = new DatabaseSync(join(disk, 'state', 'state.db'));
      db.exec("DELETE FROM settings WHERE key LIKE 'compared %'");
    },
  };
}

const names = async (server: Stowage, path: string): Promise<string[]> =>
  ((await server.api('GET', path)).body['items'] as { name: string }[]).map(({ name }) => name);

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'xfs', 'ext4'))('a power cut', () => {
  test.each(['xfs', 'ext4'])('loses no acknowledged change (%s)', async (filesystem) => {
    const { disk, start, cut } = await createMachine(filesystem);
    const before = await start();
    await mkdir(join(disk, 'data'));
    await before.api('POST', '/v1/stores', { name: 'data', uri: `local://${disk}/data?onDelete=archive` });
    const { body: token } = await before.api('POST', '/v1/tokens', { name: 'revoked', role: 'admin' });
    for (const name of ['a', 'b', 'c', 'd', 'e']) await before.api('POST', '/v1/volumes', { store: 'data', name });
    expect((await before.api('POST', '/v1/volumes/data..a/rename', { name: 'renamed' })).status).toBe(200);
    expect((await before.api('POST', '/v1/volumes/data..b/expand', { bytes: '1048576' })).status).toBe(200);
    expect((await before.api('PATCH', '/v1/volumes/data..c', { labels: { kept: 'yes' } })).status).toBe(200);
    expect((await before.api('DELETE', '/v1/volumes/data..d')).status).toBe(200);
    expect((await before.api('DELETE', `/v1/tokens/${token['id']}`)).status).toBe(204);
    const { body: status } = await before.api('GET', '/v1/status');
    await cut();

    const server = await start();
    expect((await server.api('GET', '/v1/status')).body['instance']).toBe(status['instance']);
    expect(await names(server, '/v1/stores')).toEqual(['local', 'data']);
    expect(await names(server, '/v1/tokens')).not.toContain('revoked');
    expect(await names(server, '/v1/volumes?store=data')).toEqual(['b', 'c', 'e', 'renamed']);
    expect(await names(server, '/v1/trash')).toEqual(['d']);
    expect((await server.api('GET', '/v1/volumes/data..b')).body).toMatchObject({ bytes: '1048576', condition: 'ok' });
    expect((await server.api('GET', '/v1/volumes?store=data&contains=c')).body['items']).toMatchObject([
      { labels: { kept: 'yes' } },
    ]);
    expect(await names(server, '/v1/stores/data/orphans')).toEqual([]);
  });
});
