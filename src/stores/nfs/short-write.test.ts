import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { StowageError } from '#core/errors.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { portsOf } from '#testing/ganesha-folders.ts';
import { fillUpToOneBlock, manyLabels, removeFiller } from '#testing/nearly-full-disk.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { FileStore } from '../file-store/verbs.ts';

/** A folder on a disk of its own, which is unmounted at the end of the test. */
function smallDisk(): { readonly disk: string; readonly state: string } {
  const scratch = createScratchFolder();
  onTestFinished(() => scratch[Symbol.dispose]());
  const disk = join(scratch.folder, 'disk');
  mkdirSync(disk);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'stowage-test', disk]);
  return { disk, state: join(scratch.folder, 'state') };
}

const servers = {
  'our own server': async () => {
    const { disk: directory, state } = smallDisk();
    const clock = systemClock();
    const server = await createNfsServer({ clock, directory, state, port: 0, path: '/', squash: 'none' });
    onTestFinished(() => server.close());
    const options = { port: `${server.port}`, mountport: `${server.port}` };
    return { disk: directory, uri: `nfs://${server.host}/`, options };
  },
  ganesha: async () => {
    const { disk } = smallDisk();
    const server = await startGanesha({ exports: [{ path: disk, tag: 'export' }], signal: scope.signal });
    onTestFinished(() => server[Symbol.asyncDispose]());
    return { disk, uri: `nfs://${server.host}${disk}`, options: portsOf(server) };
  },
} as const;

const reasonOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'done',
    (cause: StowageError) => cause.reason,
  );

describe.each(['our own server', 'ganesha'] as const)('with one free block left on %s', (kind) => {
  const isSkipped = lacks('root', 'mount', ...(kind === 'ganesha' ? (['ganesha'] as const) : []));
  test.skipIf(isSkipped)('no failed change truncates a record, and changes succeed once there is space', async () => {
    const { disk, ...server } = await servers[kind]();
    const store: FileStore = await openNfs(server);
    onTestFinished(() => store.close());
    const volume = await store.create(volumeSpec('a', { labels: manyLabels }), scope);
    fillUpToOneBlock(disk);
    const before = readFileSync(join(disk, 'a.meta'), 'utf8');
    expect(await reasonOf(store.label(volume, { ...manyLabels, more: 'x' }, scope))).toBe('store-full');
    expect(await reasonOf(store.trash.put(volume, { deletedAt: 1234, retention: 1000 }, scope))).toBe('store-full');
    expect(await reasonOf(store.create(volumeSpec('c', { labels: manyLabels }), scope))).toBe('store-full');
    expect(readFileSync(join(disk, 'a.meta'), 'utf8')).toBe(before);
    expect(await store.get(volume.name, scope)).toEqual({ volume, condition: 'ok' });
    expect(await store.names(scope)).toEqual(['a']);
    expect(await store.trash.list(scope)).toEqual([]);
    removeFiller(disk);
    await store.trash.put(volume, { deletedAt: 1234, retention: 1000 }, scope);
    expect(await store.trash.list(scope)).toMatchObject([{ volume: { id: volume.id }, deletedAt: 1234 }]);
    expect((await store.trash.restore(volume.id, volume.name, scope)).labels).toEqual(manyLabels);
  });
});
