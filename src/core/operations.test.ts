import { readdir } from 'node:fs/promises';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, waitForOptions } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Operation, Volume } from './model.ts';
import type { Call } from './operations.ts';

let server: TestCore;
let kind: GatedKind;
const clock = createFakeClock();

beforeEach(async () => {
  kind = gated(createLocalStoreKind());
  server = await startCore({ kinds: [kind], clock });
  onTestFinished(() => server[Symbol.asyncDispose]());
});

const create = (name: string, call: Partial<Call> = {}): Promise<Volume> =>
  server.core.volumes.create({ store: undefined, name, bytes: undefined, access: undefined, labels: {} }, aCall(call));

const newest = (): Operation | undefined => server.core.operations.page({ limit: 1 }).items[0]?.operation;

test('an operation is on record before its work begins', async () => {
  const gate = kind.close('create');
  const announced: Operation[] = [];
  const creation = create('a', { onOperation: (operation) => announced.push(operation) });
  await gate.reached;
  expect(announced).toHaveLength(1);
  expect(newest()).toMatchObject({ id: announced[0]?.id, kind: 'volume.create', subject: 'local/a', state: 'running' });
  expect(server.core.operations.running).toBe(1);
  gate.open();
  await creation;
  expect(newest()).toMatchObject({ state: 'done', endedAt: clock.now(), error: undefined });
  expect(server.core.operations.running).toBe(0);
});

test('retries recording the end of an operation, which counts as running and locks its volume until then', async () => {
  const { records } = server.core;
  const full = new Error('database or disk is full');
  const writing = vi.spyOn(records, 'transaction').mockImplementation(() => {
    throw full;
  });
  onTestFinished(() => writing.mockRestore());
  const creation = create('a');
  await vi.waitFor(() => expect(writing).toHaveBeenCalled(), waitForOptions);
  expect(newest()).toMatchObject({ state: 'running' });
  expect(await readdir(server.storeFolder)).toContain('a');
  clock.advance(1_000);
  await vi.waitFor(() => expect(writing).toHaveBeenCalledTimes(2), waitForOptions);
  writing.mockRestore();
  clock.advance(1_000);
  expect(await creation).toMatchObject({ name: 'a' });
  expect(newest()).toMatchObject({ state: 'done', error: undefined });
  expect(await server.core.catalogue.resolve('a', aCall())).toMatchObject({ name: 'a' });
});

describe('the cancellation of an operation', () => {
  test('ends the work, reports it as cancelled, and leaves nothing behind', async () => {
    const gate = kind.close('create');
    const creation = create('a');
    await gate.reached;
    const operation = newest();
    expect(operation && server.core.operations.cancel(operation.id)).toBe(true);
    await expect(creation).rejects.toMatchObject({ code: 'canceled', message: 'the operation was cancelled' });
    expect(newest()).toMatchObject({ state: 'canceled', error: { code: 'canceled' } });
    expect(await readdir(server.storeFolder)).toEqual(['.stowage']);
    gate.open();
    await create('a');
  });

  test('changes nothing after the operation has ended', async () => {
    await create('a');
    const operation = newest();
    expect(operation && server.core.operations.cancel(operation.id)).toBe(false);
    expect(newest()).toMatchObject({ state: 'done' });
  });

  test('while it waits for a lock prevents its start', async () => {
    const gate = kind.close('create');
    const caller = new AbortController();
    const first = create('a');
    await gate.reached;
    const second = create('a', { signal: caller.signal });
    caller.abort();
    await expect(second).rejects.toThrow();
    expect(server.core.operations.page({ limit: 10 }).items).toHaveLength(1);
    gate.open();
    await first;
  });
});

describe('a drain', () => {
  test('waits for running operations', async () => {
    const gate = kind.close('create');
    const creation = create('a');
    await gate.reached;
    const drained = server.core.operations.drain(10_000);
    gate.open();
    await drained;
    expect(await creation).toMatchObject({ name: 'a' });
    expect(newest()).toMatchObject({ state: 'done' });
  });

  test('rejects new operations', async () => {
    await server.core.operations.drain(0);
    await expect(create('a')).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'stopping',
      message: 'Stowage is stopping and starts no new operations',
    });
    expect(server.core.operations.page({ limit: 10 }).items).toHaveLength(0);
  });

  test('rejects callers that wait for a lock when it begins', async () => {
    const gate = kind.close('create');
    const first = create('a');
    await gate.reached;
    const second = create('a');
    const drained = server.core.operations.drain(10_000);
    gate.open();
    await expect(second).rejects.toMatchObject({ reason: 'stopping' });
    await first;
    await drained;
  });

  test('interrupts operations after the grace period, and the next start replays them', async () => {
    const gate = kind.close('create');
    const creation = create('late');
    await gate.reached;
    const drained = server.core.operations.drain(10_000);
    // Attached before the rejection, which would be unhandled otherwise.
    const interrupted = expect(creation).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'stopping',
      message: 'Stowage is stopping; the operation continues at the next start',
    });
    clock.advance(10_000);
    await drained;
    await interrupted;
    expect(newest()).toMatchObject({ state: 'running' });
    await server.stop();
    gate.open();
    await using next = await startCore({ after: server });
    expect(await next.core.catalogue.resolve('late', aCall())).toMatchObject({ name: 'late' });
    expect(next.core.operations.page({ limit: 1 }).items[0]?.operation).toMatchObject({
      subject: 'local/late',
      state: 'done',
    });
  });
});

test('keeps a bounded number of ended operations', async () => {
  const numbers = Array.from({ length: 1200 }, (_, i) => i);
  for (let i = 0; i < numbers.length; i += 100) {
    await Promise.all(numbers.slice(i, i + 100).map((n) => create(`v${n}`)));
  }
  expect(server.core.operations.page({ limit: 5000 }).items.length).toBeLessThan(1101);
});
