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
import { createBudget, maxUnwrittenBytes } from './budget.ts';
import { openFileSystem } from './file-system.ts';
import { createRequests } from './journal/requests.ts';
import { createMountJournal } from './mount-journal.ts';

describe('a mount that is removed while its server is silent', () => {
  /** Every call blocks until it is aborted. */
  function createSilentMount() {
    const sentCalls: CallOptions[] = [];
    const waitForAbort = (...args: readonly unknown[]): Promise<never> => {
      const options = args.at(-1) as CallOptions;
      const { promise, reject } = Promise.withResolvers<never>();
      const giveUp = (): void => reject(new RpcError('given up', { failure: 'canceled', maybeDone: true }));
      sentCalls.push(options);
      if (options.signal?.aborted === true) giveUp();
      options.signal?.addEventListener('abort', giveUp);
      return promise;
    };
    const nfs = { write: waitForAbort, mkdir: waitForAbort, lookup: waitForAbort } as unknown as NfsClient;
    const unmount = new AbortController();
    const nodes = createMemoryNodes(Buffer.from('root'));
    const freed: number[] = [];
    const budget = createBudget(maxUnwrittenBytes);
    const system = openFileSystem({
      nfs,
      nodes,
      proofs: createMemoryProofs(),
      clock: createFakeClock(),
      notify: () => undefined,
      writeBehind: {
        journal: { keep: () => undefined, free: (place) => void freed.push(place) },
        budget,
        ready: () => undefined,
      },
      mountEnded: unmount.signal,
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
      unmount.abort();
      void system.uncommitted.stop();
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
    return { on: system.operations as Operations, given: sentCalls, budget, freed, request, end, write };
  }

  test('stops sending acknowledged data, since their memory belongs to others', async () => {
    const { given, budget, freed, end, write } = createSilentMount();
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
    const { on, given, request, end } = createSilentMount();
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
    using journal = keepJournal();
    const requests = createRequests(journal.open());
    const unmount = new AbortController();
    const written: number[] = [];
    const growth = { read: () => ({ epoch: 0, growth: 0 }), write: (epoch: number) => void written.push(epoch) };
    const mountJournal = createMountJournal({ requests, growth }, unmount.signal);
    const slot = requests.arm(0) ?? expect.fail();
    const take = (): number => (requests.take(0, slot, putRequest(slot, 2, 60)) ?? expect.fail()).place;
    const [first, second] = [take(), take()];
    const proof = { kind: 'gone', handle: Buffer.from('a handle') } as const;
    mountJournal.proofs.write(first, proof);
    mountJournal.keep(second);
    mountJournal.growth.write(1, 0);
    expect([mountJournal.proofs.find(first), requests.isBehind(second), written]).toEqual([proof, true, [1]]);
    unmount.abort();
    const place = take();
    mountJournal.proofs.write(place, proof);
    mountJournal.keep(place);
    mountJournal.growth.write(2, 0);
    expect([mountJournal.proofs.find(first), requests.find(place), requests.isBehind(place), written]).toEqual([
      undefined,
      undefined,
      false,
      [1],
    ]);
  });
});
