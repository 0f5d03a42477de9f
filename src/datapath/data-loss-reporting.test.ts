import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { useFiles } from '#testing/file-user.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { type KeeperMount, type KeeperMounts, sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { mountSmall } from '#testing/small-export.ts';

const run = promisify(execFile);
const mebibyte = 1024 * 1024;
const dyingDataPath = join(import.meta.dirname, '..', 'testing', 'dying-data-path.ts');

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'python3'))('loss of acknowledged data', () => {
  test.each(['killDataPath', 'upgrade'] as const)(
    'is reported to the application after %s',
    { timeout: 60_000 },
    async (replace) => {
      await using small = await mountSmall();
      const { mounts, mount } = small;
      await using user = useFiles();
      const path = mount.on('file');
      const [file, other] = [await user.open(path), await user.open(path)];
      const results: string[] = [];
      for (let i = 0; i < 8; i++) results.push(await user.write(file, i * mebibyte, mebibyte, 'x'));
      results.push(await user.sync(file));
      expect(results).toContain('ENOSPC');
      // Nothing is left that a successor could resend and fail with.
      expect(await user.sync(file)).toBe('ok');
      await afterLastAnswer(mount, 'first');
      await mounts[replace]();
      const openedLater = await user.open(path);
      expect([await user.sync(openedLater), await user.sync(other), await user.sync(other)]).toEqual([
        'ok',
        'ENOSPC',
        'ok',
      ]);
      // Reported again: the successor does not know which open files have reported it.
      expect([await user.sync(file), await user.sync(file)]).toEqual(['ENOSPC', 'ok']);
      // All open files have reported it.
      await afterLastAnswer(mount, 'second');
      await mounts[replace]();
      for (const openFile of [file, other, openedLater])
        expect([await user.sync(openFile), await user.close(openFile)]).toEqual(['ok', 'ok']);
      await run('umount', [mount.at]);
    },
  );

  test('is reported again if the data path was killed before it recorded the answer', {
    timeout: 60_000,
  }, async () => {
    await using small = await mountSmall({ program: dyingDataPath });
    const { mounts, mount } = small;
    await using user = useFiles();
    const file = await user.open(mount.on('file'));
    // A later write may report the loss of an earlier one, or fsync does.
    let result = 'ok';
    for (let i = 0; i < 8 && result === 'ok'; i++) result = await user.write(file, i * mebibyte, mebibyte, 'x');
    if (result === 'ok') result = await user.sync(file);
    expect(result).toBe('ENOSPC');
    await eventually(mounts.ready, ({ takeovers }) => takeovers === 1);
    // The successor handles the answered request again. Its answer reaches no process, so it must not count as
    // reported.
    expect([await user.sync(file), await user.sync(file), await user.close(file)]).toEqual(['ENOSPC', 'ok', 'ok']);
    await run('umount', [mount.at]);
  });

  test('is not reported to a later open if no other process has the file open', { timeout: 60_000 }, async () => {
    await using small = await mountSmall();
    const { mounts, mount } = small;
    await using user = useFiles();
    const path = mount.on('file');
    const [file, reader] = [await user.open(path), await user.open(path, 'O_RDONLY')];
    const results: string[] = [];
    for (let i = 0; i < 8; i++) results.push(await user.write(file, i * mebibyte, mebibyte, 'x'));
    results.push(await user.close(file));
    expect(results).toContain('ENOSPC');
    // A reader was not told and does not ask.
    expect(await user.close(reader)).toBe('ok');
    await mounts.killDataPath();
    const next = await user.open(path);
    await mounts.killDataPath();
    expect([await user.sync(next), await user.close(next)]).toEqual(['ok', 'ok']);
    await run('umount', [mount.at]);
  });

  test.each([
    { event: 'nothing', cause: () => Promise.resolve() },
    { event: 'the data path is killed', cause: (mounts: KeeperMounts) => mounts.killDataPath() },
  ])(
    'is reported to the next open if the writer was killed: $what in between',
    {
      timeout: 60_000,
    },
    async ({ cause: between }) => {
      await using small = await mountSmall();
      const { mounts, mount, server } = small;
      await using user = useFiles();
      const path = mount.on('file');
      const writer = spawn('python3', ['-c', writerScript, path], { stdio: ['pipe', 'pipe', 'inherit'] });
      const lines = createInterface({ input: writer.stdout })[Symbol.asyncIterator]();
      await lines.next();
      await server.freeze();
      try {
        writer.stdin.write('go\n');
        expect((await lines.next()).value).toBe('written');
        await eventually(
          () => mount.waiting(),
          (count) => count > 0,
        );
        writer.kill('SIGKILL');
        await once(writer, 'exit');
      } finally {
        server.thaw();
      }
      expect(await mount.flush(30_000)).toBe(0);
      await between(mounts);
      const logged = mounts
        .log()
        .split('\n')
        .filter((line) => line.includes('acknowledged data were lost'));
      expect(JSON.parse(logged[0] ?? '{}')).toMatchObject({
        level: 'error',
        mount: 'mnt-1',
        error: 'ENOSPC',
        file: `${statSync(join(small.folder, 'file')).ino}`,
      });
      const next = await user.open(path);
      expect([await user.sync(next), await user.sync(next), await user.close(next)]).toEqual(['ENOSPC', 'ok', 'ok']);
      const last = await user.open(path);
      expect([await user.sync(last), await user.close(last)]).toEqual(['ok', 'ok']);
      await run('umount', [mount.at]);
    },
  );
});

