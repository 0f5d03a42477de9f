import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';

/** Asynchronous, since the server runs in this process. */
const run = promisify(execFile);
const limits = { timeout: 20_000, maxBuffer: 32 * 1024 * 1024 };

describe.skipIf(lacks('linux', 'libnfs'))('the programs of libnfs', () => {
  const startExport = (): Promise<OwnServer> => startOwnServer({ path: '/export' });
  const urlOf = ({ server }: OwnServer, path: string): string =>
    `nfs://${server.host}/export${path}?nfsport=${server.port}&mountport=${server.port}`;

  test('nfs-ls lists a directory, its entries, and links', async () => {
    const own = await startExport();
    fs.mkdirSync(join(own.directory, 'sub/deeper'), { recursive: true });
    fs.writeFileSync(join(own.directory, 'file'), 'x'.repeat(1234), { mode: 0o640 });
    fs.symlinkSync('file', join(own.directory, 'link'));
    for (let i = 0; i < 500; i++) fs.closeSync(fs.openSync(join(own.directory, 'sub', `entry-${i}`), 'w'));
    const { stdout: listing } = await run('nfs-ls', [urlOf(own, '/')], limits);
    expect(listing).toMatch(/^-rw-r-----.*\s1234\sfile$/m);
    expect(listing).toMatch(/^drwxr-xr-x.*\ssub$/m);
    expect(listing).toMatch(/^lrwxrwxrwx.*\slink/m);
    const { stdout: recursiveListing } = await run('nfs-ls', ['-R', urlOf(own, '/')], limits);
    expect(recursiveListing.match(/entry-\d+$/gm)).toHaveLength(500);
    expect(recursiveListing).toContain('deeper');
    expect(own.errors).toEqual([]);
  });

  test('nfs-cp copies files in both directions, and nfs-cat prints a file', async () => {
    const own = await startExport();
    const data = randomBytes(5 * 1024 * 1024 + 77);
    const [from, copiedBack] = [join(own.outside, 'from'), join(own.outside, 'back')];
    fs.writeFileSync(from, data);
    await run('nfs-cp', [from, urlOf(own, '/copied')], limits);
    expect(fs.readFileSync(join(own.directory, 'copied')).equals(data)).toBe(true);
    await run('nfs-cp', [urlOf(own, '/copied'), copiedBack], limits);
    expect(fs.readFileSync(copiedBack).equals(data)).toBe(true);
    const { stdout } = await run('nfs-cat', [urlOf(own, '/copied')], { ...limits, encoding: 'buffer' });
    expect(stdout.equals(data)).toBe(true);
    expect(own.errors).toEqual([]);
  });

  test('report an error for a path that is absent or not exported', async () => {
    const own = await startExport();
    await expect(run('nfs-cat', [urlOf(own, '/missing')], limits)).rejects.toMatchObject({
      stderr: expect.stringContaining('NFS3ERR_NOENT'),
    });
    const wrongUrl = urlOf(own, '/').replace('/export/', '/elsewhere/');
    await expect(run('nfs-ls', [wrongUrl], limits)).rejects.toMatchObject({
      stderr: expect.stringMatching(/MNT3ERR_NOENT/),
    });
  });
});
