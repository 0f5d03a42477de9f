import { PassThrough } from 'node:stream';
import { describe, expect, test } from 'vitest';
import type { OperationJson } from '#front/rest/schemas.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { barLine, createWaiting } from './progress.ts';
import { operation } from './scripted-server.ts';

const at = (progress: OperationJson['progress'], ms = 3000): string =>
  barLine(operation('running', { progress }) as OperationJson, ms);

test('a known total shows a percentage of at most 100', () => {
  expect(at({ done: 512 << 20, total: 1 << 30, unit: 'bytes' })).toBe(
    'volume.delete local/demo  [############------------]   50%  512MiB/1GiB  3s',
  );
  expect(at({ done: 12, total: 10, unit: 'files' })).toBe(
    'volume.delete local/demo  [########################]  100%  12/10 files  3s',
  );
});

test('an unknown total shows a mark that moves back and forth', () => {
  const spots = [0, 200, 4600, 4800, 9000].map(
    (ms) => at({ done: 5, total: null, unit: 'files' }, ms).indexOf('#') - 27,
  );
  expect(spots).toEqual([0, 1, 23, 22, 1]);
  expect(at(null)).toMatch(/^volume\.delete local\/demo {2}\[-+#-+\] {2}3s$/);
});

describe('waiting for an answer', () => {
  /** The terminal's content at each of the times, and after the answer. */
  function shownAfter(times: readonly number[], how: { quiet?: boolean; isTTY?: boolean; TERM?: string } = {}) {
    const { quiet = false, isTTY = true, TERM = 'xterm' } = how;
    const stderr = Object.assign(new PassThrough({ encoding: 'utf8' }), { isTTY });
    const clock = createFakeClock();
    const read = (): string => stderr.read() ?? '';
    const waiting = createWaiting({ stderr, env: { TERM } }, quiet, clock)();
    const shown = times.map((ms) => {
      clock.advance(ms);
      return read();
    });
    waiting[Symbol.dispose]();
    const after = read();
    clock.advance(60_000);
    return { shown, after, late: read() };
  }

  test('shows a message once after a while, and erases it after the answer', () => {
    expect(shownAfter([1499, 1, 5000])).toEqual({
      shown: ['', '\r\x1b[2Kwaiting for the server…', ''],
      after: '\r\x1b[2K',
      late: '',
    });
  });

  test('a quick answer shows no message', () => {
    expect(shownAfter([1499])).toEqual({ shown: [''], after: '', late: '' });
  });

  test.each([{ isTTY: false }, { quiet: true }, { TERM: 'dumb' }])('shows no message with %j', (how) => {
    expect(shownAfter([5000], how)).toEqual({ shown: [''], after: '', late: '' });
  });
});
