import { expect, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import type { Loop } from '../mounter/attached-loops.ts';
import type { LoopDevices } from '../mounter/loop-devices.ts';
import { mountTable } from '../mounter/mountinfo.ts';
import { detachIdle, detachUnused, type LoopParts } from './loop-parts.ts';

const scope: Scope = { signal: new AbortController().signal, log: silentLog() };
const idleLoop: Loop = {
  name: 'loop3',
  node: '/dev/loop3',
  device: '7:3',
  file: '/srv/v.img',
  deleted: false,
  bytes: 4096,
  readOnly: false,
  autoclear: false,
  sequence: '9',
  stacked: false,
};
const stackedLoop: Loop = { ...idleLoop, stacked: true };

// Not every machine has a device mapper to stack a device on a real one.
test('a device with another one stacked on it is in use, and stays attached', async () => {
  const detached: string[] = [];
  const loopDevices = { detach: async ({ name }: Loop) => detached.push(name) > 0 } as Partial<LoopDevices>;
  const parts = {
    loopDevices,
    listLoops: async () => [stackedLoop],
    readTable: async () => mountTable([]),
    findLoops: async (_image: string, loops: readonly Loop[]) => loops,
  } as unknown as LoopParts;
  await expect(detachUnused(parts, stackedLoop.file, scope)).rejects.toMatchObject({
    code: 'in-use',
    message: '/srv/v.img cannot be detached: another block device is stacked on /dev/loop3',
    action: 'Remove that device first. To list it: ls /sys/block/loop3/holders',
  });
  await detachIdle(parts, stackedLoop.file, scope);
  expect(detached).toEqual([]);
});

// Real files cannot be renamed at exactly that moment.
test('detaches a device although its file is renamed between the read and the detach', async () => {
  const listings = [idleLoop, { ...idleLoop, file: '/srv/moved.img' }];
  const detachedFiles: string[] = [];
  const detach = async ({ file }: Loop): Promise<boolean> => detachedFiles.push(file) > 1;
  const parts = {
    loopDevices: { detach },
    listLoops: async () => [listings.shift()],
    readTable: async () => mountTable([]),
    findLoops: async (_image: string, loops: readonly Loop[]) => loops,
  } as unknown as LoopParts;
  await detachUnused(parts, idleLoop.file, scope);
  expect(detachedFiles).toEqual(['/srv/v.img', '/srv/moved.img']);
});
