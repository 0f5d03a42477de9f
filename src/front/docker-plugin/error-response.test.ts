import { expect, test, vi } from 'vitest';
import { servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

test('an internal error is answered without details, and logged', async () => {
  const call = await it.start();
  vi.spyOn(it.server.core.pluginNames, 'list').mockRejectedValue(new TypeError("can't read secrets of undefined"));
  expect(await call('VolumeDriver.List', {})).toEqual({
    status: 500,
    Err: "Stowage failed to do this. Look into the server's log, and report it.",
  });
  expect(it.log.lines.filter((line) => line.startsWith('error plugin call failed'))).toHaveLength(1);
});
