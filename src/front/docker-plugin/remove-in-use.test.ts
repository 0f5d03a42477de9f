import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { servedPlugins } from '#testing/plugin.ts';

describe.skipIf(lacks('root', 'mount'))('a volume that is also mounted at a path', () => {
  const it = servedPlugins();

  test('is not removed, and the error names the mount path to the administrator but not to an engine', async () => {
    const call = await it.start();
    const { id } = await it.make('local', 'a');
    const folder = mkdtempSync(join(tmpdir(), 'stowage-secret-'));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    const { core } = it.server;
    await core.mounts.publish(id, join(folder, 'm'), { readOnly: false, user: undefined }, aCall());
    onTestFinished(async () => void (await core.mounts.unpublish(join(folder, 'm'), id, aCall())));
    const { status, Err } = await call('VolumeDriver.Remove', { Name: 'a' });
    expect(status).toBe(409);
    expect(Err).toContain("volume 'local/a' cannot be deleted: it is used by a mount on ");
    expect(Err).not.toContain(folder);
    const refused = await it.server.admin.delete('/v1/volumes/a');
    expect(refused.body).toMatchObject({ status: 409, reason: 'volume-in-use' });
    expect(refused.body.detail).toContain(join(folder, 'm'));
  });
});
