import { expect, test, vi } from 'vitest';
import { servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

test('an internal error is answered without details, and logged', async () => {
  const call = await it.start();
  vi.spyOn(it.server.core.pluginNames, 'list').mockRejectedValue(new TypeError("can't read secrets of undefined"));
  expect(await call('VolumeDriver.List', {})).toEqual({
    status: 500,
    Err: 'internal error of Stowage. Find the cause in the log of the server, and report it.',
  });
  expect(it.log.lines.filter((line) => line.startsWith('error plugin call failed'))).toHaveLength(1);
});
