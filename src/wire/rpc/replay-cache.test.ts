import { beforeEach, expect, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { XdrWriter } from '../xdr/writer.ts';
import { createReplayCache, type ReplayCache, type ReplyWriter } from './replay-cache.ts';

let clock: FakeClock;
let cache: ReplayCache;
let runs: number;

beforeEach(() => {
  clock = createFakeClock();
  cache = createReplayCache(clock);
  runs = 0;
});

const execute = (): ReplyWriter => {
  const answer = ++runs;
  return (writer) => {
    writer.u32(answer);
    return undefined;
  };
};

async function replyTo(key: string): Promise<number | undefined> {
  const writeReply = await cache.run(key, execute);
  if (writeReply === undefined) return undefined;
  const writer = new XdrWriter(64);
  writeReply(writer);
  return writer.written.readUInt32BE(0);
}

test('a resent call gets the cached reply for two minutes', async () => {
  expect(await replyTo('call')).toBe(1);
  clock.advance(119_000);
  expect(await replyTo('call')).toBe(1);
});

test.each([240_000, 1_000_000])('the same xid is a new call after %d ms', async (ms) => {
  await replyTo('call');
  clock.advance(ms);
  expect(await replyTo('call')).toBe(2);
});

test('forgets old answers even if the server is never idle', async () => {
  await replyTo('call');
  for (let i = 0; i < 30; i++) {
    clock.advance(10_000);
    await replyTo(`other ${i}`);
  }
  const before = runs;
  expect(await replyTo('call')).toBe(before + 1);
});

test('a call that is still being executed is not executed again, however long it takes', async () => {
  const done = Promise.withResolvers<ReplyWriter>();
  const first = cache.run('call', () => done.promise);
  for (let i = 0; i < 10; i++) {
    clock.advance(1_000_000);
    expect(await replyTo('call')).toBeUndefined();
  }
  done.resolve(execute());
  await first;
  expect(await replyTo('call')).toBe(1);
});
