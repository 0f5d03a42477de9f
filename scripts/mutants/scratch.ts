import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, cp, glob, mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { onPath } from '#testbed/component.ts';

/** A copy of a checkout that may be changed, with its own temporary folder for tests. */
export interface Scratch {
  readonly root: string;
  readonly temporary: string;
  /** The files that the reporter and `inside.ts` write. */
  readonly eventsFile: string;
  readonly leftFile: string;
  readonly logFile: string;
  write(file: string, text: string): Promise<void>;
  /** Removes what tests left behind. Returns a line for each loop device, and for each folder that can't be removed. */
  clean(): Promise<readonly string[]>;
}

/**
 * Folders that are neither sources nor tests. Without the bundle, bin/stowage runs the sources, which contain the
 * mutant.
 */
const notCopied = /^(?:node_modules|\.git|dist|\.stowage-.*)$/;

/** Vitest and Vite write these folders, so every scratch copy gets its own. */
const caches = ['.vite', '.vitest-cache', '.vite-temp'];

/** With short names: tests create Unix sockets in it, and the path of a socket has at most 107 bytes. */
export async function createScratch(checkout: string, folder: string, name: string): Promise<Scratch> {
  const root = join(folder, `c${name}`);
  const temporary = join(folder, `t${name}`);
  await cp(checkout, root, {
    recursive: true,
    verbatimSymlinks: true,
    filter: (from) => dirname(from) !== checkout || !notCopied.test(basename(from)),
  });
  await linkPackages(join(checkout, 'node_modules'), join(root, 'node_modules'));
  await makeTemporary(temporary);
  return {
    root,
    temporary,
    eventsFile: join(folder, `events${name}`),
    leftFile: join(folder, `left${name}`),
    logFile: join(folder, `log${name}`),
    write: async (file, text) => await writeFile(join(root, file), text),
    clean: async () => {
      const left = await detachLoopDevices(temporary);
      for (const path of [temporary, ...(await strayFolders(root))]) {
        await rm(path, { recursive: true, force: true, maxRetries: 10 }).catch((error: Error) =>
          left.push(`folder ${path}: ${error.message}`),
        );
      }
      await makeTemporary(temporary);
      return left;
    },
  };
}

/** Ordinary users may create folders in it, because some tests run as one. */
async function makeTemporary(path: string): Promise<void> {
  await mkdir(path, { recursive: true });
  await chmod(path, 0o1777);
}

async function linkPackages(from: string, to: string): Promise<void> {
  await mkdir(to);
  if (!existsSync(from)) return;
  for (const name of await readdir(from)) {
    if (!caches.includes(name)) await symlink(join(from, name), join(to, name));
  }
}

/** Folders that tests create in the checkout. */
async function strayFolders(root: string): Promise<readonly string[]> {
  return (await Array.fromAsync(glob('.stowage-*', { cwd: root }))).map((name) => join(root, name));
}

async function detachLoopDevices(below: string): Promise<string[]> {
  const lines: string[] = [];
  for await (const path of glob('/sys/block/loop*/loop/backing_file')) {
    const file = (await readFile(path, 'utf8').catch(() => '')).trimEnd();
    if (!file.startsWith(`${below}/`)) continue;
    const device = `/dev/${path.split('/')[3]}`;
    lines.push(`loop device ${device} on ${file}`);
    await promisify(execFile)(onPath('losetup') ?? 'losetup', ['--detach', device], { timeout: 10_000 }).catch(
      (error: Error) => lines.push(`${device} can't be detached: ${error.message}`),
    );
  }
  return lines;
}
