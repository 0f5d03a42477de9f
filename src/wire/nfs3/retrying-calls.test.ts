import { beforeEach, describe, expect, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { RpcClient } from '../rpc/client.ts';
import { RpcError, type RpcFailure } from '../rpc/errors.ts';
import { createNfsClient, type NfsClient } from './client.ts';
import { NfsError, nfsStatus } from './status.ts';
import type { FileHandle } from './structures.ts';

const directory = Buffer.from('directory') as unknown as FileHandle;
const expected = Buffer.from('expected') as unknown as FileHandle;
const another = Buffer.from('another') as unknown as FileHandle;
const withoutDeadline = { deadlineMs: Number.POSITIVE_INFINITY };
const unknownChange = { before: undefined, after: undefined };
const attributes = (fileId: bigint) => ({ fileId, fsid: 1n });

type Answer = () => unknown;

let clock: FakeClock;
let calls: string[];
/** The server's replies by procedure, in order. */
let answers: Record<string, Answer[]>;
let nfs: NfsClient;

beforeEach(() => {
  clock = createFakeClock();
  calls = [];
  answers = {};
  const rpc: Pick<RpcClient, 'call'> = {
    call: async (procedure, _args, _options, recover) => {
      calls.push(procedure.name);
      const answer = answers[procedure.name]?.shift();
      if (answer === undefined) throw new Error(`${procedure.name} was not expected`);
      try {
        return answer() as never;
      } catch (cause) {
        if (recover === undefined) throw cause;
        return await recover(cause, clock.elapsed());
      }
    },
  };
  nfs = createNfsClient(rpc, clock);
});

const failWith =
  (
    failure: RpcFailure,
    more: { readonly maybeDone?: boolean; readonly outcomeCheck?: RpcError['outcomeCheck'] } = {},
  ): Answer =>
  () => {
    throw new RpcError(failure, { failure, ...(more as object) });
  };
/** Fails like a lost connection to a server that would not recognise the call. */
const connectionLost = (after = 0, before = Number.POSITIVE_INFINITY): Answer =>
  failWith('lost', { maybeDone: true, outcomeCheck: { notBefore: after, deadline: before } });
const refuseWith =
  (status: keyof typeof nfsStatus, procedure = 'LOOKUP'): Answer =>
  () => {
    throw new NfsError(procedure, nfsStatus[status], false);
  };
const findHandle =
  (handle: FileHandle): Answer =>
  () => ({ handle, attributes: undefined });

/** Advances the clock until the call has ended. */
async function waitForEnd<R>(call: Promise<R>): Promise<R> {
  let hasEnded = false;
  const settled = call.finally(() => {
    hasEnded = true;
  });
  settled.catch(() => undefined);
  while (!hasEnded) {
    await new Promise(setImmediate);
    clock.advance(1_000);
  }
  return await settled;
}

const removeFile = () => waitForEnd(nfs.remove(directory, 'f', { ...withoutDeadline, expected }));

describe('a lost REMOVE that the server would not recognise', () => {
  test('succeeds if the name does not exist', async () => {
    answers = { REMOVE: [connectionLost()], LOOKUP: [refuseWith('NOENT')] };
    await removeFile();
    expect(calls).toEqual(['REMOVE', 'LOOKUP']);
  });

  test('succeeds if the name refers to another file', async () => {
    const stats = [() => attributes(1n), () => attributes(2n)];
    answers = { REMOVE: [connectionLost()], LOOKUP: [findHandle(another)], GETATTR: stats };
    await removeFile();
    expect(calls).not.toContain('REMOVE REMOVE');
    expect(calls.filter((name) => name === 'REMOVE')).toHaveLength(1);
  });

  test('is sent again if the name refers to the same file by another handle', async () => {
    const stats = [() => attributes(1n), () => attributes(1n)];
    answers = { REMOVE: [connectionLost(), () => unknownChange], LOOKUP: [findHandle(another)], GETATTR: stats };
    await removeFile();
    expect(calls.filter((name) => name === 'REMOVE')).toHaveLength(2);
  });

  test('is looked up again when it is lost a second time', async () => {
    answers = { REMOVE: [connectionLost(), connectionLost()], LOOKUP: [findHandle(expected), refuseWith('NOENT')] };
    await removeFile();
    expect(calls).toEqual(['REMOVE', 'LOOKUP', 'REMOVE', 'LOOKUP']);
  });

  test('waits until the first copy is no longer expected to run', async () => {
    answers = { REMOVE: [connectionLost(20_000)], LOOKUP: [refuseWith('NOENT')] };
    await removeFile();
    expect(clock.elapsed()).toBeGreaterThanOrEqual(20_000);
  });

  test.each([failWith('unreachable'), failWith('lost', { maybeDone: false }), refuseWith('JUKEBOX')])(
    'is looked up until the server answers (%#)',
    async (failure) => {
      // The LOOKUP itself retries JUKEBOX for a while.
      answers = { REMOVE: [connectionLost()], LOOKUP: [...Array<Answer>(9).fill(failure), refuseWith('NOENT')] };
      await removeFile();
      expect(calls.filter((name) => name === 'REMOVE')).toHaveLength(1);
    },
  );

  test.each<readonly [string, Answer]>([
    ['has no reply to the LOOKUP before its deadline', failWith('deadline')],
    ['has no permission for the LOOKUP', refuseWith('ACCES')],
    ['is looked up on a closed client', failWith('closed')],
  ])('keeps an unknown outcome if it %s', async (_what, failure) => {
    answers = { REMOVE: [connectionLost()], LOOKUP: [failure] };
    await expect(removeFile()).rejects.toMatchObject({ name: 'RpcError', maybeDone: true });
  });

  test('keeps an unknown outcome if the caller did not name the expected file', async () => {
    answers = { REMOVE: [connectionLost()], LOOKUP: [findHandle(another)] };
    await expect(waitForEnd(nfs.remove(directory, 'f', withoutDeadline))).rejects.toMatchObject({
      failure: 'lost',
      maybeDone: true,
    });
  });

  test('keeps an unknown outcome if no time is left for the check', async () => {
    answers = { REMOVE: [connectionLost(20_000, 10_000)] };
    await expect(removeFile()).rejects.toMatchObject({ failure: 'lost', maybeDone: true });
    expect(calls).toEqual(['REMOVE']);
  });

  test('ends when the caller aborts', async () => {
    const caller = new AbortController();
    answers = { REMOVE: [connectionLost(20_000)] };
    const call = nfs.remove(directory, 'f', { ...withoutDeadline, expected, signal: caller.signal });
    caller.abort();
    await expect(call).rejects.toMatchObject({ failure: 'canceled', maybeDone: true });
  });
});

describe('a lost MKDIR that the server would not recognise', () => {
  test('finds its own directory when it is resent after an outage of the server', async () => {
    const createdDirectory = { handle: expected, attributes: { type: 2 } };
    answers = {
      MKDIR: [connectionLost(), failWith('unreachable'), refuseWith('EXIST', 'MKDIR')],
      LOOKUP: [() => createdDirectory],
    };
    expect(await waitForEnd(nfs.mkdir(directory, 'd', {}, withoutDeadline))).toMatchObject({ handle: expected });
  });
});
