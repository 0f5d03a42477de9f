import { closeSync, existsSync, openSync, readFileSync, readSync } from 'node:fs';
import { copyFile, cp, mkdir, mkdtempDisposable, rename, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Component, cacheFolder, onPath, testbedCommand } from './component.ts';
import type { TestEngine } from './engine-machine.ts';
import { pack } from './pack-image.ts';
import { digest } from './rootfs.ts';
import { runner } from './run.ts';

export const busybox: Component = {
  what: 'busybox, in one file without libraries: the image that tests run in containers',
  probe: () => {
    const program = onPath('busybox');
    if (program === undefined) return 'not found: busybox';
    return needsLinker(program) ? `${program} needs libraries` : undefined;
  },
  command: testbedCommand,
  packages: () => ['busybox-static'],
};

export const busyboxImage = 'busybox:testbed';

/** Loads the image and returns its name. It has an ordinary user, `user`, with id 1000. */
export async function loadBusybox(engine: Pick<TestEngine, 'run'>, signal: AbortSignal): Promise<string> {
  await engine.run('load', '--quiet', '--input', await busyboxTar(signal));
  return busyboxImage;
}

/** Increased when the build of the image changes. */
const formatVersion = 1;

async function busyboxTar(signal: AbortSignal): Promise<string> {
  const program = onPath('busybox') ?? 'busybox';
  const tar = join(cacheFolder(), `busybox-${digest(`${formatVersion}`, readFileSync(program, 'base64'))}.tar`);
  if (existsSync(tar)) return tar;
  const run = runner(signal);
  await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-busybox-'));
  const root = join(work.path, 'root');
  for (const name of ['bin', 'etc', 'tmp', 'root', 'home/user']) await mkdir(join(root, name), { recursive: true });
  await copyFile(program, join(root, 'bin/busybox'));
  const applets = (await run(program, ['--list'])).split('\n').filter((name) => name !== '' && name !== 'busybox');
  for (const applet of applets) await symlink('busybox', join(root, 'bin', applet));
  await run('chmod', ['1777', join(root, 'tmp')]);
  await run('chown', ['1000:1000', join(root, 'home/user')]);
  const users = ['root:x:0:0:root:/root:/bin/sh', 'user:x:1000:1000:user:/home/user:/bin/sh', ''];
  await writeFile(join(root, 'etc/passwd'), users.join('\n'));
  await writeFile(join(root, 'etc/group'), 'root:x:0:\nuser:x:1000:\n');
  const config = { Cmd: ['/bin/sh'], Env: ['PATH=/bin'] };
  const partialTar = await pack({ root, name: busyboxImage, config, work: work.path, run });
  await mkdir(cacheFolder(), { recursive: true });
  await cp(partialTar, `${tar}.${process.pid}`);
  await rename(`${tar}.${process.pid}`, tar);
  return tar;
}

/** Reads the ELF program headers: PT_INTERP names a dynamic linker. */
function needsLinker(path: string): boolean {
  const head = Buffer.alloc(4096);
  const file = openSync(path, 'r');
  try {
    readSync(file, head, 0, head.length, 0);
  } finally {
    closeSync(file);
  }
  const [start, size, count] = [Number(head.readBigUInt64LE(32)), head.readUInt16LE(54), head.readUInt16LE(56)];
  return Array.from({ length: count }, (_, i) => head.readUInt32LE(start + i * size)).includes(3);
}
