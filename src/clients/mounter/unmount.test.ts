import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Mounter } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { mountFuse } from '../data-path/fuse-mount.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { createRunProgram, type RunProgram } from './run-program.ts';

const clock = systemClock();
const runProgram = createRunProgram(clock);

describe.skipIf(lacks('mount', 'fuse'))('one of our own FUSE file systems', () => {
  let scratch: ScratchFolder;
  let stage: string;
  let ranTools: string[];

  beforeEach(async () => {
    scratch = createScratchFolder();
    onTestFinished(() => scratch[Symbol.dispose]());
    ranTools = [];
    stage = join(scratch.folder, 'stage');
    mkdirSync(stage);
    const mounted = await mountFuse('stowage:test', stage, { readOnly: false });
    onTestFinished(() => mounted[Symbol.asyncDispose]());
    expect(scratch.mounts()).toEqual([stage]);
  });

  const createMounter = (calls: MountCalls = mountCalls): Mounter => {
    const run: RunProgram = (tool, ...rest) => {
      ranTools.push(tool);
      return runProgram(tool, ...rest);
    };
    return createLinuxMounter({ clock, run, calls, storeRoots: () => [], forbiddenFolders: () => [] });
  };

  test('is unmounted without a program', async () => {
    await createMounter().unmount(stage, scratch.scope);
    expect(scratch.mounts()).toEqual([]);
    expect(ranTools).toEqual([]);
  });

  test('is detected as mounted without access to it, since its server may not answer and this process must never wait for that', async () => {
    expect(await createMounter().isMounted(stage, scratch.scope)).toBe(true);
    expect(await createMounter().isMounted(join(scratch.folder, 'missing'), scratch.scope)).toBe(false);
    expect(await createMounter().isMounted(scratch.folder, scratch.scope)).toBe(false);
  });

  test('is detected through a link without access to it', async () => {
    symlinkSync(scratch.folder, join(scratch.folder, 'link'));
    expect(await createMounter().resolvePath(join(scratch.folder, 'link/stage'), scratch.scope)).toBe(stage);
  });

  test('is unmounted by a program if the system call fails, to get the error', async () => {
    await createMounter({ ...mountCalls, unmountOnThread: async () => false }).unmount(stage, scratch.scope);
    expect(scratch.mounts()).toEqual([]);
    expect(ranTools).toEqual(['umount']);
  });

  test("does not block callers if the kernel does not complete the unmount, and keeps the parent's descriptor open until it ends", async () => {
    const { promise: unmountResult, resolve: end } = Promise.withResolvers<boolean>();
    const { promise: begun, resolve: begin } = Promise.withResolvers<string>();
    const parentPaths: (() => string)[] = [];
    const calls: MountCalls = {
      ...mountCalls,
      unmountOnThread: (parent) => {
        parentPaths.push(parent.currentPath);
        begin(parent.path);
        return unmountResult;
      },
    };
    const caller = new AbortController();
    const unmounting = createMounter(calls).unmount(stage, { ...scratch.scope, signal: caller.signal });
    expect(await begun).toBe(scratch.folder);
    caller.abort(new Error('enough'));
    await expect(unmounting).rejects.toThrow('enough');
    expect(parentPaths[0]?.()).toBe(scratch.folder);
    end(true);
    // Afterwards the descriptor number is free, or reused.
    const currentParentPath = (): string | undefined => {
      try {
        return parentPaths[0]?.();
      } catch {
        return undefined;
      }
    };
    await expect.poll(currentParentPath).not.toBe(scratch.folder);
    expect(ranTools).toEqual([]);
  });

  test('is unmounted by a program if all threads for unmounts are occupied', async () => {
    const { promise: unmountResult, resolve: end } = Promise.withResolvers<boolean>();
    const mountPoints = [stage];
    for (const name of ['b', 'c', 'd', 'e']) {
      const mountPoint = join(scratch.folder, name);
      mkdirSync(mountPoint);
      const mounted = await mountFuse(`stowage:${name}`, mountPoint, { readOnly: false });
      onTestFinished(() => mounted[Symbol.asyncDispose]());
      mountPoints.push(mountPoint);
    }
    const threadUnmounts: string[] = [];
    const calls: MountCalls = {
      ...mountCalls,
      unmountOnThread: async (_parent, name) => {
        threadUnmounts.push(name);
        return await unmountResult;
      },
    };
    const mounter = createMounter(calls);
    const unmounting = mountPoints.map((mountPoint) => mounter.unmount(mountPoint, scratch.scope));
    await Promise.race(unmounting);
    expect(threadUnmounts).toHaveLength(4);
    expect(ranTools).toEqual(['umount']);
    end(false);
    await Promise.all(unmounting);
    expect(scratch.mounts()).toEqual([]);
  });
});
