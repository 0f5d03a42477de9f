import { mkdirSync } from 'node:fs';
import { systemClock } from '#base/clock.ts';
import { createBudget, maxUnwrittenBytes } from '#datapath/budget.ts';
import { type FileSystemOptions, openFileSystem } from '#datapath/file-system.ts';
import { fuseInitOptions } from '#datapath/fuse-init-options.ts';
import type { UncommittedWrites } from '#datapath/writes.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { createMemoryNodes, createMemoryProofs, type MemoryNodes } from './fakes/memory-nodes.ts';
import { type FuseMount, mountFuse } from './fuse-mount.ts';
import type { OpenExport } from './nfs-export.ts';

export interface NfsMount extends FuseMount {
  readonly nodes: MemoryNodes;
  readonly operations: Partial<Operations>;
  readonly behind: UncommittedWrites;
}

export const asCaller = { squash: 'none', uid: 65534, gid: 65534, machine: 'stowage-test' } as const;

/**
 * Makes a real mount of a directory of an NFS server, in `folder`. State that outlives the process in production is in
 * memory here.
 */
export async function mountNfs(
  folder: string,
  { nfs, root }: Pick<OpenExport, 'nfs' | 'root'>,
  options: Partial<FileSystemOptions> = {},
  clock = systemClock(),
): Promise<NfsMount> {
  const nodes = createMemoryNodes(root);
  const proofs = createMemoryProofs();
  let mount: FuseMount | undefined;
  const { operations, uncommitted: behind } = openFileSystem({
    nfs,
    nodes,
    proofs,
    clock,
    options: { identity: asCaller, ...options },
    notify: (bytes) => mount?.device.write(bytes),
    notifyFromThread: async (bytes) => await mount?.device.writeInThread(bytes),
    writeBehind: {
      journal: { keep: (place) => mount?.keep(place), free: (place) => mount?.free(place) },
      budget: createBudget(maxUnwrittenBytes),
      ready: () => undefined,
    },
  });
  mkdirSync(folder, { recursive: true });
  const slots = { slots: 64, onFull: behind.commitSoon, checks: options.checks ?? 'kernel' };
  mount = await mountFuse({ folder }, clearing(operations, proofs), fuseInitOptions({ locks: 'node' }), slots);
  return Object.assign(mount, { nodes, operations, behind });
}

/** Clears a request's proof when the request is answered. */
function clearing(operations: Partial<Operations>, proofs: ReturnType<typeof createMemoryProofs>): Partial<Operations> {
  type AnyOperation = (...args: unknown[]) => unknown;
  const cleared =
    (does: AnyOperation): AnyOperation =>
    (...args) => {
      const { slot: place } = args.at(-1) as Request;
      const result = does(...args);
      return result instanceof Promise ? result.finally(() => proofs.clear(place)) : result;
    };
  const all = Object.entries(operations).map(([name, does]) => [
    name,
    name === 'forget' ? does : cleared(does as AnyOperation),
  ]);
  return Object.fromEntries(all) as Partial<Operations>;
}
