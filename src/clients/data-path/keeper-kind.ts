import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Mounts of different kinds need different keepers: they connect from different networks, or with different rights. */
export interface KeeperKind {
  readonly network: string | undefined;
  readonly privilegedPorts: boolean;
}

/** The kind as recorded in a file beside the keeper's folder. */
export interface StoredKeeperKind extends KeeperKind {
  /** The namespace of its network in which the keeper was started. */
  readonly namespace?: string | undefined;
  /** The keeper runs as a process beside this one for now, and will move to a container of its own. */
  readonly isMoving?: boolean;
}

export interface KeeperKindFiles {
  write(name: string, kind: StoredKeeperKind): Promise<void>;
  read(name: string): Promise<StoredKeeperKind>;
}

export function createKeeperKindFiles(folder: string): KeeperKindFiles {
  const kindFile = (name: string): string => join(folder, `${name}.json`);

  return {
    write: async (name, kind) => {
      // Beside the keeper's folder, where the keeper cannot change it.
      const draft = `${kindFile(name)}.new`;
      await writeFile(draft, JSON.stringify(kind), { mode: 0o600 });
      await rename(draft, kindFile(name));
    },
    read: async (name) => JSON.parse(await readFile(kindFile(name), 'utf8')),
  };
}
