import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { unmountedImage } from '#base/e2fsprogs.ts';
import { type Scope, silentLog } from '#base/log.ts';

/** A temporary folder to mount in. Disposing of it removes all mounts, loop devices and files. */
export interface ScratchFolder extends Disposable {
  readonly folder: string;
  readonly scope: Scope;
  /** Creates a sparse file, with a file system if `kind` is given. */
  image(name: string, mib: number, kind?: 'xfs' | 'ext4'): string;
  /** The mount points in the folder, in the order of `findmnt`. */
  mounts(): readonly string[];
  /** The loop devices on files of the folder, or on that file only. */
  loops(file?: string): readonly string[];
}

/** `prefix` of the folder's name, for tests that need a short path. */
export function createScratchFolder(prefix = 'stowage-test-'): ScratchFolder {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), prefix)));
  const isOn = (path: string, file?: string): boolean =>
    file === undefined ? path.startsWith(`${folder}/`) : path === file;
  const mounts = (): readonly string[] =>
    readFileSync('/proc/self/mountinfo', 'utf8')
      .split('\n')
      .map((line) => line.split(' ')[4] ?? '')
      .filter((at) => at === folder || at.startsWith(`${folder}/`));
  const loops = (file?: string): readonly string[] =>
    readdirSync('/sys/block')
      .filter((name) => name.startsWith('loop') && isOn(backingFile(name), file))
      .map((name) => `/dev/${name}`);
  return {
    folder,
    scope: { signal: new AbortController().signal, log: silentLog() },
    mounts,
    loops,
    image: (name, mib, kind) => {
      const path = join(folder, name);
      writeFileSync(path, '');
      truncateSync(path, mib * 2 ** 20);
      if (kind !== undefined)
        execFileSync(`mkfs.${kind}`, ['-q', path], { stdio: 'pipe', env: { PATH: searchPath, ...unmountedImage } });
      return path;
    },
    [Symbol.dispose]: () => {
      for (const at of mounts().toReversed()) quietly('umount', '--lazy', '--', at);
      for (const loop of loops()) quietly('losetup', '--detach', loop);
      // If a mount is left, removing the folder would delete the files behind the mount.
      const left = mounts();
      if (left.length > 0) throw new Error(`still mounted: ${left.join(', ')}`);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

const searchPath = `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin`;

function backingFile(name: string): string {
  try {
    return readFileSync(`/sys/block/${name}/loop/backing_file`, 'utf8').replace(/\n$/, '');
  } catch {
    return '';
  }
}

function quietly(program: string, ...args: readonly string[]): void {
  try {
    execFileSync(program, args, { stdio: 'ignore', timeout: 10_000, env: { PATH: searchPath } });
  } catch {
    // The mount or device is already gone, or the next pass finds it.
  }
}
