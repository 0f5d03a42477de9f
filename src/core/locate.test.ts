import { expect, test } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { relayed } from './errors.ts';
import { createLocate } from './locate.ts';
import type { Mounter } from './ports.ts';

const locateBy = (mounter: Partial<Mounter>) => createLocate({ mounter: mounter as Mounter });
const failing = (code: 'unavailable' | 'invalid') => ({
  locate: async (): Promise<never> => {
    throw relayed('it failed', { code, reason: 'test', action: 'None.' });
  },
});

test('a path leads where the mounter says, and to itself if that is nowhere', async () => {
  const locate = locateBy({ locate: async (path) => (path === '/link/a' ? '/real/a' : undefined) });
  expect(await locate('/link/a', aCall())).toBe('/real/a');
  expect(await locate('/nowhere/a', aCall())).toBe('/nowhere/a');
  expect(await locateBy(failing('invalid'))('/a/../b', aCall())).toBe('/a/../b');
});

test('a path that does not answer is told to be so, and not to be free', async () => {
  await expect(locateBy(failing('unavailable'))('/a', aCall())).rejects.toMatchObject({ code: 'unavailable' });
});

test('whoever has stopped waiting is told nothing of the path', async () => {
  const signal = AbortSignal.abort(new Error('enough'));
  await expect(locateBy(failing('invalid'))('/a', { ...aCall(), signal })).rejects.toThrow('enough');
});

test('a path is itself where nobody may mount', async () => {
  const unable = { why: 'not root', action: 'Be root.' };
  expect(await locateBy({ ...failing('unavailable'), unable })('/a', aCall())).toBe('/a');
});
