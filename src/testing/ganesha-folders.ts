import { mkdirSync, realpathSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { scope } from './contracts/store.ts';
import { quickFolder } from './nfs-contents.ts';
import type { Export } from './nfs-store.ts';

/** An nfs-ganesha for the tests of one describe block. */
export interface GaneshaFolders {
  server: NfsServer;
  /** The exported folder on this machine. */
  parent: string;
  /** A new folder in the export, for a store. Folders are never reused, because a server caches their entries. */
  fresh(): Omit<Export, typeof Symbol.asyncDispose>;
}

/** The options of a store on that server. */
export const portsOf = ({ nfsPort, mountPort }: Pick<NfsServer, 'nfsPort' | 'mountPort'>) => ({
  port: `${nfsPort}`,
  mountport: `${mountPort}`,
});

export function ganeshaFolders(what: string): GaneshaFolders {
  let count = 0;
  const fresh: GaneshaFolders['fresh'] = () => {
    const folder = join(it.parent, `${++count}`);
    mkdirSync(folder);
    return { folder, uri: `nfs://${it.server.host}${folder}`, options: portsOf(it.server) };
  };
  const it = { fresh } as GaneshaFolders;
  beforeAll(async () => {
    it.parent = realpathSync(quickFolder(what));
    it.server = await startGanesha({ exports: [{ path: it.parent, tag: 'export' }], signal: scope.signal });
  });
  afterAll(async () => {
    await it.server?.[Symbol.asyncDispose]();
    rmSync(it.parent, { recursive: true, force: true });
  });
  return it;
}
