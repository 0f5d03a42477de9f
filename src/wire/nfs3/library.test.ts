import { execFile } from 'node:child_process';
import { chmodSync, writeFileSync } from 'node:fs';
import { copyFile, mkdir, mkdtempDisposable, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';

const exec = promisify(execFile);

test('the example of the README works without the repository, with only the file that it names', async () => {
  const own = await startOwnServer({ path: '/export' });
  const notes = join(own.directory, 'notes.txt');
  writeFileSync(notes, 'to be read\n');
  // Readable for the user of the example.
  chmodSync(notes, 0o644);
  chmodSync(own.directory, 0o755);

  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-library-'));
  const installed = join(home.path, 'node_modules', 'stowage');
  await mkdir(join(installed, 'dist'), { recursive: true });
  const built = join(home.path, 'built');
  await exec(process.execPath, [join(repository, 'scripts', 'build.ts'), built], { timeout: 60_000 });
  await copyFile(join(built, 'nfs3.mjs'), join(installed, 'dist', 'nfs3.mjs'));
  await copyFile(join(repository, 'package.json'), join(installed, 'package.json'));

  const [, example = ''] =
    /```ts\n(.*?)```/s.exec(await readFile(join(import.meta.dirname, 'README.md'), 'utf8')) ?? [];
  const here = example.replaceAll(/host: '10\.0\.0\.5', port: \d+/g, `host: '127.0.0.1', port: ${own.server.port}`);
  expect(here).not.toContain('10.0.0.5');
  await writeFile(join(home.path, 'example.mts'), here);
  const { stdout, stderr } = await exec(process.execPath, ['example.mts'], { cwd: home.path, timeout: 30_000 });
  expect([stdout, stderr]).toEqual(['to be read\n', '']);
});