/**
 * A data path killed right after it answered an fsync may not have recorded that: its successor handles the request
 * again, and no process gets that answer. A later request to the server is answered only after all earlier answers were
 * recorded.
 */
async function afterLastAnswer(mount: KeeperMount, newName: string): Promise<void> {
  await expect(stat(mount.on(newName))).rejects.toThrow('ENOENT');
}

/** Writes more than fits, then waits for the result. */
const writerScript = `
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
print('open', flush=True)
sys.stdin.readline()
for i in range(6): os.pwrite(file, b'x' * 1048576, i * 1048576)
print('written', flush=True)
os.close(file)
`;

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'python3'))('flush before unmount', () => {
  const ganesha = ganeshaFolders('acknowledged');

  test('reports what the server does not have yet, and the server gets it when it answers', {
    timeout: 60_000,
  }, async () => {
    await using mounts = await startKeeperMounts();
    const { folder } = ganesha.fresh();
    const mount = await mounts.mount(await sourceOf(ganesha.server, folder));
    await using user = useFiles();
    const files = [await user.open(mount.on('one')), await user.open(mount.on('two'))];
    expect(await mount.flush(10_000)).toBe(0);
    await ganesha.server.freeze();
    try {
      for (const file of files) expect(await user.write(file, 0, mebibyte, 'x')).toBe('ok');
      expect(await mount.flush(300)).toBe(2);
      await mounts.killDataPath();
      expect(await mount.flush(300)).toBe(2);
    } finally {
      ganesha.server.thaw();
    }
    expect(await mount.flush(30_000)).toBe(0);
    for (const name of ['one', 'two'])
      expect(readFileSync(join(folder, name)).equals(Buffer.alloc(mebibyte, 'x'))).toBe(true);
    for (const file of files) expect(await user.close(file)).toBe('ok');
    await run('umount', [mount.at]);
  });

  test('is answered by the successor if the data path is replaced meanwhile', {
    timeout: 60_000,
  }, async () => {
    await using mounts = await startKeeperMounts();
    const { folder } = ganesha.fresh();
    const mount = await mounts.mount(await sourceOf(ganesha.server, folder));
    await using user = useFiles();
    const file = await user.open(mount.on('file'));
    await ganesha.server.freeze();
    let flushResult: Promise<number> | undefined;
    try {
      expect(await user.write(file, 0, mebibyte, 'x')).toBe('ok');
      flushResult = mount.flush(30_000);
      await mounts.killDataPath();
    } finally {
      ganesha.server.thaw();
    }
    expect(await flushResult).toBe(0);
    expect(readFileSync(join(folder, 'file')).equals(Buffer.alloc(mebibyte, 'x'))).toBe(true);
    expect(await user.close(file)).toBe('ok');
    await run('umount', [mount.at]);
  });
});
