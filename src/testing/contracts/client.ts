import { existsSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Source } from '#core/model.ts';
import type { Client, Mounter } from '#core/ports.ts';
import { scope } from './store.ts';
import { refused, twice } from './twice.ts';

type SourceOf<K extends Source['kind']> = Extract<Source, { kind: K }>;

/** A client, and one volume that it can mount. */
export interface ClientUnderTest<K extends Source['kind']> extends AsyncDisposable {
  readonly client: Client<K>;
  readonly mounter: Mounter;
  readonly source: SourceOf<K>;
  /** Where the volume is to be staged. The folder above it exists, and its name is a volume's id. */
  readonly at: string;
  /** Somebody else mounts a file system of theirs there. */
  occupy(at: string): void;
  /** A program works in what is mounted there. */
  use(at: string): Disposable;
  /** Present where the client can tell: removes the volume's data. */
  readonly lose?: () => void;
  /** Present where something serves mounts: it ends, and resolves when that can be known. */
  readonly kill?: () => Promise<void>;
}

/** The promises of the port `Client`. `facets`: those that this one must have. */
export function clientContract<K extends Source['kind']>(
  title: string,
  make: () => Promise<ClientUnderTest<K>>,
  facets: { readonly lose?: boolean; readonly kill?: boolean } = {},
): void {
  describe(`${title}: the contract of a client`, () => {
    let under: ClientUnderTest<K>;
    const stage = (): Promise<void> => under.client.stage(under.source, under.at, scope);
    const unstage = (force = false): Promise<void> =>
      under.client.unstage(under.source, under.at, scope, force ? { force } : undefined);
    /** The mounts that are seen at the stage. */
    const staged = async (): Promise<number> =>
      (await under.mounter.list(scope)).filter((point) => point.at === under.at).length;
    const grow = (): Promise<void> => under.client.grow(under.source, under.at, scope);

    beforeEach(async () => {
      under = await make();
    });
    afterEach(() => under[Symbol.asyncDispose]());

    test('stage makes one mount, of which the mounter says that it shows the source', async () => {
      await twice(stage);
      expect(await staged()).toBe(1);
      expect(await under.mounter.isMounted(under.at, scope)).toBe(true);
      expect(await under.mounter.usersOf(under.source, under.at, scope)).toContain(under.at);
    });

    test('unstage takes the mount away, and the place with it', async () => {
      await stage();
      await twice(unstage);
      expect(await staged()).toBe(0);
      expect(existsSync(under.at)).toBe(false);
      expect(await under.mounter.usersOf(under.source, under.at, scope)).not.toContain(under.at);
      await twice(stage);
      expect(await staged()).toBe(1);
    });

    test('unstage of what was never staged is success', async () => {
      await twice(unstage);
      await twice(() => unstage(true));
      expect(existsSync(dirname(under.at))).toBe(true);
    });

    test('stage goes on from a place that a crash left empty, and unstage removes such a place', async () => {
      mkdirSync(under.at);
      await twice(unstage);
      expect(existsSync(under.at)).toBe(false);
      mkdirSync(under.at);
      await twice(stage);
      expect(await staged()).toBe(1);
    });

    test('a forced unstage takes the mount away', async () => {
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

    test('stage refuses a place where something else is mounted, and leaves that', async () => {
      mkdirSync(under.at);
      under.occupy(under.at);
      const before = (await under.mounter.list(scope)).filter((point) => point.at === under.at);
      expect(await refused(stage)).toMatchObject({ code: 'conflict' });
      expect((await under.mounter.list(scope)).filter((point) => point.at === under.at)).toEqual(before);
    });

    test('grow changes nothing for a volume that has its size already', async () => {
      await stage();
      await twice(grow);
      expect(await staged()).toBe(1);
    });

    if (facets.lose === true)
      test('stage of data that are gone is refused, and leaves nothing mounted', async () => {
        under.lose?.();
        expect(await refused(stage)).toMatchObject({ code: 'not-found', reason: 'data-missing' });
        expect(await staged()).toBe(0);
        await twice(unstage);
      });

    if (facets.kill === true)
      describe('a mount that nobody serves any more', () => {
        const dead = (): Promise<readonly string[] | undefined> =>
          twice(async () => await under.client.dead?.([{ source: under.source, at: under.at }], scope));

        test('is dead though the mount table shows it, and one that is served is not', async () => {
          await stage();
          expect(await dead()).toEqual([]);
          await under.kill?.();
          expect(await dead()).toEqual([under.at]);
          expect(await staged()).toBe(1);
        });

        test('is replaced by the next stage, which the mount table can tell from it', async () => {
          await stage();
          const [before] = (await under.mounter.list(scope)).filter((point) => point.at === under.at);
          await under.kill?.();
          await twice(stage);
          expect(await dead()).toEqual([]);
          const [after] = (await under.mounter.list(scope)).filter((point) => point.at === under.at);
          expect(await staged()).toBe(1);
          expect(after?.source).not.toBe(before?.source);
        });

        test('is taken away by a forced unstage', async () => {
          await stage();
          await under.kill?.();
          await twice(() => unstage(true));
          expect(await staged()).toBe(0);
        });
      });
  });
}
