import { describe, expect, test } from 'vitest';
import { emptyResult, servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

describe('options', () => {
  test.each([
    [{ size: 'much' }, "'much' is not a size. Write a size such as"],
    [{ size: '' }, "'' is not a size."],
    [{ enforce: 'perhaps' }, "'perhaps' is not a valid value for enforce."],
    [{ enforce: 'true', size: '1M' }, "store 'local' cannot enforce the size of a volume."],
    [{ store: 'nowhere' }, "there is no store 'nowhere'."],
    [{ colour: 'red' }, "unknown option 'colour'. Supported options: -o store=NAME, -o size=SIZE,"],
    [{ __proto__x: '' }, 'unknown option '],
    [{ constructor: '' }, "unknown option 'constructor'."],
    [{ 'label.': 'x' }, "'' cannot be a label."],
    [{ 'label.stowage.dev/x': 'x' }, 'is reserved'],
  ])('%j is refused', async (Opts, said) => {
    const call = await it.start();
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts })).toMatchObject({
      Err: expect.stringContaining(said),
    });
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [] });
  });

  test.each(['device', 'o', 'type', 'addr', 'password', 'share', 'mountOptions', 'squash', 'layout', 'onDelete'])(
    '-o %s is refused as an option of the administrator, without quoting its value',
    async (key) => {
      const call = await it.start();
      const { status, Err } = await call('VolumeDriver.Create', { Name: 'a', Opts: { [key]: 'hunter2' } });
      expect(status).toBe(403);
      expect(Err).toBe(
        `'${key}' can be set only on the store, by the administrator. Select a store instead: -o store=NAME. Supported options: -o store=NAME, -o size=SIZE, -o enforce=true, -o label.KEY=VALUE`,
      );
      expect(it.log.lines.join()).not.toContain('hunter2');
    },
  );

  test.each([
    ['', true],
    ['1', true],
    ['true', true],
    ['false', false],
    ['0', false],
  ])('-o enforce=%s', async (enforce, is) => {
    const call = await it.start('stowage');
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts: { enforce, size: '1M' } })).toEqual(emptyResult);
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({ Volume: { Status: { enforce: is } } });
  });
});
