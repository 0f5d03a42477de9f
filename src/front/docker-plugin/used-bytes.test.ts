import { expect, test, vi } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

test('how much a volume holds is told as far as it is known, and nobody waits for it', async () => {
  const fake = createFakeClock();
  const call = await it.start('stowage-local', { clock: fake });
  const get = async (): Promise<unknown> => {
    const { Volume } = (await call('VolumeDriver.Get', { Name: 'a' })) as { Volume: { Status: { used?: string } } };
    return Volume.Status.used;
  };
  await call('VolumeDriver.Create', { Name: 'a' });
  const first = it.local.close('usage');
  const unknown = get();
  await first.reached;
  fake.advance(10);
  expect(await unknown).toBeUndefined();
  first.open();
  await vi.waitFor(async () => expect(await get()).toBe('4KiB'));
  // Looked at again after a while: until that is done, it is what it was.
  const second = it.local.close('usage');
  fake.advance(30_001);
  const before = get();
  await second.reached;
  fake.advance(10);
  expect(await before).toBe('4KiB');
  // What takes long is not tried again with the next container that starts.
  fake.advance(500);
  await vi.waitFor(async () => expect(await get()).toBeUndefined());
  expect(second.waiting()).toBe(1);
  second.open();
  fake.advance(600_001);
  expect(await get()).toBe('4KiB');
});
