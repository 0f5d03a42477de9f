import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import { type OpenExport, openExport } from './nfs-export.ts';
import { createScratchFolder, type ScratchFolder } from './scratch-folder.ts';

/** An nfs-ganesha for the tests of one describe block, and an exported folder for each test. */
export interface ExportedFolder {
  scratch: ScratchFolder;
  server: NfsServer;
  open: OpenExport;
  nfs: NfsClient;
  /** The folder as an NFS handle, and its path on the disk. */
  directory: FileHandle;
  folder: string;
  on(name: string): string;
  /** Freezes the server during the work. */
  frozen(work: () => Promise<unknown>): Promise<void>;
}

/** `inMemory`: on a tmpfs of 1 GiB, for tests with very many files. */
export function exportedByGanesha({ inMemory = false } = {}): ExportedFolder {
  const frozen: ExportedFolder['frozen'] = async (work) => {
    await it.server.freeze();
    try {
      await work();
    } finally {
      it.server.thaw();
    }
  };
  const it = { frozen, on: (name: string) => join(it.folder, name) } as ExportedFolder;
  let count = 0;
  beforeAll(async () => {
    it.scratch = createScratchFolder();
    const path = join(it.scratch.folder, 'exported');
    mkdirSync(path);
    if (inMemory) execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1g', 'stowage-nfs', path]);
    it.server = await startGanesha({ exports: [{ path, tag: 'it' }], signal: it.scratch.scope.signal });
    it.open = await openExport(it.server, 'it');
    it.nfs = it.open.nfs;
  });
  afterAll(async () => {
    it.open?.[Symbol.dispose]();
    await it.server?.[Symbol.asyncDispose]();
    it.scratch?.[Symbol.dispose]();
  });
  beforeEach(async () => {
    const name = `test-${++count}`;
    it.folder = join(it.scratch.folder, 'exported', name);
    ({ handle: it.directory } = await it.nfs.mkdir(it.open.root, name, { mode: 0o755 }));
  });
  return it;
}
