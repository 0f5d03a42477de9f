import { existsSync, mkdirSync, readdirSync, rmdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Access, VolumeId } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { Mounter, MountPoint } from '#core/ports.ts';
import { scope } from './store.ts';
import { refused, twice } from './twice.ts';

/** A mounter, and an empty folder to mount in. The folder's path contains no symbolic link. */
export interface MounterUnderTest extends Disposable {
  readonly mounter: Mounter;
  readonly folder: string;
  /** A folder in `folder` where mounting is forbidden, except directly in `published`. */
  readonly forbidden: string;
  readonly published: string;
  /** Mounts a file system at that path, like another program. */
  occupy(at: string, how?: { readonly readOnly: boolean }): void;
  /** Works in the mount at that path, like a program, until the returned object is disposed of. */
  use(at: string): Disposable;
}

/** The contract of the port `Mounter`. */
export function mounterContract(title: string, make: () => MounterUnderTest): void {
  describe(`${title}: the contract of a mounter`, () => {
    let under: MounterUnderTest;
    let mounter: Mounter;
    const at = (name: string): string => join(under.folder, name);
    const writable = { readOnly: false };
    const readOnly = { readOnly: true };
    const bind = (from: string, to: string, how = writable): Promise<void> =>
      mounter.bind(at(from), at(to), how, scope);
    const pointAt = async (path: string): Promise<MountPoint | undefined> =>
      (await mounter.list(scope)).find((point) => point.at === path);
    const mounted = async (): Promise<readonly string[]> =>
      (await mounter.list(scope)).map((point) => point.at).filter((path) => path.startsWith(under.folder));

    beforeEach(() => {
      under = make();
      ({ mounter } = under);
      for (const name of ['from', 'other', 'to']) mkdirSync(at(name));
      writeFileSync(at('file'), 'text');
      writeFileSync(at('place'), '');
    });
    afterEach(() => under[Symbol.dispose]());

    describe('bind', () => {
      test('shows the same device and root as its source', async () => {
        under.occupy(at('from'));
        await twice(() => bind('from', 'to'));
        expect(await mounted()).toEqual([at('from'), at('to')]);
        const [from, to] = [await pointAt(at('from')), await pointAt(at('to'))];
        expect(to).toMatchObject({ device: from?.device, root: from?.root, source: from?.source, type: from?.type });
        expect(await mounter.isMounted(at('to'), scope)).toBe(true);
      });

      test('of a bind mount shows the same device and root as the first bind mount', async () => {
        await bind('from', 'to');
        await twice(() => mounter.bind(at('to'), at('other'), writable, scope));
        const [first, second] = [await pointAt(at('to')), await pointAt(at('other'))];
        expect([second?.device, second?.root]).toEqual([first?.device, first?.root]);
      });

      test('mounts a file on a file, and refuses a target of another type', async () => {
        await twice(() => bind('file', 'place'));
        expect(await mounted()).toEqual([at('place')]);
        for (const [from, to] of [
          ['file', 'to'],
          ['from', 'file'],
        ] as const)
          expect(await refused(() => bind(from, to))).toMatchObject({ code: 'conflict', reason: 'target-kind' });
        expect(await mounted()).toEqual([at('place')]);
      });

      test.each([
        ['missing', 'to'],
        ['from', 'missing'],
      ])('refuses to mount %s at %s', async (from, to) => {
        expect(await refused(() => bind(from, to))).toMatchObject({ code: 'not-found', reason: 'path-missing' });
        expect(await mounted()).toEqual([]);
      });

      test('refuses a path where something else is mounted', async () => {
        under.occupy(at('to'));
        expect(await refused(() => bind('from', 'to'))).toMatchObject({ code: 'conflict', reason: 'mount-occupied' });
        await bind('from', 'other');
        mkdirSync(at('another'));
        expect(await refused(() => bind('another', 'other'))).toMatchObject({ reason: 'mount-occupied' });
      });

      test('makes a writable mount read-only, and refuses to make a read-only mount writable', async () => {
        await bind('from', 'to');
        expect(await pointAt(at('to'))).toMatchObject({ readOnly: false });
        await twice(() => bind('from', 'to', readOnly));
        expect(await pointAt(at('to'))).toMatchObject({ readOnly: true });
        expect(await refused(() => bind('from', 'to'))).toMatchObject({
          code: 'conflict',
          reason: 'mounted-read-only',
        });
        expect(await mounted()).toEqual([at('to')]);
      });

      test('of a read-only file system is always read-only', async () => {
        under.occupy(at('from'), readOnly);
        expect(await refused(() => bind('from', 'to'))).toMatchObject({ code: 'conflict', reason: 'source-read-only' });
        await twice(() => bind('from', 'to', readOnly));
        expect(await pointAt(at('to'))).toMatchObject({ readOnly: true });
      });

      test('refuses a target that has become a symbolic link', async () => {
        rmdirSync(at('to'));
        symlinkSync(at('other'), at('to'));
        expect(await refused(() => bind('from', 'to'))).toMatchObject({ code: 'conflict', reason: 'path-moved' });
        expect(await mounted()).toEqual([]);
      });

      test('mounts nothing when its signal is aborted', async () => {
        const ended = { ...scope, signal: AbortSignal.abort(new Error('enough')) };
        await expect(mounter.bind(at('from'), at('to'), writable, ended)).rejects.toThrow('enough');
        expect(await mounted()).toEqual([]);
      });
    });

    describe('unmount', () => {
      test('removes the mount at the path, and nothing else', async () => {
        await bind('from', 'to');
        await bind('from', 'other');
        await twice(() => mounter.unmount(at('to'), scope));
        expect(await mounted()).toEqual([at('other')]);
        expect(await mounter.isMounted(at('to'), scope)).toBe(false);
      });

      test('of a path that was never mounted, or that does not exist, succeeds', async () => {
        await twice(() => mounter.unmount(at('to'), scope));
        await twice(() => mounter.unmount(at('missing/below'), scope));
      });

      test('is refused while a program works in the mount', async () => {
        await bind('from', 'to');
        {
          using _busy = under.use(at('to'));
          expect(await refused(() => mounter.unmount(at('to'), scope))).toMatchObject({
            code: 'in-use',
            reason: 'mount-busy',
            message: expect.stringContaining(`${at('to')} cannot be unmounted: it is in use`),
          });
          expect(await mounted()).toEqual([at('to')]);
        }
        await mounter.unmount(at('to'), scope);
        expect(await mounted()).toEqual([]);
      });

      test('is refused while another mount is inside the mount', async () => {
        // In both folders, because a fake mount shows no files of its source.
        for (const name of ['from/sub', 'to/sub']) mkdirSync(at(name));
        await bind('from', 'to');
        await bind('other', 'to/sub');
        expect(await refused(() => mounter.unmount(at('to'), scope))).toMatchObject({ code: 'in-use' });
        await mounter.unmount(at('to/sub'), scope);
        await mounter.unmount(at('to'), scope);
        expect(await mounted()).toEqual([]);
      });

      test('reveals the files that the mount had hidden', async () => {
        under.occupy(at('to'));
        const before = await pointAt(at('to'));
        under.occupy(at('to'));
        expect(await mounted()).toEqual([at('to')]);
        expect((await pointAt(at('to')))?.device).not.toBe(before?.device);
        await mounter.unmount(at('to'), scope);
        expect(await pointAt(at('to'))).toEqual(before);
      });
    });

    test('detach removes a mount that is in use from the mount table, with all mounts inside', async () => {
      for (const name of ['from/sub', 'to/sub']) mkdirSync(at(name));
      await bind('from', 'to');
      await bind('other', 'to/sub');
      using _busy = under.use(at('to'));
      await twice(() => mounter.detach(at('to'), scope));
      expect(await mounted()).toEqual([]);
      await twice(() => mounter.detach(at('to'), scope, { abort: true }));
    });

    test('detach with abort removes a mount that is in use, and nothing else', async () => {
      under.occupy(at('to'));
      await bind('from', 'other');
      using _busy = under.use(at('to'));
      await twice(() => mounter.detach(at('to'), scope, { abort: true }));
      expect(await mounted()).toEqual([at('other')]);
    });

    test('isMounted is false for a path that does not exist', async () => {
      expect(await twice(() => mounter.isMounted(at('missing/below'), scope))).toBe(false);
    });

    test('a folder that is opened for engines is a tmpfs, and closing it removes it unless something is mounted inside', async () => {
      const folder = under.published;
      await twice(() => mounter.openShared(folder, scope));
      expect((await mounter.list(scope)).filter((point) => point.at === folder)).toMatchObject([{ type: 'tmpfs' }]);
      mkdirSync(join(folder, 'a'));
      await mounter.bind(at('from'), join(folder, 'a'), writable, scope);
      await twice(() => mounter.closeShared(folder, scope));
      expect(await mounted()).toEqual([folder, join(folder, 'a')]);
      await mounter.unmount(join(folder, 'a'), scope);
      await twice(() => mounter.closeShared(folder, scope));
      expect(await mounted()).toEqual([]);
      expect(readdirSync(folder)).toEqual([]);
    });

    describe('a target path', () => {
      const inspect = (path: string, access: Access = 'filesystem') => mounter.inspectTarget(path, access, scope);
      const make = (path: string, access: Access = 'filesystem') => mounter.makeTarget(path, access, scope);

      test.each<[Access]>([['filesystem'], ['block']])('is made, found and removed (%s)', async (access) => {
        const target = at('new');
        expect(await twice(() => inspect(target, access))).toEqual({ target, existed: false });
        expect(existsSync(target)).toBe(false);
        await twice(() => make(target, access));
        expect(await twice(() => inspect(target, access))).toEqual({ target, existed: true });
        await twice(() => mounter.removeTarget(target, scope));
        expect(existsSync(target)).toBe(false);
      });

      test('is returned with its symbolic links resolved', async () => {
        symlinkSync(under.folder, at('link'));
        symlinkSync(at('to'), at('own'));
        expect(await twice(() => inspect(at('link/new')))).toEqual({ target: at('new'), existed: false });
        expect(await twice(() => inspect(at('own')))).toEqual({ target: at('to'), existed: true });
        expect(await twice(() => mounter.resolvePath(at('link/to'), scope))).toBe(at('to'));
        expect(await twice(() => mounter.resolvePath(at('own'), scope))).toBe(at('to'));
        expect(await twice(() => mounter.resolvePath(at('missing/to'), scope))).toBeUndefined();
      });

      test('is refused if it is not empty, has the wrong type or has no parent', async () => {
        writeFileSync(at('to/file'), '');
        const why = async (path: string, access?: Access): Promise<string> =>
          (await refused(() => inspect(path, access))).reason;
        expect(await why(at('to'))).toBe('target-not-empty');
        expect(await why(at('file'), 'block')).toBe('target-not-empty');
        expect(await why(at('place'))).toBe('target-kind');
        expect(await why(at('other'), 'block')).toBe('target-kind');
        expect(await why(at('missing/new'))).toBe('target-parent-missing');
        expect(await why('/etc/new')).toBe('target-forbidden');
      });

      test('inside a folder of Stowage is refused, except directly in the folder where engines find volumes', async () => {
        expect(await refused(() => inspect(join(under.forbidden, 'new')))).toMatchObject({
          reason: 'target-forbidden',
        });
        const target = join(under.published, 'new');
        expect(await twice(() => inspect(target))).toEqual({ target, existed: false });
      });

      test('is neither read nor removed while something is mounted on it', async () => {
        writeFileSync(at('from/file'), '');
        await bind('from', 'to');
        expect(await twice(() => inspect(at('to')))).toEqual({ target: at('to'), existed: true });
        expect(await twice(() => mounter.resolvePath(at('to'), scope))).toBe(at('to'));
        await twice(() => mounter.removeTarget(at('to'), scope));
        expect(await mounted()).toEqual([at('to')]);
      });

      test('is kept if it is not empty', async () => {
        writeFileSync(at('to/file'), '');
        await twice(() => mounter.removeTarget(at('to'), scope));
        expect(readdirSync(at('to'))).toEqual(['file']);
      });
    });

    test('reap unmounts unused stages of unknown volumes', async () => {
      const [known, stale, busy, empty] = [newVolumeId(), newVolumeId(), newVolumeId(), newVolumeId()] as const;
      const stage = (name: string): string => join(at('mounts'), name);
      for (const name of [known, stale, busy, empty, 'foreign']) mkdirSync(stage(name), { recursive: true });
      for (const name of [known, stale, busy, 'foreign']) await mounter.bind(at('from'), stage(name), writable, scope);
      using _busy = under.use(stage(busy));
      const reap = (): Promise<readonly string[]> => mounter.reap(at('mounts'), new Set<VolumeId>([known]), scope);
      expect((await reap()).toSorted()).toEqual([stage(stale), stage(empty)].sort());
      expect(await reap()).toEqual([]);
      expect((await mounted()).toSorted()).toEqual([known, busy, 'foreign'].map(stage).sort());
      expect(await twice(() => mounter.reap(at('missing'), new Set(), scope))).toEqual([]);
    });
  });
}

