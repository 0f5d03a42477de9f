import { statfsSync, statSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { stoppedLoopDevice } from '#testing/stopped-loop-device.ts';
import { type Stowage, startStowage } from './stowage.ts';

const mib = 2 ** 20;

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'fuse', 'xfs', 'ext4'))(
  'next to a mounted loop device of another program whose FUSE server is stopped',
  { timeout: 300_000 },
  () => {
    test('image volumes are created, mounted, expanded, unmounted and deleted, also after kill -9', async () => {
      const scratch = createScratchFolder();
      onTestFinished(() => scratch[Symbol.dispose]());
      const inScratch = (name: string): string => join(scratch.folder, name);
      for (const name of ['state', 'xfs', 'ext4', 'to-xfs', 'to-ext4']) await mkdir(inScratch(name));
      let stowage: Stowage = await startStowage({ state: inScratch('state') });
      onTestFinished(() => stowage.stop());
      const api = async (method: string, path: string, body?: unknown): Promise<void> => {
        const answer = await stowage.api(method, path, body);
        expect(answer.status, `${method} ${path}: ${JSON.stringify(answer.body)}`).toBeLessThan(300);
      };
      const create = (store: string, name: string, size: number, access: string): Promise<void> =>
        api('POST', '/v1/volumes', { store, name, bytes: String(size * mib), access });
      const mount = (volume: string, target: string): Promise<void> =>
        api('POST', `/v1/volumes/${volume}/mount`, { target: inScratch(target) });
      const unmount = (volume: string, target: string): Promise<void> =>
        api('POST', `/v1/volumes/${volume}/unmount`, { target: inScratch(target) });
      const expand = (volume: string, size: number): Promise<void> =>
        api('POST', `/v1/volumes/${volume}/expand`, { bytes: String(size * mib) });
      const sizeMibOf = (name: string): number => {
        const { blocks, bsize } = statfsSync(inScratch(name));
        return (blocks * bsize) / mib;
      };
      for (const name of ['xfs', 'ext4'])
        await api('POST', '/v1/stores', { name, uri: `local://${inScratch(name)}?layout=image&filesystem=${name}` });
      await using other = await stoppedLoopDevice(scratch, { mounted: true });

      for (const kind of ['xfs', 'ext4']) await create(kind, 'v', 400, 'filesystem');
      await create('ext4', 'raw', 32, 'block');
      for (const kind of ['xfs', 'ext4']) await mount(`${kind}..v`, `to-${kind}`);
      await mount('ext4..raw', 'raw');
      await expand('xfs..v', 800);
      await expand('ext4..raw', 64);
      expect(sizeMibOf('to-xfs')).toBeGreaterThan(700);

      stowage.signal('SIGKILL');
      await stowage.ended();
      stowage = await startStowage({ state: inScratch('state') });
      expect(statSync(inScratch('raw')).isBlockDevice()).toBe(true);
      await api('GET', '/v1/doctor');
      await unmount('ext4..v', 'to-ext4');
      await expand('ext4..v', 800);
      await mount('ext4..v', 'to-ext4');
      expect(sizeMibOf('to-ext4')).toBeGreaterThan(700);

      for (const [volume, target] of Object.entries({ 'xfs..v': 'to-xfs', 'ext4..v': 'to-ext4', 'ext4..raw': 'raw' })) {
        await unmount(volume, target);
        await api('DELETE', `/v1/volumes/${volume}`);
      }
      expect(scratch.loops()).toEqual([other.node]);
    });
  },
);
