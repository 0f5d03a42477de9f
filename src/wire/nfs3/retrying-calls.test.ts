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
const hard = { deadlineMs: Number.POSITIVE_INFINITY };
const done = { before: undefined, after: undefined };
const attributes = (fileId: bigint) => ({ fileId, fsid: 1n });

type Answer = () => unknown;

let clock: FakeClock;
let asked: string[];
/** What the server answers, by procedure, in order. */
let answers: Record<string, Answer[]>;
let nfs: NfsClient;

beforeEach(() => {
  clock = createFakeClock();
  asked = [];
  answers = {};
  const rpc: Pick<RpcClient, 'call'> = {
    call: async (procedure, _args, _options, recover) => {
      asked.push(procedure.name);
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

const failing =
  (
    failure: RpcFailure,
    more: { readonly maybeDone?: boolean; readonly outcomeCheck?: RpcError['outcomeCheck'] } = {},
  ): Answer =>
  () => {
    throw new RpcError(failure, { failure, ...(more as object) });
  };
/** The connection was lost, and the server would not recognise the call. */
const lost = (after = 0, before = Number.POSITIVE_INFINITY): Answer =>
  failing('lost', { maybeDone: true, outcomeCheck: { notBefore: after, deadline: before } });
const refused =
  (status: keyof typeof nfsStatus, procedure = 'LOOKUP'): Answer =>
  () => {
    throw new NfsError(procedure, nfsStatus[status], false);
  };
const found =
  (handle: FileHandle): Answer =>
  () => ({ handle, attributes: undefined });

/** Lets time pass until the call has ended. */
async function ended<R>(call: Promise<R>): Promise<R> {
  let isOver = false;
  const over = call.finally(() => {
    isOver = true;
  });
  over.catch(() => undefined);
  while (!isOver) {
    await new Promise(setImmediate);
    clock.advance(1_000);
  }
  return await over;
}

const removed = () => ended(nfs.remove(directory, 'f', { ...hard, expected }));

describe('a lost REMOVE that the server would not recognise', () => {
  test('succeeds if the name does not exist', async () => {
    answers = { REMOVE: [lost()], LOOKUP: [refused('NOENT')] };
    await removed();
    expect(asked).toEqual(['REMOVE', 'LOOKUP']);
  });

  test('succeeds if the name refers to another file', async () => {
    const stats = [() => attributes(1n), () => attributes(2n)];
    answers = { REMOVE: [lost()], LOOKUP: [found(another)], GETATTR: stats };
    await removed();
    expect(asked).not.toContain('REMOVE REMOVE');
    expect(asked.filter((name) => name === 'REMOVE')).toHaveLength(1);
  });

  test('is sent again if the name refers to the same file by another handle', async () => {
    const stats = [() => attributes(1n), () => attributes(1n)];
    answers = { REMOVE: [lost(), () => done], LOOKUP: [found(another)], GETATTR: stats };
    await removed();
    expect(asked.filter((name) => name === 'REMOVE')).toHaveLength(2);
  });

  test('is looked up again when it is lost a second time', async () => {
    answers = { REMOVE: [lost(), lost()], LOOKUP: [found(expected), refused('NOENT')] };
    await removed();
    expect(asked).toEqual(['REMOVE', 'LOOKUP', 'REMOVE', 'LOOKUP']);
  });

  test('waits until the first copy is no longer expected to run', async () => {
    answers = { REMOVE: [lost(20_000)], LOOKUP: [refused('NOENT')] };
    await removed();
    expect(clock.elapsed()).toBeGreaterThanOrEqual(20_000);
  });

  test.each([failing('unreachable'), failing('lost', { maybeDone: false }), refused('JUKEBOX')])(
    'is looked up until the server answers (%#)',
    async (failure) => {
      // JUKEBOX is asked for again by the look itself, until that gives up.
      answers = { REMOVE: [lost()], LOOKUP: [...Array<Answer>(9).fill(failure), refused('NOENT')] };
      await removed();
      expect(asked.filter((name) => name === 'REMOVE')).toHaveLength(1);
    },
  );

  test.each<readonly [string, Answer]>([
    ['is not told before its deadline', failing('deadline')],
    ['may not be looked for', refused('ACCES')],
    ['is looked for on a client that is closed', failing('closed')],
  ])('and that %s stays one that may have been done', async (_what, failure) => {
    answers = { REMOVE: [lost()], LOOKUP: [failure] };
    await expect(removed()).rejects.toMatchObject({ name: 'RpcError', maybeDone: true });
  });

  test('keeps an unknown outcome if the caller did not name the expected file', async () => {
    answers = { REMOVE: [lost()], LOOKUP: [found(another)] };
    await expect(ended(nfs.remove(directory, 'f', hard))).rejects.toMatchObject({ failure: 'lost', maybeDone: true });
  });

  test('keeps an unknown outcome if no time is left for the check', async () => {
    answers = { REMOVE: [lost(20_000, 10_000)] };
    await expect(removed()).rejects.toMatchObject({ failure: 'lost', maybeDone: true });
    expect(asked).toEqual(['REMOVE']);
  });

  test('ends when the caller aborts', async () => {
    const mine = new AbortController();
    answers = { REMOVE: [lost(20_000)] };
    const call = nfs.remove(directory, 'f', { ...hard, expected, signal: mine.signal });
    mine.abort();
    await expect(call).rejects.toMatchObject({ failure: 'canceled', maybeDone: true });
  });
});

describe('a lost MKDIR that the server would not recognise', () => {
  test('is recognised as our own when it is resent after an outage of the server', async () => {
    const made = { handle: expected, attributes: { type: 2 } };
    answers = {
      MKDIR: [lost(), failing('unreachable'), refused('EXIST', 'MKDIR')],
      LOOKUP: [() => made],
    };
    expect(await ended(nfs.mkdir(directory, 'd', {}, hard))).toMatchObject({ handle: expected });
  });
});