/** The contract of a `Mounter` that cannot mount. The rest of the contract of `Mounter` does not apply. */
export function unableMounterContract(title: string, make: () => Pick<MounterUnderTest, 'mounter' | 'folder'>): void {
  describe(`${title}: the contract of a mounter that cannot mount`, () => {
    test('says why it cannot mount and what to do', () => {
      const { unable } = make().mounter;
      expect([unable?.why, unable?.action]).toEqual([expect.stringMatching(/./), expect.stringMatching(/./)]);
    });

    test('lists mounts, and reports whether a path is mounted', async () => {
      const { mounter, folder } = make();
      const [first] = await twice(() => mounter.list(scope));
      expect(await twice(() => mounter.isMounted(first?.at ?? '/', scope))).toBe(first !== undefined);
      expect(await twice(() => mounter.isMounted(join(folder, 'missing'), scope))).toBe(false);
    });

    test('refuses every other call, and says what is missing', async () => {
      const { mounter, folder } = make();
      const calls: readonly (() => Promise<unknown>)[] = [
        () => mounter.bind(folder, folder, { readOnly: false }, scope),
        () => mounter.unmount(folder, scope),
        () => mounter.detach(folder, scope),
        () => mounter.openShared(folder, scope),
        () => mounter.closeShared(folder, scope),
        () => mounter.inspectTarget(folder, 'filesystem', scope),
        () => mounter.resolvePath(folder, scope),
        () => mounter.makeTarget(folder, 'filesystem', scope),
        () => mounter.removeTarget(folder, scope),
        () => mounter.reap(folder, new Set(), scope),
      ];
      for (const call of calls) {
        const { code, reason, message, action } = await refused(call);
        expect([code, reason]).toEqual(['unsupported', 'mount-unable']);
        expect(message).toContain(mounter.unable?.why);
        expect(action).toBe(mounter.unable?.action);
      }
    });
  });
}
