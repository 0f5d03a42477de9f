import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, waitForOptions } from '#testing/core-calls.ts';
import { refusal } from '#testing/expected-errors.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createMemoryRecords, type MemoryRecords } from '#testing/fakes/records.ts';
import { type RefusingKind, refusing } from '#testing/fakes/refusing-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { relayed, type StowageError } from './errors.ts';
import type { Operation, Volume } from './model.ts';
import { newOperationId } from './names.ts';

let folder: string;
let records: MemoryRecords;
let kind: RefusingKind;
let clock: FakeClock;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'stowage-replays-'));
  await mkdir(join(folder, 'keep'));
  kind = refusing(createLocalStoreKind());
  clock = createFakeClock();
  records = createMemoryRecords();
  onTestFinished(() => {
    records[Symbol.dispose]();
    return rm(folder, { recursive: true, force: true });
  });
});

const start = (): Promise<TestCore> => startCore({ folder, records, kinds: [kind], clock });

const create = (server: TestCore, name: string): Promise<Volume> =>
  server.core.volumes.create(
    { store: 'keep', name, bytes: 10n, access: undefined, labels: {} },
    aCall({ requestId: name }),
  );

/** Creates the volumes a and b in the store, and returns a. */
async function createVolumes(): Promise<Volume> {
  await using server = await start();
  await server.core.stores.add('keep', `local://${join(folder, 'keep')}?onDelete=delete`, aCall());
  await create(server, 'b');
  return await create(server, 'a');
}

/** Records an intent without an end, as a server leaves it after kill -9. */
function leaveIntent(operationKind: string, params: Record<string, unknown>): Operation['id'] {
  const id = newOperationId();
  const operation = { id, kind: operationKind, store: 'keep', subject: 'keep/a', params };
  records
    .open()
    .operations.begin({ ...operation, state: 'running', startedAt: 1, endedAt: undefined, error: undefined });
  return id;
}

const error = (code: StowageError['code']): StowageError =>
  relayed(`refused as ${code}`, { code, reason: 'test', action: 'Wait.' });

const operationOf = (server: TestCore, id: Operation['id']): Operation | undefined =>
  server.core.operations.get(id)?.operation;

const leaveLabelIntent = (volume: Volume): Operation['id'] =>
  leaveIntent('volume.label', { id: volume.id, name: 'a', labels: { late: 'yes' } });

