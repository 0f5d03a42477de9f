import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { startGanesha } from '#testbed/ganesha.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { type KeepOptions, type KeptMount, type KeptMounts, keepMounts, sourceOf } from './keeper-mounts.ts';
import { createGround } from './scratch-folder.ts';

/** A mount of an export that has room for 4 MiB. */
export interface SmallExport extends AsyncDisposable {
  readonly mounts: KeptMounts;
  readonly mount: KeptMount;
  readonly server: NfsServer;
  /** What is exported, on this machine. */
  readonly folder: string;
}

export async function mountSmall(options?: KeepOptions): Promise<SmallExport> {
  await using undo = new AsyncDisposableStack();
  const mounts = undo.use(await keepMounts(options));
  const ground = undo.use(createGround());
  const folder = join(ground.folder, 'small');
  mkdirSync(folder);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'stowage-nfs', folder]);
  const exports = [{ path: folder, tag: 'small' }] as const;
  const server = undo.use(await startGanesha({ exports, signal: ground.scope.signal }));
  const mount = await mounts.mount(await sourceOf(server, 'small'));
  const all = undo.move();
  return { mounts, mount, server, folder, [Symbol.asyncDispose]: () => all.disposeAsync() };
}
