import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, realpath, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { type Answer, type Stowage, startStowage } from './stowage.ts';

const exec = promisify(execFile);

let testFolder: string;
let disk: string;
let config: string;

/** A separate disk that can be frozen. A call that writes to a frozen disk hangs, and no signal interrupts it. */
beforeEach(async () => {
  testFolder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-hung-')));
  disk = join(testFolder, 'disk');
  const image = join(testFolder, 'image');
  await writeFile(image, '');
  await truncate(image, 64 * 1024 * 1024);
  await exec('mkfs.ext4', ['-q', image]);
  await mkdir(disk);
  mountImage(image, disk);
  for (const folder of [join(disk, 'slow'), join(testFolder, 'fine')]) await mkdir(folder);
  config = join(testFolder, 'stowage.yaml');
  await writeFile(config, `stores:\n  fine: local://${testFolder}/fine\n  slow: local://${disk}/slow\n`);
  onTestFinished(async () => {
    await exec('umount', [disk]);
    await rm(testFolder, { recursive: true });
  });
});

async function startServer(): Promise<Stowage> {
  const server = await startStowage({ state: join(testFolder, 'state'), config });
  onTestFinished(() => server.stop());
  return server;
}

/**
 * Freezes the disk until the end of the test at most: a process that waits for a frozen disk can't be killed, not even
 * by SIGKILL.
 */
async function freeze(): Promise<() => Promise<void>> {
  await exec('fsfreeze', ['--freeze', disk]);
  let frozen = true;
  const thaw = async (): Promise<void> => {
    if (frozen) await exec('fsfreeze', ['--unfreeze', disk]);
    frozen = false;
  };
  onTestFinished(thaw);
  return thaw;
}

const create = (server: Stowage, store: string, name: string): Promise<Answer> =>
  server.api('POST', '/v1/volumes', { store, name });

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'ext4'))('a disk that does not answer', () => {
  test('delays only requests for its own store, and everything works again when the disk is back', async () => {
    const server = await startServer();
    expect((await create(server, 'slow', 'before')).status).toBe(201);
    const thaw = await freeze();
    // More requests than the thread pool has threads.
    const waiting = Array.from({ length: 100 }, (_, i) => create(server, 'slow', `v${i}`));
    await delay(500);
    for (const name of ['a', 'b', 'c']) expect((await create(server, 'fine', name)).status).toBe(201);
    expect((await server.api('DELETE', '/v1/volumes/fine..a')).status).toBe(200);
    const { stdout } = await server.cli('volume', 'list', '--json');
    expect(JSON.parse(stdout).map(({ name }: { name: string }) => name)).toEqual(['b', 'c', 'before']);
    const check = await server.cli('store', 'check', 'slow');
    expect(check).toMatchObject({ status: 1, stdout: expect.stringContaining('no answer within 15 s') });
    await thaw();
    for (const { status } of await Promise.all(waiting)) expect(status).toBe(201);
    expect((await server.cli('store', 'check', 'slow')).status).toBe(0);
  });

  test('does not prevent the start of the server', async () => {
    const thaw = await freeze();
    const server = await startServer();
    expect(server.output()).toContain("warning  store slow: store 'slow' is still being opened");
    expect((await create(server, 'fine', 'a')).status).toBe(201);
    await thaw();
    expect((await create(server, 'slow', 'a')).status).toBe(201);
  });
});
