import { expect, test } from 'vitest';
import { aCall } from '#testing/calls.ts';
import { servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

test('an engine is not told of a volume that is just being deleted, and then hears that it is gone', async () => {
  const call = await it.start();
  const { id } = await it.make('local', 'a');
  const gate = it.local.close('delete');
  const deleted = it.server.core.deletions.delete(id, undefined, aCall());
  await gate.reached;
  let answered = false;
  const got = call('VolumeDriver.Get', { Name: 'a' }).finally(() => {
    answered = true;
  });
  // Others are answered meanwhile.
  await it.make('local', 'b');
  expect(await call('VolumeDriver.Get', { Name: 'b' })).toMatchObject({ Volume: { Name: 'b' } });
  expect(answered).toBe(false);
  gate.open();
  await deleted;
  expect(await got).toMatchObject({ status: 404 });
});

test('nor does it hear that there is none while that takes long: Docker would make one of its own', async () => {
  const call = await it.start();
  const { id } = await it.make('local', 'a');
  const gate = it.local.close('delete');
  const deleted = it.server.core.deletions.delete(id, undefined, aCall());
  await gate.reached;
  expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({
    Volume: { Name: 'a', Status: { health: 'it is being deleted' } },
  });
  gate.open();
  await deleted;
});
