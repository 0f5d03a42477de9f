import { expect, test, vi } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

test('Get returns the usage of a volume if it is known, and does not wait for it', async () => {
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
  // Measured again after a while; until that ends, the old result is returned.
  const second = it.local.close('usage');
  fake.advance(30_001);
  const before = get();
  await second.reached;
  fake.advance(10);
  expect(await before).toBe('4KiB');
  // A slow measurement is not repeated at the next container start.
  fake.advance(500);
  await vi.waitFor(async () => expect(await get()).toBeUndefined());
  expect(second.waiting()).toBe(1);
  second.open();
  fake.advance(600_001);
  expect(await get()).toBe('4KiB');
});
