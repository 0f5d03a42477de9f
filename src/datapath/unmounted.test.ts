import { constants } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { keepJournal, putRequest } from '#testing/journal.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { RpcError } from '#wire/rpc/errors.ts';
import { createBudget, maxUnwritten } from './budget.ts';
import { openFileSystem } from './file-system.ts';
import { createRequests } from './journal/requests.ts';
import { createMountJournal } from './mount-journal.ts';

describe('a mount that is removed while its server is silent', () => {
  /** Every call blocks until it is aborted. */
  function silent() {
    const given: CallOptions[] = [];
    const waits = (...args: readonly unknown[]): Promise<never> => {
      const options = args.at(-1) as CallOptions;
      const { promise, reject } = Promise.withResolvers<never>();
      const giveUp = (): void => reject(new RpcError('given up', { failure: 'canceled', maybeDone: true }));
      given.push(options);
      if (options.signal?.aborted === true) giveUp();
      options.signal?.addEventListener('abort', giveUp);
      return promise;
    };
    const nfs = { write: waits, mkdir: waits, lookup: waits } as unknown as NfsClient;
    const over = new AbortController();
    const nodes = createMemoryNodes(Buffer.from('root'));
    const freed: number[] = [];
    const budget = createBudget(maxUnwritten);
    const system = openFileSystem({
      nfs,
      nodes,
      proofs: createMemoryProofs(),
      clock: createFakeClock(),
      notify: () => undefined,
      behind: {
        journal: { keep: () => undefined, free: (place) => void freed.push(place) },
        budget,
        ready: () => undefined,
      },
      ended: over.signal,
      options: { identity: asCaller },
    });
    let places = 0;
    const request = (): Request => ({
      uid: 0,
      gid: 0,
      pid: 1,
      slot: ++places,
      resent: false,
      signal: new AbortController().signal,
    });
    const end = (): void => {
      over.abort();
      void system.behind.stop();
      system[Symbol.dispose]();
    };
    const file = nodes.addLookup(Buffer.from('file')).id;
    const write = (bytes: number) =>
      (system.operations as Operations).write(
        file,
        { fh: 1, offset: 0, openFlags: constants.O_WRONLY } as never,
        Buffer.alloc(bytes, 'a'),
        request(),
      );
    return { on: system.operations as Operations, given, budget, freed, request, end, write };
  }

  test('stops sending acknowledged data, since their memory belongs to others', async () => {
    const { given, budget, freed, end, write } = silent();
    expect(await write(100_000)).toBe(100_000);
    await nextTurn();
    expect(given.map(({ signal }) => signal?.aborted)).toEqual([false]);
    expect(budget.used).toBeGreaterThan(0);
    end();
    expect(given.map(({ signal }) => signal?.aborted)).toEqual([true]);
    // The memory is free for others.
    expect(budget.used).toBe(0);
    await nextTurn();
    expect([given.length, freed]).toEqual([1, []]);
  });

  test('interrupts waiting requests at once and sends no more calls', async () => {
    const { on, given, request, end } = silent();
    const name = Buffer.from('name');
    const waiting = expect(on.mkdir(1, name, 0o755, request())).rejects.toThrow('EINTR');
    expect(given).toHaveLength(1);
    end();
    await waiting;
    await expect(on.lookup(1, name, request())).rejects.toThrow('EINTR');
    expect(given.map(({ signal }) => signal?.aborted)).toEqual([true, true]);
  });
});

describe("a mount's part of the journal", () => {
  test('is not written to after the mount is gone', () => {
    using kept = keepJournal();
    const requests = createRequests(kept.open());
    const over = new AbortController();
    const written: number[] = [];
    const growth = { read: () => ({ epoch: 0, growth: 0 }), write: (epoch: number) => void written.push(epoch) };
    const own = createMountJournal({ requests, growth }, over.signal);
    const slot = requests.arm(0) ?? expect.fail();
    const take = (): number => (requests.take(0, slot, putRequest(slot, 2, 60)) ?? expect.fail()).place;
    const [first, second] = [take(), take()];
    const proof = { kind: 'gone', handle: Buffer.from('a handle') } as const;
    own.proofs.write(first, proof);
    own.keep(second);
    own.growth.write(1, 0);
    expect([own.proofs.find(first), requests.isBehind(second), written]).toEqual([proof, true, [1]]);
    over.abort();
    const place = take();
    own.proofs.write(place, proof);
    own.keep(place);
    own.growth.write(2, 0);
    expect([own.proofs.find(first), requests.find(place), requests.isBehind(place), written]).toEqual([
      undefined,
      undefined,
      false,
      [1],
    ]);
  });
});
