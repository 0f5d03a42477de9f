import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { startGanesha } from '#testbed/ganesha.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import {
  type KeeperMount,
  type KeeperMountOptions,
  type KeeperMounts,
  sourceOf,
  startKeeperMounts,
} from './keeper-mounts.ts';
import { createScratchFolder } from './scratch-folder.ts';

/** A mount of an export with room for 4 MiB. */
export interface SmallExport extends AsyncDisposable {
  readonly mounts: KeeperMounts;
  readonly mount: KeeperMount;
  readonly server: NfsServer;
  /** The exported folder on this machine. */
  readonly folder: string;
}

export async function mountSmall(options?: KeeperMountOptions): Promise<SmallExport> {
  await using undo = new AsyncDisposableStack();
  const mounts = undo.use(await startKeeperMounts(options));
  const scratch = undo.use(createScratchFolder());
  const folder = join(scratch.folder, 'small');
  mkdirSync(folder);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'stowage-nfs', folder]);
  const exports = [{ path: folder, tag: 'small' }] as const;
  const server = undo.use(await startGanesha({ exports, signal: scratch.scope.signal }));
  const mount = await mounts.mount(await sourceOf(server, 'small'));
  const all = undo.move();
  return { mounts, mount, server, folder, [Symbol.asyncDispose]: () => all.disposeAsync() };
}
