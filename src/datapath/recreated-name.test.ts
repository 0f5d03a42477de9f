import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
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
  put(on: Folder): Promise<unknown> | undefined;
  readonly script: string;
  /** Another client's change after the server has executed the call. */
  meanwhile(on: Folder): Promise<unknown> | undefined;
  /** The error that the application gets; '' for success. */
  readonly told: string;
  /** The final names and contents. */
  readonly left: Readonly<Record<string, string>>;
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
  const make = async (name: string, text = theirs, within = directory): Promise<void> => {
    const { handle } = await nfs.create(within, name, { mode: 'guarded', set: { mode: 0o644 } });
    await nfs.write(handle, 0, Buffer.from(text), stability.fileSync);
  };
  return {
    make: (name, text) => make(name, text),
    makeDirectory: async (name, inside) => {
      const { handle } = await nfs.mkdir(directory, name, { mode: 0o755 });
      if (inside !== undefined) await make(inside, theirs, handle);
    },
    remove: (name) => nfs.remove(directory, name),
    rmdir: (name) => nfs.rmdir(directory, name),
    rename: (from, to) => nfs.rename({ directory, name: from }, { directory, name: to }),
  };
}

const theirs = 'of somebody else';
const nothing = (): undefined => undefined;

const cases: Readonly<Record<string, Case>> = {
  unlink: {
    procedure: procedure.remove,
    put: (on) => on.make('x', 'old'),
    script: 'unlink x',
    meanwhile: (on) => on.make('x'),
    told: '',
    left: { x: theirs },
  },
  rmdir: {
    procedure: procedure.rmdir,
    put: (on) => on.makeDirectory('x'),
    script: 'rmdir x',
    meanwhile: (on) => on.makeDirectory('x'),
    told: '',
    left: { x: '' },
  },
  'rename, the old name': {
    procedure: procedure.rename,
    put: (on) => on.make('x', 'moved'),
    script: 'mv x y',
    meanwhile: (on) => on.make('x'),
    told: '',
    left: { x: theirs, y: 'moved' },
  },
  'rename, both names': {
    procedure: procedure.rename,
    put: (on) => on.make('x', 'moved'),
    script: 'mv x y',
    meanwhile: async (on) => {
      await on.rename('y', 'z');
      for (const name of ['x', 'y']) await on.make(name);
    },
    told: '',
    left: { x: theirs, y: theirs, z: 'moved' },
  },
  'create, and no other client did anything': {
    procedure: procedure.create,
    put: nothing,
    script: 'set -C; echo mine > x',
    meanwhile: nothing,
    told: '',
    left: { x: 'mine\n' },
  },
  'create with O_EXCL': {
    procedure: procedure.create,
    put: nothing,
    script: 'set -C; echo mine > x',
    meanwhile: async (on) => {
      await on.remove('x');
      await on.make('x');
    },
    told: 'exist',
    left: { x: theirs },
  },
  mkdir: {
    procedure: procedure.mkdir,
    put: nothing,
    script: 'mkdir x',
    meanwhile: async (on) => {
      await on.rmdir('x');
      await on.makeDirectory('x', 'inside');
    },
    told: 'exist',
    left: { x: 'inside' },
  },
  symlink: {
    procedure: procedure.symlink,
    put: nothing,
    script: 'ln -s target x',
    meanwhile: async (on) => {
      await on.remove('x');
      await on.make('x');
    },
    told: 'exist',
    left: { x: theirs },
  },
  link: {
    procedure: procedure.link,
    put: (on) => on.make('x', 'linked'),
    script: 'ln x y',
    meanwhile: async (on) => {
      await on.remove('y');
      await on.make('y');
    },
    told: 'exist',
    left: { x: 'linked', y: theirs },
  },
};

const contentOf = (path: string): string =>
  statSync(path).isDirectory() ? readdirSync(path).join() : readFileSync(path, 'utf8');

describe.skipIf(needs('root', 'fuse', 'ganesha'))('a name recreated before an old change is resent', () => {
  const it = exportedByGanesha();

  /**
   * The server executed each call, the replies were lost, and the data path is killed. Before the successor resends,
   * another client recreates the same name.
   */
  test('is left unchanged', { timeout: 60_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const begin = async ([name, one]: [string, Case], i: number) => {
      const folder = `case-${i}`;
      const { handle } = await it.nfs.mkdir(it.directory, folder, { mode: 0o755 });
      const on = folderOf(it.nfs, handle);
      await one.put(on);
      const proxy = await startProxy({ host: it.server.host, port: it.server.nfsPort });
      const root = Buffer.from(handle).toString('base64');
      const { at } = await mounts.mount({ host: proxy.host, port: proxy.port, root });
      const held = proxy.holdReplyTo(one.procedure);
      const doing = run('sh', ['-ec', `cd "$1"; ${one.script}`, 'sh', at]).then(
        () => '',
        ({ stderr }: { stderr: string }) => (stderr.includes('exist') ? 'exist' : stderr),
      );
      await Promise.race([held, doing]);
      expect({ [name]: proxy.statuses }).toEqual({ [name]: [0] });
      await one.meanwhile(on);
      return async () => {
        const told = await doing;
        await run('umount', [at]);
        const names = readdirSync(it.on(folder)).toSorted();
        const left = Object.fromEntries(names.map((file) => [file, contentOf(join(it.on(folder), file))]));
        return [name, { told, left }] as const;
      };
    };
    const begun: Awaited<ReturnType<typeof begin>>[] = [];
    for (const [i, one] of Object.entries(cases).entries()) begun.push(await begin(one, i));
    await mounts.killDataPath();
    const found = await Promise.all(begun.map((end) => end()));
    const expected = Object.entries(cases).map(([name, { told, left }]) => [name, { told, left }]);
    expect(Object.fromEntries(found)).toEqual(Object.fromEntries(expected));
  });
});
