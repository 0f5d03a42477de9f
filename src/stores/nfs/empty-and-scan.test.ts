import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join, relative } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import { DeadlineExceeded, systemClock } from '#base/clock.ts';
import type { Volume } from '#core/model.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls } from '#testing/nfs-tap.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Deletes and measures whole trees of users' files through the server.

describe.skipIf(lacks('ganesha'))('on nfs-ganesha', () => {
  const ganesha = ganeshaFolders('trees');
  let folder: string;
  let freshExport: ReturnType<typeof ganesha.fresh>;
  let hook: CallInterceptor;
  beforeEach(() => {
    freshExport = ganesha.fresh();
    ({ folder } = freshExport);
    hook = ({ make }) => make();
  });

  function open(instance = 'instance-1', more: Readonly<Record<string, string>> = {}): Promise<FileStore> {
    const connect = interceptCalls(createConnect(systemClock()), (call) => hook(call));
    const kind = createNfsStoreKind(systemClock(), connect);
    return openNfs({ ...freshExport, options: { ...freshExport.options, ...more }, instance, kind });
  }

  const deletingEntries = (): string[] => readdirSync(join(folder, '.stowage', 'deleting'));

  /** Creates a deep and wide tree with every kind of file that a user can create. */
  function plantTree({ name }: Volume, files = 300): string {
    const top = join(folder, name);
    let deepest = top;
    for (let i = 0; i < 60; i++) {
      deepest = join(deepest, 'd');
      mkdirSync(deepest);
    }
    writeFileSync(join(deepest, 'bottom'), 'x');
    mkdirSync(join(top, 'wide'));
    for (let i = 0; i < files; i++) writeFileSync(join(top, 'wide', `${i}`), '');
    writeFileSync(join(top, 'closed file'), 'x', { mode: 0 });
    mkdirSync(join(top, 'closed'));
    writeFileSync(join(top, 'closed', 'inside'), 'x');
    chmodSync(join(top, 'closed'), 0);
    execFileSync('mkfifo', [join(top, 'pipe')]);
    // A name that is not UTF-8.
    writeFileSync(Buffer.concat([Buffer.from(`${top}/`), Buffer.from([0xff, 0xfe])]), 'x');
    return top;
  }

  test('removes a deep and wide tree, and not the targets of its links', async () => {
    const store = await open();
    const [made, neighbour] = [await store.create(volumeSpec('a'), scope), await store.create(volumeSpec('b'), scope)];
    const top = plantTree(made);
    const { folder: outside } = ganesha.fresh();
    for (const kept of [outside, join(folder, 'b')]) writeFileSync(join(kept, 'kept'), 'kept');
    for (const [name, target] of Object.entries({
      absolute: outside,
      relative: relative(join(top, 'wide'), outside),
      neighbour: '../b',
      up: '..',
      self: '.',
      loop: 'loop',
      dangling: '/nowhere',
      root: '/',
      file: join(outside, 'kept'),
      meta: '../b.meta',
    }))
      symlinkSync(target, join(top, 'wide', name));
    symlinkSync(outside, join(top, 'link'));

    await store.delete(made, scope);
    expect([existsSync(top), deletingEntries()]).toEqual([false, [made.id]]);
    await store.housekeeping.reclaim(scope);
    expect(deletingEntries()).toEqual([]);
    expect(readFileSync(join(outside, 'kept'), 'utf8')).toBe('kept');
    expect(readFileSync(join(folder, 'b', 'kept'), 'utf8')).toBe('kept');
    expect((await store.get(neighbour.name, scope))?.condition).toBe('ok');
    expect(await store.housekeeping.orphans(scope)).toEqual([]);
  });

  test('removes a link that replaced the data, and not its target', async () => {
    const store = await open();
    const made = await store.create(volumeSpec('a'), scope);
    const { folder: outside } = ganesha.fresh();
    writeFileSync(join(outside, 'kept'), 'kept');
    rmSync(join(folder, 'a'), { recursive: true });
    symlinkSync(outside, join(folder, 'a'));
    await store.delete(made, scope);
    await store.housekeeping.reclaim(scope);
    expect([readdirSync(folder), deletingEntries(), readdirSync(outside)]).toEqual([['.stowage'], [], ['kept']]);
  });

  test('reports what cannot be removed, and removes the rest', async () => {
    chownSync(folder, 1000, 1000);
    const store = await open('instance-1', { squash: 'all', uid: '1000', gid: '1000' });
    const [one, two] = [await store.create(volumeSpec('a'), scope), await store.create(volumeSpec('b'), scope)];
    writeFileSync(join(folder, 'b', 'file'), 'x');
    for (const file of ['1', '2', '3']) writeFileSync(join(folder, 'a', file), 'x');
    mkdirSync(join(folder, 'a', 'of root'), { mode: 0o755 });
    for (const file of ['file', 'other']) writeFileSync(join(folder, 'a', 'of root', file), 'x');
    for (const volume of [one, two]) await store.delete(volume, scope);
    await store.housekeeping.reclaim(scope);
    expect(deletingEntries()).toEqual([one.id]);
    // The siblings of the directory were removed.
    expect(readdirSync(deletedAt(one))).toEqual(['of root']);
    const detail = expect.stringMatching(/of root\/(file|other): REMOVE: NFS3ERR_ACCES; 1 more refused/);
    expect(await store.housekeeping.orphans(scope)).toMatchObject([
      { kind: 'leftover', name: expect.stringContaining(one.id), detail },
    ]);
    chownSync(join(deletedAt(one), 'of root'), 1000, 1000);
    await store.housekeeping.reclaim(scope);
    expect([deletingEntries(), await store.housekeeping.orphans(scope)]).toEqual([[], []]);
  });

  const deletedAt = ({ id }: Volume): string => join(folder, '.stowage', 'deleting', id);

  test('two hosts can free the same space at once', async () => {
    const [one, two] = [await open('one'), await open('two')];
    for (const called of ['a', 'b', 'c']) {
      const made = await one.create(volumeSpec(called), scope);
      plantTree(made, 100);
      await one.delete(made, scope);
    }
    await Promise.all([
      one.housekeeping.reclaim(scope),
      two.housekeeping.reclaim(scope),
      one.housekeeping.reclaim(scope),
    ]);
    expect(deletingEntries()).toEqual([]);
    expect([await one.housekeeping.orphans(scope), await two.housekeeping.orphans(scope)]).toEqual([[], []]);
  });

  test('stops when its signal aborts, and continues in the next call', async () => {
    const store = await open();
    const made = await store.create(volumeSpec('a'), scope);
    plantTree(made);
    await store.delete(made, scope);
    const controller = new AbortController();
    let removed = 0;
    hook = ({ procedure, make }) => {
      if (procedure === 'remove' && ++removed === 50) controller.abort();
      return make();
    };
    const stopped = store.housekeeping.reclaim({ ...scope, signal: controller.signal });
    await expect(stopped).rejects.toMatchObject({ code: 'canceled' });
    const remainingCount = readdirSync(deletedAt(made), { recursive: true }).length;
    expect(remainingCount).toBeGreaterThan(50);
    hook = ({ make }) => make();
    await store.housekeeping.reclaim(scope);
    expect(deletingEntries()).toEqual([]);
  });

  describe('usage', () => {
    test('equals the result of du: counts hard links once, and neither holes nor targets of symbolic links', async () => {
      const store = await open();
      const made = await store.create(volumeSpec('a'), scope);
      const top = plantTree(made, 20);
      writeFileSync(join(top, 'large'), Buffer.alloc(300_000, 1));
      for (let i = 0; i < 5; i++) linkSync(join(top, 'large'), join(top, 'wide', `again-${i}`));
      symlinkSync(ganesha.parent, join(top, 'link'));
      execFileSync('truncate', ['--size=100M', join(top, 'hole')]);
      const du = execFileSync('du', ['--summarize', '--block-size=1', top], { encoding: 'utf8' });
      const usage = await store.usage(made, scope);
      expect(usage).toMatchObject({ complete: true, bytes: BigInt(du.split('\t')[0] ?? '') });
      const inodes = execFileSync('du', ['--summarize', '--inodes', top], { encoding: 'utf8' });
      // du also counts the directory itself.
      expect(usage.files).toBe(BigInt(inodes.split('\t')[0] ?? '') - 1n);
    });

    test('is a lower bound at the deadline, and an error when canceled', async () => {
      const store = await open();
      const made = await store.create(volumeSpec('a'), scope);
      plantTree(made);
      const fullUsage = await store.usage(made, scope);
      for (const [reason, expected] of [
        [new DeadlineExceeded(1), 'a lower bound'],
        [undefined, 'canceled'],
      ] as const) {
        const controller = new AbortController();
        let listed = 0;
        hook = ({ procedure, make }) => {
          if (procedure === 'readdirplus' && ++listed === 10) controller.abort(reason);
          return make();
        };
        const measured = store.usage(made, { ...scope, signal: controller.signal });
        if (expected === 'canceled') await expect(measured).rejects.toMatchObject({ code: 'canceled' });
        else {
          const { complete, bytes, files } = await measured;
          expect(complete).toBe(false);
          expect(bytes).toBeLessThan(fullUsage.bytes);
          expect(files).toBeGreaterThan(0n);
        }
      }
    });

    test('of an unreadable directory is a lower bound', async () => {
      chownSync(folder, 1000, 1000);
      const store = await open('instance-1', { squash: 'all', uid: '1000', gid: '1000' });
      const made = await store.create(volumeSpec('a'), scope);
      writeFileSync(join(folder, 'a', 'file'), Buffer.alloc(100_000, 1));
      mkdirSync(join(folder, 'a', 'of root'), { mode: 0o700 });
      const { complete, bytes } = await store.usage(made, scope);
      expect([complete, bytes >= 100_000n]).toEqual([false, true]);
    });
  });
});
