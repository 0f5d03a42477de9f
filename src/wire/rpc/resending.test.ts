import { beforeEach, describe, expect, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { Connection } from './connection.ts';
import { RpcError } from './errors.ts';
import { createPendingCalls, type PendingCalls } from './pending-calls.ts';
import type { Procedure, ServerVerifier } from './procedure.ts';
import { createResending, type Resending } from './resending.ts';
import type { Call } from './transport.ts';
import { createVerifiers, type Verifiers } from './verifiers.ts';

const serverVerifier: ServerVerifier = {
  verifierOf: (result) => result as bigint,
  queryTarget: (args) => args,
  query: (witness) => ({ procedure: verifierProcedure, args: witness }),
};
const common = { program: 200_000, version: 1, encode: () => undefined, decode: () => undefined } as const;
const readProcedure: Procedure<unknown, unknown> = { ...common, number: 1, name: 'READING' };
const mutatingProcedure: Procedure<unknown, unknown> = { ...common, number: 2, name: 'MUTATING', mutates: () => true };
const verifierProcedure: Procedure<unknown, unknown> = { ...common, number: 3, name: 'ASKING', serverVerifier };

const guardedProcedure: Procedure<unknown, unknown> = { ...common, number: 4, name: 'GUARDING', mutates: () => false };

const address = { host: 'there', port: 2049 };
const connectionFrom = (endpoints: string): Connection => ({ endpoints, address }) as Connection;
const lateCallMs = 10_000;
const deadlineMs = 500_000;

let clock: FakeClock;
let pending: PendingCalls;
let sent: string[];
let failed: { readonly name: string; readonly outcomeCheck: RpcError['outcomeCheck'] }[];
let resending: Resending;
/** The server's reply to a verifier query for a file. */
let answer: (file: unknown) => Promise<bigint>;
/** The server's reply to NULL. */
let answerNull: () => Promise<unknown>;
let isBacklogged: boolean;
let verifiers: Verifiers;
/** The result of `isNotExecuted`. */
let isNotExecuted: () => Promise<boolean | undefined>;
let lookups: number;
let xid: number;
let copies: number;

beforeEach(() => {
  clock = createFakeClock();
  pending = createPendingCalls();
  sent = [];
  failed = [];
  xid = copies = lookups = 0;
  verifiers = createVerifiers();
  isNotExecuted = () => Promise.resolve(true);
  isBacklogged = false;
  answer = noReply;
  answerNull = () => Promise.resolve();
  resending = createResending({
    clock,
    pending,
    verifiers,
    lateCallMs,
    isBacklogged: () => isBacklogged,
    closing: new AbortController().signal,
    send,
    fail: (call, { outcomeCheck }) => {
      pending.delete(call);
      failed.push({ name: call.procedure.name, outcomeCheck });
    },
    isNotExecuted: async (call) => {
      lookups++;
      return await call.isNotExecuted?.({});
    },
    call: async ({ procedure, args }) => {
      if (procedure.number === 0) return await answerNull();
      const result = await answer(args);
      resending.answered(newCall(procedure, args), result);
      return result;
    },
  });
});

const noReply = (): Promise<never> => Promise.reject(new RpcError('no reply', { failure: 'deadline' }));

function newCall(
  procedure: Procedure<unknown, unknown>,
  args: unknown = undefined,
  question: Call['isNotExecuted'] = undefined,
): Call {
  const since = clock.elapsed();
  const callbacks = { resolve: () => undefined, reject: () => undefined, signal: undefined, credential: undefined };
  const asked = { isNotExecuted: question, isInternal: false };
  const state = { sent: false, sentOn: undefined, resent: false, lendsBuffer: false, next: undefined };
  return {
    xid: ++xid,
    procedure,
    args,
    ...callbacks,
    ...asked,
    startedAt: since,
    expiresAt: since + deadlineMs,
    ...state,
  };
}

function send(call: Call, isCopied = false): void {
  if (isCopied) copies++;
  sent.push(call.procedure.name);
  call.resent = call.sent;
  call.sent = true;
  call.sentOn = resending.sentOn;
}

function start(procedure: Procedure<unknown, unknown>, question?: Call['isNotExecuted']): Call {
  const call = newCall(procedure, undefined, question);
  pending.add(call);
  send(call);
  return call;
}

/** Replaces the connection, and waits until the calls are resent or failed. */
async function reconnect(endpoints: string, { afterMs = 1_000, wasDown = false } = {}): Promise<void> {
  resending.lost();
  clock.advance(afterMs);
  sent = [];
  resending.connected(connectionFrom(endpoints), wasDown);
  await new Promise(setImmediate);
}

const reportVerifier = (value: bigint, file = 'a file'): void =>
  resending.answered(newCall(verifierProcedure, file), value);

describe('calls without a reply when the connection is lost', () => {
  beforeEach(() => resending.connected(connectionFrom('here:1 there'), false));

  test('are resent from the same port to the same address', async () => {
    start(readProcedure);
    start(mutatingProcedure);
    await reconnect('here:1 there');
    expect([sent, failed]).toEqual([['READING', 'MUTATING'], []]);
  });

  test.each(['here:2 there', 'here:1 elsewhere'])(
    'that mutate are not resent from another port or to another address (%s)',
    async (other) => {
      start(readProcedure);
      start(mutatingProcedure);
      await reconnect(other);
      expect(sent).toEqual(['READING']);
      expect(failed).toEqual([
        { name: 'MUTATING', outcomeCheck: { notBefore: clock.elapsed() + lateCallMs, deadline: deadlineMs } },
      ]);
    },
  );

  test('that mutate and were never sent are sent on any connection', async () => {
    resending.lost();
    pending.add(newCall(mutatingProcedure));
    resending.connected(connectionFrom('here:2 there'), false);
    expect([sent, failed]).toEqual([['MUTATING'], []]);
  });

  test('that mutate are not resent when the server may have dropped them from its replay cache', async () => {
    start(mutatingProcedure);
    await reconnect('here:1 there', { afterMs: 100_000 });
    expect([sent, failed.length]).toEqual([[], 1]);
  });

  test('that mutate are not resent to a server that restarted, and their outcome can be checked at once if it refused connections', async () => {
    reportVerifier(1n);
    start(mutatingProcedure);
    answer = () => Promise.resolve(2n);
    await reconnect('here:1 there', { wasDown: true });
    expect([sent, failed]).toEqual([[], [{ name: 'MUTATING', outcomeCheck: { notBefore: 0, deadline: deadlineMs } }]]);
  });

  test('that mutate are checked later if the verifier changed without a refused connection, since Linux changes it after errors, too', async () => {
    reportVerifier(1n);
    start(mutatingProcedure);
    answer = () => Promise.resolve(2n);
    await reconnect('here:1 there');
    expect([sent, failed.map(({ outcomeCheck }) => outcomeCheck?.notBefore)]).toEqual([
      [],
      [clock.elapsed() + lateCallMs],
    ]);
  });

  test('that mutate wait until the server has answered any call', async () => {
    start(mutatingProcedure);
    answerNull = noReply;
    await reconnect('here:2 there');
    expect([sent, failed]).toEqual([[], []]);
    answerNull = () => Promise.resolve();
    clock.advance(30_000);
    await new Promise(setImmediate);
    expect(failed.map(({ outcomeCheck }) => outcomeCheck?.notBefore)).toEqual([clock.elapsed() + lateCallMs]);
  });

  test('that mutate are not resent after a connection that reported no verifier', async () => {
    reportVerifier(1n);
    start(mutatingProcedure);
    await reconnect('here:1 there');
    expect(sent).toEqual(['MUTATING']);
    answer = () => Promise.resolve(2n);
    await reconnect('here:1 there');
    expect([sent, failed.length]).toEqual([[], 1]);
  });

  test('that mutate are resent to a server that has not restarted', async () => {
    reportVerifier(1n);
    start(mutatingProcedure);
    answer = () => Promise.resolve(1n);
    await reconnect('here:1 there');
    expect([sent, failed]).toEqual([['MUTATING'], []]);
  });

  test('that mutate are not resent after two connections, if the server restarted before the first of them', async () => {
    reportVerifier(1n);
    start(mutatingProcedure);
    const { promise: never } = Promise.withResolvers<bigint>();
    answer = () => never;
    await reconnect('here:1 there');
    // Another call has reported the new verifier, and the connection is lost before the reply to the query.
    reportVerifier(2n);
    answer = () => Promise.resolve(2n);
    await reconnect('here:1 there');
    expect([sent, failed.length]).toEqual([[], 1]);
  });

  test('are not resent twice when the connection is lost during a verifier query', async () => {
    reportVerifier(1n);
    start(mutatingProcedure);
    const first = Promise.withResolvers<bigint>();
    answer = () => first.promise;
    await reconnect('here:1 there');
    answer = () => Promise.resolve(1n);
    await reconnect('here:1 there');
    first.resolve(1n);
    await new Promise(setImmediate);
    expect(sent).toEqual(['MUTATING']);
  });
});

describe('a call that removes a name, if it is not known whether the server restarted', () => {
  beforeEach(() => {
    resending.connected(connectionFrom('here:1 there'), false);
    start(mutatingProcedure, () => isNotExecuted());
  });
  const decidedLater = () => [
    { name: 'MUTATING', outcomeCheck: { notBefore: clock.elapsed() + lateCallMs, deadline: deadlineMs } },
  ];

  test.each([false, true])(
    'is resent if the name refers to the same file (refused in between: %s)',
    async (wasDown) => {
      await reconnect('here:1 there', { wasDown });
      expect([sent, failed, lookups]).toEqual([['MUTATING'], [], 1]);
    },
  );

  test('is checked later if the name refers to something else: the first copy may be late', async () => {
    isNotExecuted = () => Promise.resolve(false);
    await reconnect('here:1 there');
    expect([sent, failed]).toEqual([[], decidedLater()]);
  });

  test('is checked later if the server refuses the lookup', async () => {
    isNotExecuted = () => Promise.reject(new Error('ACCES'));
    await reconnect('here:1 there');
    expect([sent, failed]).toEqual([[], decidedLater()]);
  });

  test('is resent if the caller did not say which file it expects', async () => {
    isNotExecuted = () => Promise.resolve(undefined);
    await reconnect('here:1 there');
    expect([sent, failed]).toEqual([['MUTATING'], []]);
  });

  test('is checked later if the caller did not say which file it expects and the server refused connections', async () => {
    isNotExecuted = () => Promise.resolve(undefined);
    await reconnect('here:1 there', { wasDown: true });
    expect([sent, failed]).toEqual([[], decidedLater()]);
  });

  test('is checked later if the server refused connections before a second loss, too', async () => {
    isNotExecuted = () => new Promise(() => undefined);
    await reconnect('here:1 there', { wasDown: true });
    isNotExecuted = () => Promise.resolve(undefined);
    await reconnect('here:1 there');
    expect([sent, failed]).toEqual([[], decidedLater()]);
  });

  test('is looked up again if the connection is lost meanwhile', async () => {
    const first = Promise.withResolvers<boolean>();
    isNotExecuted = () => first.promise;
    await reconnect('here:1 there');
    isNotExecuted = () => Promise.resolve(true);
    await reconnect('here:1 there');
    first.resolve(true);
    await new Promise(setImmediate);
    expect([sent, lookups]).toEqual([['MUTATING'], 2]);
  });

  test('is looked up if the verifier was known and the server does not report it again', async () => {
    reportVerifier(1n);
    await reconnect('here:1 there');
    expect([sent, lookups]).toEqual([['MUTATING'], 1]);
  });

  test('is repeated like other calls, also after a slow lookup', async () => {
    const answered = Promise.withResolvers<boolean>();
    isNotExecuted = () => answered.promise;
    await reconnect('here:1 there');
    clock.advance(6_000);
    resending.repeat(clock.elapsed());
    answered.resolve(true);
    await new Promise(setImmediate);
    clock.advance(5_000);
    resending.repeat(clock.elapsed());
    expect(sent).toEqual(['MUTATING', 'MUTATING']);
  });
});

describe('information from another connection of the client', () => {
  const recordVerifier = (value: bigint): void =>
    verifiers.record(verifiers.forAddress(address), value, serverVerifier, newCall(verifierProcedure, 'a file'));
  beforeEach(() => resending.connected(connectionFrom('here:1 there'), false));

  test('about the verifier and a file for the query allows a resend without a lookup', async () => {
    recordVerifier(1n);
    start(mutatingProcedure, () => isNotExecuted());
    answer = () => Promise.resolve(1n);
    await reconnect('here:1 there');
    expect([sent, lookups]).toEqual([['MUTATING'], 0]);
  });

  test('shows that the server restarted, but not when: the outcome is checked later', async () => {
    recordVerifier(1n);
    start(mutatingProcedure);
    answer = () => Promise.resolve(2n);
    await reconnect('here:1 there', { wasDown: true });
    expect([sent, failed.map(({ outcomeCheck }) => outcomeCheck?.notBefore)]).toEqual([
      [],
      [clock.elapsed() + lateCallMs],
    ]);
  });

  test('is not used if it is newer than the call, since the server may have restarted in between', async () => {
    start(mutatingProcedure, () => isNotExecuted());
    recordVerifier(2n);
    answer = () => Promise.resolve(2n);
    await reconnect('here:1 there');
    expect(lookups).toBe(1);
  });

  test('about another address is not used', async () => {
    verifiers.record(
      verifiers.forAddress({ host: 'elsewhere', port: 2049 }),
      1n,
      serverVerifier,
      newCall(verifierProcedure, 'a file'),
    );
    start(mutatingProcedure, () => isNotExecuted());
    answer = () => Promise.resolve(1n);
    await reconnect('here:1 there');
    expect(lookups).toBe(1);
  });

  test('about a deleted file makes the client query with the next file', async () => {
    const asked: unknown[] = [];
    for (const file of ['a', 'b', 'c', 'd', 'e']) reportVerifier(1n, file);
    start(mutatingProcedure, () => isNotExecuted());
    answer = (file) => {
      asked.push(file);
      return file === 'c' ? Promise.resolve(1n) : Promise.reject(new Error('STALE'));
    };
    await reconnect('here:1 there');
    expect([asked, lookups]).toEqual([['e', 'd', 'c'], 0]);
  });
});

describe('resent calls that mutate', () => {
  let call: Call;
  beforeEach(async () => {
    resending.connected(connectionFrom('here:1 there'), false);
    call = start(mutatingProcedure);
    start(readProcedure);
    await reconnect('here:1 there');
    sent = [];
  });

  const repeatedAfter = (ms: number): readonly string[] => {
    clock.advance(ms);
    resending.repeat(clock.elapsed());
    return sent.splice(0).filter((name) => name === 'MUTATING');
  };

  test('are repeated with increasing intervals while the server recognises them', () => {
    expect([repeatedAfter(4_000), repeatedAfter(1_000), repeatedAfter(9_000), repeatedAfter(1_000)]).toEqual([
      [],
      ['MUTATING'],
      [],
      ['MUTATING'],
    ]);
    expect([repeatedAfter(80_000), failed]).toEqual([['MUTATING'], []]);
  });

  test('are failed once the server may have dropped them from its cache, since it may have replied on the lost connection', () => {
    expect([repeatedAfter(90_000), repeatedAfter(30_000), failed.length]).toEqual([['MUTATING'], [], 1]);
  });

  test('are repeated with a copy of the data, since the caller may reuse its buffer after the reply to the first copy', () => {
    repeatedAfter(10_000);
    expect(copies).toBe(1);
  });

  test('are not repeated on the next connection before a verifier query, since the server may have restarted', async () => {
    const { promise: never } = Promise.withResolvers<never>();
    answerNull = () => never;
    await reconnect('here:1 there', { afterMs: 10 });
    sent = [];
    expect(repeatedAfter(20_000)).toEqual([]);
  });

  test('are not repeated when they have a reply', () => {
    pending.delete(call);
    expect(repeatedAfter(50_000)).toEqual([]);
  });

  test('are not repeated while the send queue is backed up', () => {
    isBacklogged = true;
    expect(repeatedAfter(50_000)).toEqual([]);
    isBacklogged = false;
    expect(repeatedAfter(30_000)).toEqual(['MUTATING']);
  });
});

describe('calls without a reply on a connection that stays open', () => {
  const repeatedAfter = (ms: number): readonly string[] => {
    clock.advance(ms);
    resending.repeat(clock.elapsed());
    return sent.splice(0);
  };
  const seconds = 1_000;

  beforeEach(() => resending.connected(connectionFrom('here:1 there'), false));

  test('are sent again after a minute, then at growing intervals, with a copy of the data', () => {
    start(readProcedure);
    const guarded = start(guardedProcedure);
    sent = [];
    expect([repeatedAfter(55 * seconds), repeatedAfter(5 * seconds)]).toEqual([[], ['READING', 'GUARDING']]);
    expect(copies).toBe(2);
    // From now on a guarded call counts as resent, and is repeated like other resent calls.
    pending.delete(guarded);
    expect([repeatedAfter(55 * seconds), repeatedAfter(5 * seconds)]).toEqual([[], ['READING']]);
    expect([repeatedAfter(115 * seconds), repeatedAfter(5 * seconds)]).toEqual([[], ['READING']]);
  });

  test('are not sent again if they mutate: a slow server without a replay cache would execute both', () => {
    start(mutatingProcedure);
    sent = [];
    expect([repeatedAfter(60 * seconds), repeatedAfter(600 * seconds), failed]).toEqual([[], [], []]);
  });

  test('are not sent again while the send queue is backed up, nor on a lost connection', () => {
    start(readProcedure);
    sent = [];
    isBacklogged = true;
    expect(repeatedAfter(60 * seconds)).toEqual([]);
    isBacklogged = false;
    resending.lost();
    expect(repeatedAfter(60 * seconds)).toEqual([]);
  });
});

test('a guarded call that is resent alone is repeated: the server may have dropped the copy', async () => {
  resending.connected(connectionFrom('here:1 there'), false);
  start(guardedProcedure);
  await reconnect('here:1 there');
  clock.advance(5_000);
  resending.repeat(clock.elapsed());
  expect(sent).toEqual(['GUARDING', 'GUARDING']);
});
