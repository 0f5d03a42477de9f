import { expect, test } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

test('Get waits for a volume that is being deleted, and then reports that there is none', async () => {
  const call = await it.start();
  const { id } = await it.make('local', 'a');
  const gate = it.local.close('delete');
  const deleted = it.server.core.deletions.delete(id, undefined, aCall());
  await gate.reached;
  let answered = false;
  const got = call('VolumeDriver.Get', { Name: 'a' }).finally(() => {
    answered = true;
  });
  // Requests for other volumes are answered meanwhile.
  await it.make('local', 'b');
  expect(await call('VolumeDriver.Get', { Name: 'b' })).toMatchObject({ Volume: { Name: 'b' } });
  expect(answered).toBe(false);
  gate.open();
  await deleted;
  expect(await got).toMatchObject({ status: 404 });
});

test('Get does not report a missing volume while a deletion takes long: Docker would create one of its own', async () => {
  const call = await it.start();
  const { id } = await it.make('local', 'a');
  const gate = it.local.close('delete');
  const deleted = it.server.core.deletions.delete(id, undefined, aCall());
  await gate.reached;
  expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({
    Volume: { Name: 'a', Status: { health: 'the volume is being deleted' } },
  });
  gate.open();
  await deleted;
});
