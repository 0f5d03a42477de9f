import { existsSync, mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { SourceKind, SourceOf, StoreName, VolumeName } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { Client, Mounter } from '#core/ports.ts';
import { collectingLog } from '../core-calls.ts';
import { targetAt } from '../staging-target.ts';
import { scope } from './store.ts';
import { refused, twice } from './twice.ts';

/** A client, and one volume that it can mount. */
export interface ClientUnderTest<K extends SourceKind> extends AsyncDisposable {
  readonly client: Client<K>;
  readonly mounter: Mounter;
  readonly source: SourceOf<K>;
  /** The staging path. Its parent directory exists and is named after a volume's id. */
  readonly at: string;
  /** Mounts a file system at that path, like another program. */
  occupy(at: string): void;
  /** Opens a file in the mount, like a program that works in it. */
  use(at: string): Disposable;
  /** Removes the volume's data. Only for clients that can detect the loss. */
  readonly lose?: () => void;
  /** The paths of the data and of a folder in the data. Only for clients whose data other programs can mount. */
  readonly sharedPaths?: { readonly whole: string; readonly part: string };
  /**
   * Kills the process that serves the mount. Resolves when the client can detect the death. Only for clients with such
   * a process.
   */
  readonly kill?: () => Promise<void>;
  /** With `kill`: writes data that the server does not accept until the returned object is disposed of. */
  readonly hang?: (at: string) => Promise<AsyncDisposable>;
  /** With `kill`: copies the mount into another mount namespace until the returned object is disposed of. */
  readonly copy?: (at: string) => Promise<AsyncDisposable>;
  /**
   * The names of what staging attached besides the mount, such as loop devices. Only for clients that attach something.
   */
  readonly attached?: () => readonly string[];
}

/** The contract of the port `Client`. `facets`: the optional behaviour that this client must have. */
export function clientContract<K extends SourceKind>(
  title: string,
  make: () => Promise<ClientUnderTest<K>>,
  facets: {
    readonly lose?: boolean;
    readonly kill?: boolean;
    readonly sharedPaths?: boolean;
    readonly attached?: boolean;
    readonly sharing?: boolean;
  } = {},
): void {
  describe(`${title}: the contract of a client`, () => {
    let under: ClientUnderTest<K>;
    const stage = (): Promise<void> => under.client.stage(under.source, targetAt(under.at), scope);
    const unstage = (force = false): Promise<void> =>
      under.client.unstage(under.source, targetAt(under.at), scope, force ? { force } : undefined);
    /** The number of mounts at the staging path. */
    const staged = async (): Promise<number> =>
      (await under.mounter.list(scope)).filter((point) => point.at === under.at).length;
    const grow = async (): Promise<void> => await under.client.grow?.(under.source, targetAt(under.at), scope);
    const users = (): Promise<readonly string[]> =>
      twice(() => under.client.mountsOf(under.source, targetAt(under.at), scope)).then((all) => all.toSorted());

    beforeEach(async () => {
      under = await make();
    });
    afterEach(() => under[Symbol.asyncDispose]());

    test('stage makes one mount, and mountsOf lists it', async () => {
      await twice(stage);
      expect(await staged()).toBe(1);
      expect(await under.mounter.isMounted(under.at, scope)).toBe(true);
      expect(await under.client.mountsOf(under.source, targetAt(under.at), scope)).toContain(under.at);
    });

    test('unstage removes the mount and its mount point', async () => {
      await stage();
      await twice(unstage);
      expect(await staged()).toBe(0);
      expect(existsSync(under.at)).toBe(false);
      expect(await under.client.mountsOf(under.source, targetAt(under.at), scope)).not.toContain(under.at);
      await twice(stage);
      expect(await staged()).toBe(1);
    });

    test('unstage of a volume that was never staged succeeds', async () => {
      await twice(unstage);
      await twice(() => unstage(true));
      expect(existsSync(dirname(under.at))).toBe(true);
    });

    test('unstage leaves nothing behind after another program unmounted the stage', async () => {
      await stage();
      await under.mounter.unmount(under.at, scope);
      await twice(unstage);
      expect(existsSync(under.at)).toBe(false);
      expect(await users()).toEqual([]);
    });

    test('stage uses an empty mount point that a crash left behind, and unstage removes it', async () => {
      mkdirSync(under.at);
      await twice(unstage);
      expect(existsSync(under.at)).toBe(false);
      mkdirSync(under.at);
      await twice(stage);
      expect(await staged()).toBe(1);
    });

    test('a forced unstage removes the mount', async () => {
      await stage();
      await twice(() => unstage(true));
      expect(await staged()).toBe(0);
      expect(existsSync(under.at)).toBe(false);
    });

    test('unstage is refused while a program works in the mount, and the mount stays', async () => {
      await stage();
      {
        using _busy = under.use(under.at);
        expect(await refused(unstage)).toMatchObject({ code: 'in-use' });
        expect(await staged()).toBe(1);
      }
      await unstage();
      expect(await staged()).toBe(0);
    });

    test('stage refuses a path where another file system is mounted, and leaves that mount alone', async () => {
      mkdirSync(under.at);
      under.occupy(under.at);
      const before = (await under.mounter.list(scope)).filter((point) => point.at === under.at);
      expect(await refused(stage)).toMatchObject({ code: 'conflict' });
      expect((await under.mounter.list(scope)).filter((point) => point.at === under.at)).toEqual(before);
    });

    test('mountsOf finds every path where the source is mounted, including paths hidden by another mount', async () => {
      expect(await users()).toEqual([]);
      await stage();
      const other = join(dirname(under.at), 'other');
      mkdirSync(other);
      await under.mounter.bind(under.at, other, { readOnly: false }, scope);
      try {
        expect(await users()).toEqual([under.at, other].sort());
        under.occupy(other);
        // On some kernels, a mount on top of a bind mount also appears at the other paths of that bind mount.
        expect(await users()).toEqual(expect.arrayContaining([under.at, other]));
        await under.mounter.unmount(other, scope);
      } finally {
        await under.mounter.unmount(other, scope);
      }
      expect(await users()).toEqual([under.at]);
    });

    test('adding the options of a mount twice gives the same source as adding them once', () => {
      for (const group of [undefined, 2000]) {
        const use = { readOnly: true, group };
        const once = under.client.withMountOptions?.(under.source, use) ?? under.source;
        const again = under.client.withMountOptions?.(once, use) ?? once;
        expect(JSON.stringify(again)).toBe(JSON.stringify(once));
      }
    });

    test('a source that needs no options for its mount stays the same object', () => {
      const use = { readOnly: false, group: undefined };
      expect(under.client.withMountOptions?.(under.source, use) ?? under.source).toBe(under.source);
    });

    test('unstage does nothing when its signal is aborted', async () => {
      await stage();
      const ended = { ...scope, signal: AbortSignal.abort(new Error('enough')) };
      await expect(under.client.unstage(under.source, targetAt(under.at), ended)).rejects.toThrow('enough');
      expect(await staged()).toBe(1);
    });

    test('stage does nothing when its signal is aborted', async () => {
      const signal = AbortSignal.abort(new Error('enough'));
      await under.client.stage(under.source, targetAt(under.at), { ...scope, signal }).catch(() => undefined);
      expect(await staged()).toBe(0);
      await twice(unstage);
    });

    test('grow changes nothing for a volume that already has its size', async () => {
      await stage();
      await twice(grow);
      expect(await staged()).toBe(1);
    });

    if (facets.attached === true)
      test('unstage after another program unmounted the stage detaches the devices that the mount table does not show', async () => {
        const attached = (): readonly string[] => under.attached?.() ?? [];
        expect(attached()).toEqual([]);
        await twice(stage);
        expect(attached()).toHaveLength(1);
        await under.mounter.unmount(under.at, scope);
        await twice(unstage);
        expect(attached()).toEqual([]);
      });

    if (facets.sharing === true)
      test('a source from the records shares a mount like the original source, and can be replaced by it', () => {
        const { sharing } = under.client;
        const stored = (): SourceOf<K> => JSON.parse(JSON.stringify(under.source));
        const volume = { store: 'silver' as StoreName, name: 'a' as VolumeName };
        const log = collectingLog();
        for (const [wanted, known] of [
          [stored(), under.source],
          [under.source, stored()],
          [stored(), stored()],
        ] as const) {
          expect(sharing?.sharedSource(volume, wanted, known, log)).toEqual(known);
          expect(JSON.stringify(sharing?.remountSource(known, wanted))).toBe(JSON.stringify(under.source));
          expect(sharing?.groupOf(known)).toBe(sharing?.groupOf(wanted));
        }
        expect(log.lines).toEqual([]);
      });

    if (facets.lose === true)
      test('stage of deleted data is refused, and leaves nothing mounted', async () => {
        under.lose?.();
        expect(await refused(stage)).toMatchObject({ code: 'not-found', reason: 'data-missing' });
        expect(await staged()).toBe(0);
        await twice(unstage);
      });

    if (facets.sharedPaths === true)
      test('mountsOf finds every path that shows the data or a part of them, even without a stage', async () => {
        const { whole = '', part = '' } = under.sharedPaths ?? {};
        const [to, other] = [join(dirname(under.at), 'to'), join(dirname(under.at), 'other')];
        for (const path of [part, to, other]) mkdirSync(path);
        try {
          expect(await users()).toEqual([]);
          await under.mounter.bind(whole, to, { readOnly: false }, scope);
          await under.mounter.bind(part, other, { readOnly: false }, scope);
          expect(await users()).toEqual([other, to]);
          // The new mount hides the path, but the volume is still mounted there.
          under.occupy(other);
          expect(await users()).toEqual([other, to]);
          await under.mounter.unmount(other, scope);
        } finally {
          for (const path of [other, to]) await under.mounter.unmount(path, scope);
        }
      });

    if (facets.kill === true)
      describe('a mount whose server process ended', () => {
        const dead = (): Promise<readonly string[] | undefined> =>
          twice(
            async () =>
              await under.client.findDeadMounts?.([{ source: under.source, target: targetAt(under.at) }], scope),
          );

        test('is dead although the mount table shows it, and a served mount is not dead', async () => {
          await stage();
          expect(await dead()).toEqual([]);
          await under.kill?.();
          expect(await dead()).toEqual([under.at]);
          expect(await staged()).toBe(1);
        });

        test('is replaced by the next stage, whose mount has another identity in the mount table', async () => {
          await stage();
          const [before] = (await under.mounter.list(scope)).filter((point) => point.at === under.at);
          await under.kill?.();
          await twice(stage);
          expect(await dead()).toEqual([]);
          const [after] = (await under.mounter.list(scope)).filter((point) => point.at === under.at);
          expect(await staged()).toBe(1);
          expect(after?.source).not.toBe(before?.source);
        });

        test('is removed by a forced unstage', async () => {
          await stage();
          await under.kill?.();
          await twice(() => unstage(true));
          expect(await staged()).toBe(0);
        });

        test('is distinguished from a served mount of another volume', async () => {
          const other = join(dirname(under.at), newVolumeId());
          try {
            await stage();
            await under.client.stage(under.source, targetAt(other), scope);
            await under.kill?.();
            await under.client.stage(under.source, targetAt(other), scope);
            const both = [other, under.at].map((at) => ({ source: under.source, target: targetAt(at) }));
            expect(await twice(async () => await under.client.findDeadMounts?.(both, scope))).toEqual([under.at]);
          } finally {
            await under.client.unstage(under.source, targetAt(other), scope, { force: true });
          }
        });
      });

    if (facets.kill === true)
      describe('a served mount', () => {
        const target = () => targetAt(under.at);
        const flush = async (): Promise<void> => await under.client.flush?.(under.source, target(), scope);
        const elsewhere = (): Promise<boolean | undefined> =>
          twice(async () => await under.client.isServedElsewhere?.(under.source, target(), scope));

        test('is busy and stays while its server does not accept written data', async () => {
          await stage();
          {
            await using _hung = await under.hang?.(under.at);
            expect(await refused(flush)).toMatchObject({ code: 'busy', reason: 'data-unwritten' });
            expect(await staged()).toBe(1);
          }
          await twice(flush);
          expect(await staged()).toBe(1);
        });

        test('is served at the new path after an unstage, while another mount namespace still has the old one', async () => {
          await stage();
          {
            await using _copy = await under.copy?.(under.at);
            await unstage();
            expect(await staged()).toBe(0);
            expect(await elsewhere()).toBe(true);
          }
          expect(await elsewhere()).toBe(false);
        });

        test('has no problem any more when it is staged again after its process was killed', async () => {
          const trouble = async (): Promise<string | undefined> =>
            await under.client.daemon?.findProblem(under.source, target(), scope);
          await stage();
          await under.kill?.();
          expect(['undefined', 'string']).toContain(typeof (await trouble()));
          await twice(stage);
          expect(await twice(trouble)).toBeUndefined();
        });

        test('stays after a flush when there are no dirty data', async () => {
          await twice(flush);
          await stage();
          expect(under.client.flush).toBeDefined();
          await twice(flush);
          expect(await staged()).toBe(1);
        });

        test('is not reported as served elsewhere while it is staged, nor after that', async () => {
          expect(await elsewhere()).toBe(false);
          await stage();
          expect(await elsewhere()).toBe(false);
          await unstage();
          expect(await elsewhere()).toBe(false);
        });

        test('has no problem while its process runs', async () => {
          await stage();
          const { daemon } = under.client;
          expect(daemon).toBeDefined();
          expect(daemon?.key({ ...under.source }, targetAt(under.at))).toBe(
            daemon?.key(under.source, targetAt(under.at)),
          );
          expect(
            await twice(async () => await daemon?.findProblem(under.source, targetAt(under.at), scope)),
          ).toBeUndefined();
        });
      });
  });
}
