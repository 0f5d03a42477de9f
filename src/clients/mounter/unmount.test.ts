import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Mounter } from '#core/ports.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { mountFuse } from '../data-path/fuse-mount.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { createRun, type Run } from './run-program.ts';

const clock = systemClock();
const real = createRun(clock);

describe.skipIf(needs('mount', 'fuse'))('one of our own FUSE file systems', () => {
  let ground: ScratchFolder;
  let at: string;
  let ran: string[];

  beforeEach(async () => {
    ground = createScratchFolder();
    onTestFinished(() => ground[Symbol.dispose]());
    ran = [];
    at = join(ground.folder, 'stage');
    mkdirSync(at);
    const mounted = await mountFuse('stowage:test', at, { readOnly: false });
    onTestFinished(() => mounted[Symbol.asyncDispose]());
    expect(ground.mounts()).toEqual([at]);
  });

  const mounter = (calls: MountCalls = mountCalls): Mounter => {
    const run: Run = (tool, ...rest) => {
      ran.push(tool);
      return real(tool, ...rest);
    };
    return createLinuxMounter({ clock, run, calls, storeRoots: () => [], forbidden: () => [] });
  };

  test('is unmounted without a program', async () => {
    await mounter().unmount(at, ground.scope);
    expect(ground.mounts()).toEqual([]);
    expect(ran).toEqual([]);
  });

  test('is detected as mounted without access to it, since its server may not answer and this process must never wait for that', async () => {
    expect(await mounter().isMounted(at, ground.scope)).toBe(true);
    expect(await mounter().isMounted(join(ground.folder, 'missing'), ground.scope)).toBe(false);
    expect(await mounter().isMounted(ground.folder, ground.scope)).toBe(false);
  });

  test('is detected through a link without access to it', async () => {
    symlinkSync(ground.folder, join(ground.folder, 'link'));
    expect(await mounter().resolvePath(join(ground.folder, 'link/stage'), ground.scope)).toBe(at);
  });

  test('is unmounted by a program if the system call fails, to get the error', async () => {
    await mounter({ ...mountCalls, unmountAside: async () => false }).unmount(at, ground.scope);
    expect(ground.mounts()).toEqual([]);
    expect(ran).toEqual(['umount']);
  });

  test("does not block callers if the kernel does not complete the unmount, and keeps the parent's descriptor open until it ends", async () => {
    const { promise: over, resolve: end } = Promise.withResolvers<boolean>();
    const { promise: begun, resolve: begin } = Promise.withResolvers<string>();
    const where: (() => string)[] = [];
    const calls: MountCalls = {
      ...mountCalls,
      unmountAside: (parent) => {
        where.push(parent.where);
        begin(parent.path);
        return over;
      },
    };
    const enough = new AbortController();
    const unmounting = mounter(calls).unmount(at, { ...ground.scope, signal: enough.signal });
    expect(await begun).toBe(ground.folder);
    enough.abort(new Error('enough'));
    await expect(unmounting).rejects.toThrow('enough');
    expect(where[0]?.()).toBe(ground.folder);
    end(true);
    // Afterwards the descriptor number is free, or reused.
    const now = (): string | undefined => {
      try {
        return where[0]?.();
      } catch {
        return undefined;
      }
    };
    await expect.poll(now).not.toBe(ground.folder);
    expect(ran).toEqual([]);
  });

  test('uses a few threads at most, and a program if those are occupied', async () => {
    const { promise: over, resolve: end } = Promise.withResolvers<boolean>();
    const all = [at];
    for (const name of ['b', 'c', 'd', 'e']) {
      const place = join(ground.folder, name);
      mkdirSync(place);
      const mounted = await mountFuse(`stowage:${name}`, place, { readOnly: false });
      onTestFinished(() => mounted[Symbol.asyncDispose]());
      all.push(place);
    }
    const waiting: string[] = [];
    const calls: MountCalls = {
      ...mountCalls,
      unmountAside: async (_parent, name) => {
        waiting.push(name);
        return await over;
      },
    };
    const one = mounter(calls);
    const unmounting = all.map((place) => one.unmount(place, ground.scope));
    await Promise.race(unmounting);
    expect(waiting).toHaveLength(4);
    expect(ran).toEqual(['umount']);
    end(false);
    await Promise.all(unmounting);
    expect(ground.mounts()).toEqual([]);
  });
});
