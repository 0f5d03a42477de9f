import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { sized } from '#testing/sized.ts';
import { type ControllerFaultsFixture, startControllerFaultsFixture } from './controller-faults-fixture.ts';
import type { RunningController } from './controller-process.ts';

const { signal } = new AbortController();
/** The limit for anything that is slow on a busy machine. */
const pollOptions = { interval: 100, timeout: 90_000 };
const longTimeoutMs = 600_000;
/** A leader that can't renew its Lease gives up after 10 s, and then has 3 s to stop. */
const leaderExitMs = 20_000;
/** A Lease expires 15 s after its last renewal. Candidates check the Lease every 2 s. */
const takeOverMs = 30_000;
const releasedLeaseMs = 14_000;

const numberedNames = (prefix: string, count: number): readonly string[] =>
  Array.from({ length: count }, (_, at) => `${prefix}-${at}`);

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha'))(
  'the controller of a real cluster during failures',
  () => {
    let fixture: ControllerFaultsFixture;

    beforeAll(async () => {
      fixture = await startControllerFaultsFixture(signal);
    }, 400_000);
    afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);
    afterEach(() => fixture.killAll(), 60_000);

    /** Checks that every claim is bound, and that it has one volume only. */
    const expectAllBoundOnce = async (names: readonly string[]): Promise<void> => {
      const phases = async () => new Set((await fixture.claims()).map(({ status }) => status?.phase));
      await expect.poll(phases, pollOptions).toEqual(new Set(['Bound']));
      const [claims, volumes] = [await fixture.claims(), await fixture.volumes()];
      expect(claims.map(({ metadata }) => metadata.name).sort()).toEqual([...names].sort());
      expect(volumes.map(({ spec }) => spec.claimRef?.uid).sort()).toEqual(
        claims.map(({ metadata }) => metadata.uid).sort(),
      );
      expect(new Set(volumes.map(({ spec }) => spec.csi?.volumeHandle)).size).toBe(names.length);
      expect([...fixture.volumesOnStore()].sort()).toEqual(volumes.map(({ metadata }) => metadata.name).sort());
    };
    const deleteAndExpectGone = async (names: readonly string[]): Promise<void> => {
      await fixture.remove(names);
      await expect.poll(() => fixture.leftovers(), pollOptions).toEqual([]);
    };
    /** Polls without an interval until that many volumes exist. */
    const waitForVolumes = (count: number): Promise<void> =>
      expect.poll(() => fixture.volumesOnStore().length, { ...pollOptions, interval: 1 }).toBeGreaterThanOrEqual(count);

    test(
      'creates one volume for each of many claims although it is killed repeatedly, and leaves nothing behind when they are deleted although it is killed again',
      async () => {
        const names = numberedNames('many', sized({ usual: 60, long: 200 }));
        const creating = fixture.create(names);
        // Random moments in the first, second and last third of the work.
        const moments = [0, 1, 2].map((third) => 1 + Math.floor(((third + Math.random()) * names.length) / 3));
        for (const moment of moments) {
          await fixture.start().untilLeading();
          await waitForVolumes(moment);
          await fixture.killAll();
        }
        await creating;
        await fixture.start().untilLeading();
        await expectAllBoundOnce(names);
        await fixture.remove(names);
        const remaining = Math.floor(Math.random() * names.length * 0.75);
        await expect
          .poll(() => fixture.volumesOnStore().length, { ...pollOptions, interval: 1 })
          .toBeLessThanOrEqual(remaining + Math.ceil(names.length / 5));
        await fixture.killAll();
        await fixture.start().untilLeading();
        await expect.poll(() => fixture.leftovers(), pollOptions).toEqual([]);
      },
      longTimeoutMs,
    );

    test(
      'is replaced within a bounded time when it is killed during its work',
      async () => {
        const names = numberedNames('over', sized({ usual: 30, long: 60 }));
        const first = fixture.start();
        await first.untilLeading();
        const second = fixture.start();
        await expect.poll(() => second.output(), pollOptions).toContain('is waiting for leadership');
        const creating = fixture.create(names);
        await waitForVolumes(5);
        const killedAt = performance.now();
        await first.kill();
        await creating;
        await second.untilLeading();
        expect(performance.now() - killedAt).toBeLessThan(takeOverMs);
        await expectAllBoundOnce(names);
        const third = fixture.start();
        await expect.poll(() => third.output(), pollOptions).toContain('is waiting for leadership');
        const stoppedAt = performance.now();
        expect(await second.stop()).toBe(0);
        await third.untilLeading();
        // The old leader released the Lease, so the next leader didn't wait until it expired.
        expect(performance.now() - stoppedAt).toBeLessThan(releasedLeaseMs);
        await deleteAndExpectGone(names);
      },
      longTimeoutMs,
    );

    test(
      'keeps its locks while it is suspended and another controller leads',
      async () => {
        let first = fixture.start();
        await first.untilLeading();
        for (let round = 0; ; round++) {
          const names = numberedNames(`suspended-${round}`, 100);
          await fixture.create(names);
          await expectAllBoundOnce(names);
          await fixture.remove(names);
          const mark = await suspendWithLock(first);
          // The deletion completed before the controller was suspended.
          if (mark === undefined) continue;
          const second = fixture.start();
          await second.untilLeading();
          const held = locksOf(mark);
          // The second controller deletes all other volumes. It leaves the locked ones alone, because the holder of the
          // locks is alive.
          await expect.poll(async () => (await fixture.volumes()).length, pollOptions).toBeLessThanOrEqual(held.length);
          expect(locksOf(mark)).toEqual(held);
          first.resume();
          expect(await first.ended()).toBe(1);
          // The first controller may have had no time to release its locks. The second one started before the end of
          // the first one, and waits for these locks.
          await expect.poll(() => fixture.leftovers(), { ...pollOptions, timeout: 200_000 }).toEqual([]);
          if (held.length > 0) return;
          // The server had received the release of the last lock before the suspend.
          first = second;
        }
      },
      2 * longTimeoutMs,
    );

    const locksOf = (mark: number): readonly string[] =>
      [...fixture.heldLocks()].filter(([, by]) => by === mark).map(([name]) => name);

    /**
     * Suspends the only controller while it holds a lock on the store. Returns its process mark, or undefined if no
     * volume is left.
     */
    async function suspendWithLock(controller: RunningController): Promise<number | undefined> {
      const isDone = (): boolean => fixture.volumesOnStore().length === 0;
      while (!isDone()) {
        await expect.poll(() => fixture.heldLocks().size > 0 || isDone(), { ...pollOptions, interval: 1 }).toBe(true);
        await controller.suspend();
        const [mark] = fixture.heldLocks().values();
        if (mark !== undefined) return mark;
        controller.resume();
      }
      return undefined;
    }

    test(
      'exits once and is restarted once when the API server is down for half a minute, and then continues',
      async () => {
        const names = numberedNames('away', sized({ usual: 30, long: 60 }));
        const first = fixture.start();
        await first.untilLeading();
        // The client repeats failed requests when the API server is back.
        const creating = fixture.create(names).catch(() => undefined);
        await waitForVolumes(10);
        const stoppedAt = performance.now();
        await fixture.cluster.apiServer.stop();
        await creating;
        // The kubelet would restart the ended container.
        expect(await first.ended()).toBe(1);
        expect(performance.now() - stoppedAt).toBeLessThan(leaderExitMs);
        const second = fixture.start();
        await expect.poll(() => second.output(), pollOptions).toContain('is waiting for leadership');
        await expect.poll(() => performance.now() - stoppedAt, pollOptions).toBeGreaterThan(30_000);
        await fixture.cluster.apiServer.start();
        await second.untilLeading();
        const existing = new Set((await fixture.claims()).map(({ metadata }) => metadata.name));
        await fixture.create(names.filter((name) => !existing.has(name)));
        await expectAllBoundOnce(names);
        await deleteAndExpectGone(names);
      },
      longTimeoutMs,
    );

    test(
      'ends within a bounded time when the API server does not answer, and the next leader finishes its work',
      async () => {
        const names = numberedNames('frozen', sized({ usual: 30, long: 60 }));
        const first = fixture.start();
        await first.untilLeading();
        await fixture.create(names);
        const frozenAt = performance.now();
        await fixture.cluster.apiServer.freeze();
        try {
          expect(await first.ended()).toBe(1);
          expect(performance.now() - frozenAt, first.output()).toBeLessThan(leaderExitMs);
        } finally {
          fixture.cluster.apiServer.thaw();
        }
        expect(first.output()).toContain('another process may be the leader now');
        await fixture.start().untilLeading();
        await expectAllBoundOnce(names);
        await deleteAndExpectGone(names);
      },
      longTimeoutMs,
    );

    test(
      'leaves nothing behind when claims are deleted while it creates their volumes',
      async () => {
        const names = numberedNames('brief', sized({ usual: 40, long: 100 }));
        await fixture.start().untilLeading();
        const creating = fixture.create(names);
        await waitForVolumes(1);
        // At this moment some claims have no volume, some have a volume without a PV, and some are bound.
        await fixture.remove(names);
        await creating;
        await fixture.remove(names);
        await expect.poll(() => fixture.leftovers(), pollOptions).toEqual([]);
      },
      longTimeoutMs,
    );

    test(
      'keeps volumes whose server is down until it is back, with Events that say what to do',
      async () => {
        const names = numberedNames('behind', 5);
        await fixture.start().untilLeading();
        await fixture.create(names);
        await expectAllBoundOnce(names);
        await fixture.nfs.stop();
        try {
          await fixture.remove(names);
          const phases = async () => (await fixture.volumes()).map(({ status }) => status?.phase);
          await expect.poll(phases, pollOptions).toEqual(names.map(() => 'Released'));
          for (const { metadata } of await fixture.volumes())
            await expect
              .poll(() => fixture.eventMessages(metadata.name ?? ''), pollOptions)
              .toContain('kubectl get stores');
          expect(await fixture.volumes()).toHaveLength(names.length);
          expect(fixture.volumesOnStore()).toHaveLength(names.length);
        } finally {
          await fixture.nfs.restart();
        }
        await expect.poll(() => fixture.leftovers(), { ...pollOptions, timeout: 120_000 }).toEqual([]);
      },
      longTimeoutMs,
    );
  },
);
