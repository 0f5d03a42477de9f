import { existsSync, mkdirSync, readdirSync, realpathSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { NodeName, Use, Volume } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import type { Uses } from '#core/ports.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { contentsOf, quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { type Connect, createConnect } from './connect.ts';
import { createNfsStoreKind } from './kind.ts';

// A host begins to use a volume while another host removes it. One of them is suspended before each of its calls to the
// server in turn. Meanwhile the other one runs its verb, to the end or until it waits for the first; then the first
// continues. In every order, a volume whose use was granted exists, and a deleted volume has no use record.

interface Site extends AsyncDisposable {
  readonly folder: string;
  readonly uri: string;
  readonly options: Readonly<Record<string, string>>;
  readonly connect: () => Connect;
}

const sites: Readonly<Record<string, () => Promise<Site>>> = {
  'the local file system': async () => {
    const folder = quickFolder('uses');
    const end = async (): Promise<void> => rmSync(folder, { recursive: true, force: true });
    const connect = (): Connect => connectToDisk(folder);
    return { folder, uri: 'nfs://nowhere/export', options: {}, connect, [Symbol.asyncDispose]: end };
  },
  'nfs-ganesha': async () => {
    const parent = realpathSync(quickFolder('uses'));
    const folder = join(parent, 'store');
    mkdirSync(folder);
    const server = await startGanesha({ exports: [{ path: parent, tag: 'export' }], signal: scope.signal });
    return {
      folder,
      uri: `nfs://${server.host}${folder}`,
      connect: () => createConnect(systemClock()),
      options: { port: `${server.nfsPort}`, mountport: `${server.mountPort}` },
      [Symbol.asyncDispose]: async () => {
        await server[Symbol.asyncDispose]();
        rmSync(parent, { recursive: true, force: true });
      },
    };
  },
};

const use: Use = { host: 'h1', node: 'node 1' as NodeName, users: [{ kind: 'pod', name: 'web-0' }] };
const usesOf = ({ uses }: FileStore): Uses => uses as Uses;
const newName = volumeName('renamed');

type Verb = (store: FileStore, volume: Volume) => Promise<unknown>;

const beginVerbs: Readonly<Record<string, Verb>> = {
  'record a use': (store, volume) => usesOf(store).put(volume, use, scope),
  'become the writer': (store, volume) => usesOf(store).takeWriter(volume, use.host, scope),
};
const removeVerbs: Readonly<Record<string, Verb>> = {
  'delete it': (store, volume) => store.delete(volume, scope),
  'put it into the trash': (store, volume) => store.trash.put(volume, keptForAWeek(1), scope),
  'release it': (store, volume) => store.adoption.release(volume, scope),
};
const rename: Verb = (store, volume) => store.rename(volume, newName, scope);

const reasonOf = async (work: Promise<unknown>): Promise<string> => {
  try {
    await work;
    return 'done';
  } catch (cause) {
    if (!(cause instanceof StowageError)) throw cause;
    return cause.reason;
  }
};

const maxCalls = 80;

for (const [title, start] of Object.entries(sites))
  describe.skipIf(title === 'nfs-ganesha' && lacks('ganesha'))(`on ${title}`, () => {
    let site: Site;
    let first: FileStore;
    let second: FileStore;
    /** Suspends the first host before call `at`, until `goOn` resolves. */
    let stop: { readonly at: number; readonly reached: () => void; readonly goOn: Promise<void> } | undefined;
    let calls = 0;
    let resume: () => void = () => undefined;

    const hook: CallInterceptor = async ({ make }) => {
      if (stop !== undefined && ++calls === stop.at) {
        stop.reached();
        await stop.goOn;
      }
      return make();
    };

    beforeAll(async () => {
      site = await start();
      const clock = systemClock();
      // When the second host waits, it waits for the first, so let the first continue.
      const resumingClock = {
        ...clock,
        sleep: (_ms: number, signal: AbortSignal): Promise<void> => {
          resume();
          return clock.sleep(2, signal);
        },
      };
      const { uri, options } = site;
      const open = (instance: string, kind: ReturnType<typeof createNfsStoreKind>): Promise<FileStore> =>
        openNfs({ uri, options, instance, kind });
      first = await open('first', createNfsStoreKind(clock, interceptCalls(site.connect(), hook)));
      second = await open('second', createNfsStoreKind(resumingClock, site.connect()));
    });
    afterAll(async () => {
      for (const store of [first, second]) await store.close();
      await site[Symbol.asyncDispose]();
    });

    const ownPath = (...path: readonly string[]): string => join(site.folder, '.stowage', ...path);
    const recordsOf = ({ id }: Volume): string[] =>
      existsSync(ownPath('users', id)) ? readdirSync(ownPath('users', id)) : [];

    let count = 0;
    const createVolume = (): Promise<Volume> => second.create(volumeSpec(`v${++count}`), scope);

    /** Yields the results of both hosts for each call before which the first one was suspended. */
    async function* interleave(one: Verb, other: Verb, prepare: (volume: Volume) => Promise<void>) {
      for (let at = 1; at < maxCalls; at++) {
        const volume = await createVolume();
        await prepare(volume);
        const reached = Promise.withResolvers<void>();
        const goOn = Promise.withResolvers<void>();
        resume = goOn.resolve;
        calls = 0;
        stop = { at, reached: reached.resolve, goOn: goOn.promise };
        const outer = reasonOf(one(first, volume));
        await Promise.race([reached.promise, outer]);
        const isOver = calls < at;
        const inner = reasonOf(other(second, volume));
        await Promise.race([inner, goOn.promise]);
        goOn.resolve();
        const [mine, others] = await Promise.all([outer, inner]);
        stop = undefined;
        yield { at, volume, mine, others };
        expect([contentsOf(site.folder).heldLocks(), readdirSync(ownPath('tmp'))]).toEqual([[], []]);
        if (isOver) return;
      }
      throw new Error('it never ends');
    }

    const noPreparation = async (): Promise<void> => undefined;
    const doesExist = async ({ id, name }: Volume): Promise<boolean> =>
      (await second.get(name, scope))?.volume.id === id && existsSync(join(site.folder, name));

    async function check(volume: Volume, beginResult: string, endResult: string): Promise<void> {
      const outcome = `${beginResult}, ${endResult}`;
      expect(['done, volume-in-use-elsewhere', 'volume-unknown, done']).toContain(outcome);
      expect(await doesExist(volume), outcome).toBe(beginResult === 'done');
      expect(recordsOf(volume).length, outcome).toBe(beginResult === 'done' ? 1 : 0);
      expect(existsSync(ownPath('users', volume.id)), outcome).toBe(beginResult === 'done');
    }

    describe.each(Object.entries(beginVerbs))('%s, and another host wants to', (_, begin) => {
      test.each(Object.entries(removeVerbs))('%s: one of the two is refused', async (_, end) => {
        const seen = new Set<string>();
        for await (const { volume, mine, others } of interleave(begin, end, noPreparation)) {
          await check(volume, mine, others);
          seen.add(mine);
        }
        for await (const { volume, mine, others } of interleave(end, begin, noPreparation)) {
          await check(volume, others, mine);
          seen.add(others);
        }
        // Both outcomes must have occurred; otherwise the test proves nothing.
        expect([...seen].sort()).toEqual(['done', 'volume-unknown']);
      });

      test('rename it: the rename is refused or comes first', async () => {
        const orders = [
          [begin, rename],
          [rename, begin],
        ] as const;
        const seen = new Set<string>();
        for (const [one, other] of orders)
          for await (const { volume, mine, others } of interleave(one, other, noPreparation)) {
            const [begun, ended] = one === begin ? [mine, others] : [others, mine];
            expect(begun).toBe('done');
            expect(['done', 'volume-in-use-elsewhere']).toContain(ended);
            expect(recordsOf(volume).length).toBe(1);
            const now = ended === 'done' ? { ...volume, name: newName } : volume;
            expect(await doesExist(now)).toBe(true);
            seen.add(ended);
            await usesOf(second).remove(volume.id, use.host, scope);
            await second.delete(now, scope);
          }
        expect([...seen].sort()).toEqual(['done', 'volume-in-use-elsewhere']);
      });
    });

    test('a renewal does not bring back a removed record, or the use of a deleted volume', async () => {
      const beginUse = (volume: Volume): Promise<void> => usesOf(second).put(volume, use, scope);
      const renew: Verb = (store, volume) => usesOf(store).put(volume, { ...use, users: [] }, scope);
      const breakAndDelete: Verb = async (store, volume) => {
        await usesOf(store).remove(volume.id, use.host, scope);
        await store.delete(volume, scope);
      };
      const seen = new Set<string>();
      for await (const { at, volume, mine, others } of interleave(renew, breakAndDelete, beginUse)) {
        const outcome = `stopped before call ${at}: ${mine}, ${others}`;
        const exists = await doesExist(volume);
        // Either the last renewal came before the deletion, or it created the record again and the deletion was refused.
        expect(exists, outcome).toBe(others !== 'done');
        expect(recordsOf(volume).length, outcome).toBe(exists ? 1 : 0);
        seen.add(mine);
      }
      expect([...seen].sort()).toEqual(['done', 'volume-unknown']);
    });

    test('a removed writer is not mistaken for the next one', async () => {
      const [mine, others] = ['h1', 'h2'];
      const becomeWriter = (volume: Volume): Promise<void> => usesOf(second).takeWriter(volume, mine, scope);
      const breakIt: Verb = (store, volume) => usesOf(store).remove(volume.id, mine, scope);
      const handOver: Verb = async (store, volume) => {
        await usesOf(store).dropWriter(volume.id, mine, scope);
        await usesOf(store).takeWriter(volume, others, scope);
      };
      for await (const { volume } of interleave(breakIt, handOver, becomeWriter))
        expect(await usesOf(second).list(volume.id, scope)).toMatchObject([{ host: others, writer: true }]);
    });

    test('one of the two is refused if both run at once', async () => {
      for (let round = 0; round < 20; round++) {
        const volume = await createVolume();
        const [one, other] = round % 2 === 0 ? [first, second] : [second, first];
        const [begun, ended] = await Promise.all([
          reasonOf(usesOf(one).put(volume, use, scope)),
          reasonOf(other.delete(volume, scope)),
        ]);
        await check(volume, begun, ended);
      }
    });
  });
