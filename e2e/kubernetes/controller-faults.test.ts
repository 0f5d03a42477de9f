import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { sized } from '#testing/sized.ts';
import { type ControllerFaultsFixture, startControllerFaultsFixture } from './controller-faults-fixture.ts';
import type { RunningController } from './controllers.ts';

const { signal } = new AbortController();
/** How long anything may take on a machine that has much else to do. */
const wait = { interval: 100, timeout: 90_000 };
const long = 300_000;
/** A leader that cannot renew gives up after 10 s, and has 3 s to end. */
const givesUpMs = 20_000;
/** A Lease runs out 15 s after the last time that it was renewed, and is looked at every 2 s. */
const takesOverMs = 30_000;
const givenBackMs = 14_000;

const named = (prefix: string, count: number): readonly string[] =>
  Array.from({ length: count }, (_, at) => `${prefix}-${at}`);

describe.skipIf(needs('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha'))(
  'the controller of a real cluster, when something ends',
  () => {
    let fixture: ControllerFaultsFixture;

    beforeAll(async () => {
      fixture = await startControllerFaultsFixture(signal);
    }, 400_000);
    afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);
    afterEach(() => fixture.killAll(), 60_000);

    /** As if nothing had happened. */
    const allBoundOnce = async (names: readonly string[]): Promise<void> => {
      const phases = async () => new Set((await fixture.claims()).map(({ status }) => status?.phase));
      await expect.poll(phases, wait).toEqual(new Set(['Bound']));
      const [claims, volumes] = [await fixture.claims(), await fixture.volumes()];
      expect(claims.map(({ metadata }) => metadata.name).sort()).toEqual([...names].sort());
      expect(volumes.map(({ spec }) => spec.claimRef?.uid).sort()).toEqual(
        claims.map(({ metadata }) => metadata.uid).sort(),
      );
      expect(new Set(volumes.map(({ spec }) => spec.csi?.volumeHandle)).size).toBe(names.length);
      expect([...fixture.volumesOnStore()].sort()).toEqual(volumes.map(({ metadata }) => metadata.name).sort());
    };
    const allGone = async (names: readonly string[]): Promise<void> => {
      await fixture.remove(names);
      await expect.poll(() => fixture.leftovers(), wait).toEqual([]);
    };
    /** Without a pause: as many volumes were made. */
    const made = (count: number): Promise<void> =>
      expect.poll(() => fixture.volumesOnStore().length, { ...wait, interval: 1 }).toBeGreaterThanOrEqual(count);

    test(
      'many claims have one volume each although it is killed again and again, and nothing is left of them although it is killed meanwhile',
      async () => {
        const names = named('many', sized({ usual: 60, long: 200 }));
        const creating = fixture.create(names);
        // At moments that nobody has chosen, in the first, the second and the last third.
        const moments = [0, 1, 2].map((third) => 1 + Math.floor(((third + Math.random()) * names.length) / 3));
        for (const moment of moments) {
          await fixture.start().leads();
          await made(moment);
          await fixture.killAll();
        }
        await creating;
        await fixture.start().leads();
        await allBoundOnce(names);
        await fixture.remove(names);
        const few = Math.floor(Math.random() * names.length * 0.75);
        await expect
          .poll(() => fixture.volumesOnStore().length, { ...wait, interval: 1 })
          .toBeLessThanOrEqual(few + Math.ceil(names.length / 5));
        await fixture.killAll();
        await fixture.start().leads();
        await expect.poll(() => fixture.leftovers(), wait).toEqual([]);
      },
      long,
    );

    test(
      'another takes over in bounded time from one that is killed in the middle',
      async () => {
        const names = named('over', sized({ usual: 30, long: 60 }));
        const first = fixture.start();
        await first.leads();
        const second = fixture.start();
        await expect.poll(() => second.output(), wait).toContain('waits to lead');
        const creating = fixture.create(names);
        await made(5);
        const killedAt = performance.now();
        await first.kill();
        await creating;
        await second.leads();
        expect(performance.now() - killedAt).toBeLessThan(takesOverMs);
        await allBoundOnce(names);
        const third = fixture.start();
        await expect.poll(() => third.output(), wait).toContain('waits to lead');
        const stoppedAt = performance.now();
        expect(await second.stop()).toBe(0);
        await third.leads();
        // The Lease was given back: nobody waits until it has run out.
        expect(performance.now() - stoppedAt).toBeLessThan(givenBackMs);
        await allGone(names);
      },
      long,
    );

    test(
      'a leader that is suspended in the middle of its work keeps its locks while another one leads',
      async () => {
        let first = fixture.start();
        await first.leads();
        for (let round = 0; ; round++) {
          const names = named(`suspended-${round}`, 100);
          await fixture.create(names);
          await allBoundOnce(names);
          await fixture.remove(names);
          const mark = await suspendWithLock(first);
          // It was too fast: everything is deleted already.
          if (mark === undefined) continue;
          const second = fixture.start();
          await second.leads();
          const held = locksOf(mark);
          // It does all the rest. What the first one has locked is left to it: it lives.
          await expect.poll(async () => (await fixture.volumes()).length, wait).toBeLessThanOrEqual(held.length);
          expect(locksOf(mark)).toEqual(held);
          first.resume();
          expect(await first.ended()).toBe(1);
          // It may have had no time to release its locks. The second one has begun before its end, and waits for them.
          await expect.poll(() => fixture.leftovers(), { ...wait, timeout: 200_000 }).toEqual([]);
          if (held.length > 0) return;
          // The server had got the call by which the last lock was released.
          first = second;
        }
      },
      2 * long,
    );

    const locksOf = (mark: number): readonly string[] =>
      [...fixture.heldLocks()].filter(([, by]) => by === mark).map(([name]) => name);

    /** Stops a controller that alone works on the store, while it holds a lock. Gives its mark, or nothing if no volume is left. */
    async function suspendWithLock(controller: RunningController): Promise<number | undefined> {
      const isDone = (): boolean => fixture.volumesOnStore().length === 0;
      while (!isDone()) {
        await expect.poll(() => fixture.heldLocks().size > 0 || isDone(), { ...wait, interval: 1 }).toBe(true);
        await controller.suspend();
        const [mark] = fixture.heldLocks().values();
        if (mark !== undefined) return mark;
        controller.resume();
      }
      return undefined;
    }

    test(
      'an API server that is away for half a minute is waited for, by one that ends once and begins anew once',
      async () => {
        const names = named('away', sized({ usual: 30, long: 60 }));
        const first = fixture.start();
        await first.leads();
        // What was not asked for in time is asked for afterwards.
        const creating = fixture.create(names).catch(() => undefined);
        await made(10);
        const stoppedAt = performance.now();
        await fixture.cluster.apiServer.stop();
        await creating;
        // As a kubelet does with a container that ends.
        expect(await first.ended()).toBe(1);
        expect(performance.now() - stoppedAt).toBeLessThan(givesUpMs);
        const second = fixture.start();
        await expect.poll(() => second.output(), wait).toContain('waits to lead');
        await expect.poll(() => performance.now() - stoppedAt, wait).toBeGreaterThan(30_000);
        await fixture.cluster.apiServer.start();
        await second.leads();
        const there = new Set((await fixture.claims()).map(({ metadata }) => metadata.name));
        await fixture.create(names.filter((name) => !there.has(name)));
        await allBoundOnce(names);
        await allGone(names);
      },
      long,
    );

    test(
      'a leader that an API server does not answer ends in bounded time, and whoever comes next finishes its work',
      async () => {
        const names = named('frozen', sized({ usual: 30, long: 60 }));
        const first = fixture.start();
        await first.leads();
        await fixture.create(names);
        const frozenAt = performance.now();
        await fixture.cluster.apiServer.freeze();
        try {
          expect(await first.ended()).toBe(1);
          expect(performance.now() - frozenAt, first.output()).toBeLessThan(givesUpMs);
        } finally {
          fixture.cluster.apiServer.thaw();
        }
        expect(first.output()).toContain('another may lead by now');
        await fixture.start().leads();
        await allBoundOnce(names);
        await allGone(names);
      },
      long,
    );

    test(
      'claims that are deleted while their volumes are made leave nothing',
      async () => {
        const names = named('brief', sized({ usual: 40, long: 100 }));
        await fixture.start().leads();
        const creating = fixture.create(names);
        await made(1);
        // Some are not there yet, some have a volume and no object, some are bound.
        await fixture.remove(names);
        await creating;
        await fixture.remove(names);
        await expect.poll(() => fixture.leftovers(), wait).toEqual([]);
      },
      long,
    );

    test(
      'volumes whose server is away stay, with what to do about it on their objects, until it is back',
      async () => {
        const names = named('behind', 5);
        await fixture.start().leads();
        await fixture.create(names);
        await allBoundOnce(names);
        await fixture.nfs.stop();
        try {
          await fixture.remove(names);
          const phases = async () => (await fixture.volumes()).map(({ status }) => status?.phase);
          await expect.poll(phases, wait).toEqual(names.map(() => 'Released'));
          for (const { metadata } of await fixture.volumes())
            await expect.poll(() => fixture.notes(metadata.name ?? ''), wait).toContain('kubectl get stores');
          expect(await fixture.volumes()).toHaveLength(names.length);
          expect(fixture.volumesOnStore()).toHaveLength(names.length);
        } finally {
          await fixture.nfs.restart();
        }
        await expect.poll(() => fixture.leftovers(), { ...wait, timeout: 120_000 }).toEqual([]);
      },
      long,
    );
  },
);
