import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { startKeeperMounts } from '#testing/keeper-mounts.ts';
import { run } from '#testing/workloads.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { type FileHandle, stability } from '#wire/nfs3/structures.ts';

/** NFSv3 procedure. */
const procedure = { create: 8, mkdir: 9, symlink: 10, remove: 12, rmdir: 13, rename: 14, link: 15 } as const;

interface Case {
  readonly procedure: number;
  /** The initial files. */
  prepare(on: Folder): Promise<unknown> | undefined;
  readonly script: string;
  /** Another client's change after the server has executed the call. */
  changeByOther(on: Folder): Promise<unknown> | undefined;
  /** The error that the application gets; '' for success. */
  readonly expectedError: string;
  /** The final names and contents. */
  readonly finalContent: Readonly<Record<string, string>>;
}

/** Through the server, because it has its own cache. */
interface Folder {
  make(name: string, text?: string): Promise<void>;
  makeDirectory(name: string, inside?: string): Promise<void>;
  remove(name: string): Promise<unknown>;
  rmdir(name: string): Promise<unknown>;
  rename(from: string, to: string): Promise<unknown>;
}

function folderOf(nfs: NfsClient, directory: FileHandle): Folder {
  const make = async (name: string, text = foreignContent, within = directory): Promise<void> => {
    const { handle } = await nfs.create(within, name, { mode: 'guarded', set: { mode: 0o644 } });
    await nfs.write(handle, 0, Buffer.from(text), stability.fileSync);
  };
  return {
    make: (name, text) => make(name, text),
    makeDirectory: async (name, inside) => {
      const { handle } = await nfs.mkdir(directory, name, { mode: 0o755 });
      if (inside !== undefined) await make(inside, foreignContent, handle);
    },
    remove: (name) => nfs.remove(directory, name),
    rmdir: (name) => nfs.rmdir(directory, name),
    rename: (from, to) => nfs.rename({ directory, name: from }, { directory, name: to }),
  };
}

const foreignContent = 'of somebody else';
const doNothing = (): undefined => undefined;

const cases: Readonly<Record<string, Case>> = {
  unlink: {
    procedure: procedure.remove,
    prepare: (on) => on.make('x', 'old'),
    script: 'unlink x',
    changeByOther: (on) => on.make('x'),
    expectedError: '',
    finalContent: { x: foreignContent },
  },
  rmdir: {
    procedure: procedure.rmdir,
    prepare: (on) => on.makeDirectory('x'),
    script: 'rmdir x',
    changeByOther: (on) => on.makeDirectory('x'),
    expectedError: '',
    finalContent: { x: '' },
  },
  'rename, the old name': {
    procedure: procedure.rename,
    prepare: (on) => on.make('x', 'moved'),
    script: 'mv x y',
    changeByOther: (on) => on.make('x'),
    expectedError: '',
    finalContent: { x: foreignContent, y: 'moved' },
  },
  'rename, both names': {
    procedure: procedure.rename,
    prepare: (on) => on.make('x', 'moved'),
    script: 'mv x y',
    changeByOther: async (on) => {
      await on.rename('y', 'z');
      for (const name of ['x', 'y']) await on.make(name);
    },
    expectedError: '',
    finalContent: { x: foreignContent, y: foreignContent, z: 'moved' },
  },
  'create, and no other client did anything': {
    procedure: procedure.create,
    prepare: doNothing,
    script: 'set -C; echo mine > x',
    changeByOther: doNothing,
    expectedError: '',
    finalContent: { x: 'mine\n' },
  },
  'create with O_EXCL': {
    procedure: procedure.create,
    prepare: doNothing,
    script: 'set -C; echo mine > x',
    changeByOther: async (on) => {
      await on.remove('x');
      await on.make('x');
    },
    expectedError: 'exist',
    finalContent: { x: foreignContent },
  },
  mkdir: {
    procedure: procedure.mkdir,
    prepare: doNothing,
    script: 'mkdir x',
    changeByOther: async (on) => {
      await on.rmdir('x');
      await on.makeDirectory('x', 'inside');
    },
    expectedError: 'exist',
    finalContent: { x: 'inside' },
  },
  symlink: {
    procedure: procedure.symlink,
    prepare: doNothing,
    script: 'ln -s target x',
    changeByOther: async (on) => {
      await on.remove('x');
      await on.make('x');
    },
    expectedError: 'exist',
    finalContent: { x: foreignContent },
  },
  link: {
    procedure: procedure.link,
    prepare: (on) => on.make('x', 'linked'),
    script: 'ln x y',
    changeByOther: async (on) => {
      await on.remove('y');
      await on.make('y');
    },
    expectedError: 'exist',
    finalContent: { x: 'linked', y: foreignContent },
  },
};

const contentOf = (path: string): string =>
  statSync(path).isDirectory() ? readdirSync(path).join() : readFileSync(path, 'utf8');

describe.skipIf(lacks('root', 'fuse', 'ganesha'))('a name recreated before an old change is resent', () => {
  const exported = exportedByGanesha();

  /**
   * The server executed each call, the replies were lost, and the data path is killed. Before the successor resends,
   * another client recreates the same name.
   */
  test('is left unchanged', { timeout: 60_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const startCase = async ([name, one]: [string, Case], i: number) => {
      const folder = `case-${i}`;
      const { handle } = await exported.nfs.mkdir(exported.directory, folder, { mode: 0o755 });
      const folderOnServer = folderOf(exported.nfs, handle);
      await one.prepare(folderOnServer);
      const proxy = await startProxy({ host: exported.server.host, port: exported.server.nfsPort });
      const root = Buffer.from(handle).toString('base64');
      const { at } = await mounts.mount({ host: proxy.host, port: proxy.port, root });
      const heldReply = proxy.holdReplyTo(one.procedure);
      const commandResult = run('sh', ['-ec', `cd "$1"; ${one.script}`, 'sh', at]).then(
        () => '',
        ({ stderr }: { stderr: string }) => (stderr.includes('exist') ? 'exist' : stderr),
      );
      await Promise.race([heldReply, commandResult]);
      expect({ [name]: proxy.statuses }).toEqual({ [name]: [0] });
      await one.changeByOther(folderOnServer);
      return async () => {
        const told = await commandResult;
        await run('umount', [at]);
        const names = readdirSync(exported.on(folder)).toSorted();
        const left = Object.fromEntries(names.map((file) => [file, contentOf(join(exported.on(folder), file))]));
        return [name, { told, left }] as const;
      };
    };
    const startedCases: Awaited<ReturnType<typeof startCase>>[] = [];
    for (const [i, one] of Object.entries(cases).entries()) startedCases.push(await startCase(one, i));
    await mounts.killDataPath();
    const found = await Promise.all(startedCases.map((end) => end()));
    const expected = Object.entries(cases).map(([name, { expectedError: told, finalContent: left }]) => [
      name,
      { told, left },
    ]);
    expect(Object.fromEntries(found)).toEqual(Object.fromEntries(expected));
  });
});