describe('an interrupted operation that fails temporarily', () => {
  test.each(['unavailable', 'busy', 'deadline'] as const)(
    'stays pending after %s, and succeeds when the store answers',
    async (code) => {
      const volume = await createVolumes();
      const intent = leaveLabelIntent(volume);
      const failure = kind.fail('label', error(code));
      await using server = await start();
      expect(operationOf(server, intent)).toMatchObject({ state: 'running', error: { message: `refused as ${code}` } });
      expect(server.core.stores.view('keep').problem).toBeUndefined();
      clock.advance(1_000);
      await vi.waitFor(() => expect(failure.refused()).toBe(2), waitForOptions);
      expect(operationOf(server, intent)).toMatchObject({ state: 'running' });
      failure.stop();
      clock.advance(2_000);
      await vi.waitFor(
        () => expect(operationOf(server, intent)).toMatchObject({ state: 'done', error: undefined }),
        waitForOptions,
      );
      const { volume: now } = await server.core.volumes.inspect('keep..a', aCall());
      expect(now.labels).toEqual({ late: 'yes' });
    },
  );

  test('is retried with increasing pauses of at most a minute', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    const failure = kind.fail('label', error('unavailable'));
    await using server = await start();
    const waits: number[] = [];
    for (let attempt = 1; attempt < 9; attempt++) {
      // The server sets the timer for the next attempt a moment after it has recorded the failure.
      await vi.waitFor(() => expect(operationOf(server, intent)?.error).toBeDefined(), waitForOptions);
      for (let seconds = 1; failure.refused() === attempt; seconds++) {
        clock.advance(1_000);
        await new Promise(setImmediate);
        waits[attempt - 1] = seconds;
      }
    }
    expect(waits).toEqual([1, 2, 4, 8, 16, 32, 60, 60]);
  });

  test('blocks no other volume', async () => {
    leaveLabelIntent(await createVolumes());
    kind.fail('label', error('unavailable'));
    await using server = await start();
    expect(await server.core.volumes.expand('keep..b', 20n, undefined, aCall())).toMatchObject({ bytes: 20n });
    await create(server, 'c');
  });

  test('makes a request for the same volume wait, and fail with an error that names the operation', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    kind.fail('label', error('unavailable'));
    await using server = await start();
    const expanding = server.core.volumes.expand('keep..a', 20n, undefined, aCall());
    const failures: StowageError[] = [];
    for (const request of [expanding, create(server, 'a')]) void refusal(request).then((it) => failures.push(it));
    // The test cannot see when the requests begin to wait, so it advances the clock repeatedly.
    await vi.waitFor(() => {
      clock.advance(1_000);
      expect(failures).toHaveLength(2);
    }, waitForOptions);
    for (const failure of failures) {
      expect(failure).toMatchObject({ code: 'busy', reason: 'operation-pending' });
      expect(failure.message).toContain(intent);
      expect(failure.message).toContain('refused as unavailable');
    }
  });

  test('lets a waiting request continue when it has ended', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    const failure = kind.fail('label', error('unavailable'));
    await using server = await start();
    const expanding = server.core.volumes.expand('keep..a', 20n, undefined, aCall());
    failure.stop();
    clock.advance(1_000);
    expect(await expanding).toMatchObject({ bytes: 20n, labels: { late: 'yes' } });
    expect(operationOf(server, intent)).toMatchObject({ state: 'done' });
  });

  test('does not delay a shutdown, and is replayed at the next start', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    const failure = kind.fail('label', error('unavailable'));
    {
      await using server = await start();
      expect(operationOf(server, intent)).toMatchObject({ state: 'running' });
    }
    failure.stop();
    await using server = await start();
    expect(operationOf(server, intent)).toMatchObject({ state: 'done' });
  });

  test('fails if the store rejects the operation with an error that is not retried', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    kind.fail('label', error('unavailable'));
    await using server = await start();
    kind.fail('label', error('conflict'));
    clock.advance(1_000);
    const failed = { state: 'failed', error: { message: 'refused as conflict' } };
    await vi.waitFor(() => expect(operationOf(server, intent)).toMatchObject(failed), waitForOptions);
    await server.core.volumes.expand('keep..a', 20n, undefined, aCall());
  });

  test('can be cancelled', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    kind.fail('label', error('unavailable'));
    await using server = await start();
    expect(server.core.operations.cancel(intent)).toBe(true);
    await vi.waitFor(() => expect(operationOf(server, intent)).toMatchObject({ state: 'canceled' }), waitForOptions);
    await server.core.volumes.expand('keep..a', 20n, undefined, aCall());
  });

  test('ends when its store is removed, and is not retried on another store of that name', async () => {
    const intent = leaveLabelIntent(await createVolumes());
    const failure = kind.fail('label', error('unavailable'));
    await using server = await start();
    await server.core.stores.remove('keep', aCall());
    const canceled = { state: 'canceled', error: { reason: 'store-removed' } };
    expect(operationOf(server, intent)).toMatchObject(canceled);
    await server.core.stores.add('keep', `local://${join(folder, 'keep')}`, aCall());
    await create(server, 'a-second');
    const attemptsBefore = failure.refused();
    clock.advance(60_000);
    await server.core.adoptions.adopt('keep', { dryRun: false, data: false }, aCall());
    await server.core.volumes.expand('keep..a', 20n, undefined, aCall());
    expect(failure.refused()).toBe(attemptsBefore);
    expect(operationOf(server, intent)).toMatchObject(canceled);
  });
});
