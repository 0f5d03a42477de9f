import { expect, test } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { relayed } from './errors.ts';
import { createMountPathResolver } from './mount-path.ts';
import type { Mounter } from './ports.ts';

const locateBy = (mounter: Partial<Mounter>) => createMountPathResolver({ mounter: mounter as Mounter });
const failing = (code: 'unavailable' | 'invalid') => ({
  resolvePath: async (): Promise<never> => {
    throw relayed('it failed', { code, reason: 'test', action: 'None.' });
  },
});

test('returns the path that the mounter resolves, and the path itself if it does not exist', async () => {
  const locate = locateBy({ resolvePath: async (path) => (path === '/link/a' ? '/real/a' : undefined) });
  expect(await locate('/link/a', aCall())).toBe('/real/a');
  expect(await locate('/nowhere/a', aCall())).toBe('/nowhere/a');
  expect(await locateBy(failing('invalid'))('/a/../b', aCall())).toBe('/a/../b');
});

test('fails if the path does not answer, instead of reporting it as free', async () => {
  await expect(locateBy(failing('unavailable'))('/a', aCall())).rejects.toMatchObject({ code: 'unavailable' });
});

test('an aborted call throws the abort reason', async () => {
  const signal = AbortSignal.abort(new Error('enough'));
  await expect(locateBy(failing('invalid'))('/a', { ...aCall(), signal })).rejects.toThrow('enough');
});

test('returns the path itself if this process cannot mount', async () => {
  const unable = { why: 'not root', action: 'Be root.' };
  expect(await locateBy({ ...failing('unavailable'), unable })('/a', aCall())).toBe('/a');
});
