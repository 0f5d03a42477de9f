import { execFile } from 'node:child_process';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { call, startStowage } from './stowage.ts';

const run = promisify(execFile);

test.skipIf(lacks('root', 'mount'))(
  'only root can reach volumes in the state folder, regardless of the folder’s creator and mode',
  async () => {
    const state = await mkdtemp(join(tmpdir(), 'stowage-state-'));
    await chmod(state, 0o755);
    const plugins = join(state, 'plugins');
    const stowage = await startStowage({ state, options: ['--plugins', plugins] });
    onTestFinished(async () => {
      await plugin('Unmount');
      await stowage.stop();
      await rm(state, { recursive: true });
    });
    const plugin = (method: string): ReturnType<typeof call> =>
      call(join(plugins, 'stowage-local.sock'), 'POST', `/VolumeDriver.${method}`, { Name: 'a', ID: '1' }, {});
    await plugin('Create');
    const { body } = await plugin('Mount');
    const mountPoint = String(body['Mountpoint']);
    expect(mountPoint).toContain(state);
    const asUser = ['--reuid=4321', '--regid=4321', '--clear-groups', 'ls', mountPoint];
    await expect(run('setpriv', asUser)).rejects.toThrow('Permission denied');
    await run('ls', [mountPoint]);
  },
);
