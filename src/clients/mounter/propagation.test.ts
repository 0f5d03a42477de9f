import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { SystemError } from '#base/linux/libc.ts';
import type { Mounter } from '#core/ports.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { mountTable, parseMountinfo, readMountTable } from './mountinfo.ts';
import { createRun } from './run-program.ts';

const clock = systemClock();
const run = createRun(clock);
const [writable, readOnly] = [{ readOnly: false }, { readOnly: true }];

/** Another mount namespace that receives copies of mounts here, as between a node and its containers. */
interface Elsewhere extends AsyncDisposable {
  path(path: string): string;
  options(path: string): readonly string[] | undefined;
}

async function startElsewhere(): Promise<Elsewhere> {
  const child = spawn('unshare', [...slaveMounts, 'sh', '-c', 'echo ready; exec sleep 1000'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  return {
    path: (path) => `/proc/${child.pid}/root${path}`,
    options: (path) =>
      mountTable(parseMountinfo(readFileSync(`/proc/${child.pid}/mountinfo`, 'utf8'))).at(path)?.options,
    [Symbol.asyncDispose]: async () => {
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    },
  };
}

/** As on a kernel before 5.12, or with a seccomp filter that does not know the newer calls. */
const older: MountCalls = { ...mountCalls, bindAs: () => false };

describe.skipIf(needs('root', 'mount')).each([
  ['this kernel', mountCalls],
  ['an older kernel', older],
])('a bind that propagates to another mount namespace, with %s', (_, calls) => {
  let ground: ScratchFolder;
  let mounter: Mounter;
  let elsewhere: Elsewhere;
  const at = (name: string): string => join(ground.folder, name);
  const mounterWith = (by: MountCalls): Mounter =>
    createLinuxMounter({ clock, run, calls: by, forbidden: () => [], storeRoots: () => [], mounts: at('mounts') });

  beforeEach(async () => {
    ground = createScratchFolder();
    // With a peer group of its own, so that mounts in it do not appear below it as well.
    execFileSync('mount', ['--bind', '--make-private', ground.folder, ground.folder]);
    execFileSync('mount', ['--make-shared', ground.folder]);
    for (const name of ['from', 'to', 'mounts']) mkdirSync(at(name));
    for (const name of ['file', 'place']) writeFileSync(at(name), '');
    mounter = mounterWith(calls);
    elsewhere = await startElsewhere();
  });
  afterEach(async () => {
    await elsewhere[Symbol.asyncDispose]();
    ground[Symbol.dispose]();
  });

  test('is read-only there too if requested, otherwise writable', async () => {
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    expect(() => writeFileSync(join(elsewhere.path(at('to')), 'x'), '')).toThrow('EROFS');
    expect(elsewhere.options(at('to'))).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev']));
    await mounter.unmount(at('to'), ground.scope);
    expect(elsewhere.options(at('to'))).toBeUndefined();
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    expect(elsewhere.options(at('to'))).toEqual(expect.arrayContaining(['rw', 'nosuid', 'nodev']));
    writeFileSync(join(elsewhere.path(at('to')), 'x'), '');
    expect(readdirSync(at('from'))).toEqual(['x']);
  });

  test('is read-only there too if it is a file', async () => {
    await mounter.bind(at('file'), at('place'), readOnly, ground.scope);
    expect(() => writeFileSync(elsewhere.path(at('place')), 'x')).toThrow('EROFS');
    writeFileSync(at('file'), 'x');
  });

  test('has the restrictions of its source there too', async () => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'noexec,noatime,size=1m', '--', 'stowage-test', at('from')]);
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    const all = expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec', 'noatime']);
    expect(elsewhere.options(at('to'))).toEqual(all);
    expect((await readMountTable()).at(at('to'))?.options).toEqual(all);
  });

  test('is never writable at its place, not even for a moment', async () => {
    const seen: (readonly string[])[] = [];
    const looking = (name: keyof MountCalls) => {
      const call = calls[name] as (...words: readonly unknown[]) => unknown;
      return (...words: readonly unknown[]): unknown => {
        const answer = call(...words);
        seen.push(elsewhere.options(at('to')) ?? []);
        return answer;
      };
    };
    const by = { bind: looking('bind'), bindAs: looking('bindAs'), remount: looking('remount') };
    await mounterWith({ ...calls, ...by } as MountCalls).bind(at('from'), at('to'), readOnly, ground.scope);
    expect(seen.at(-1)).toContain('ro');
    for (const options of seen) expect(options).not.toContain('rw');
  });

  test('is mounted again if an existing one lacks a flag, since a remount would not reach its copies', async () => {
    execFileSync('mount', ['--bind', at('from'), at('to')]);
    writeFileSync(join(elsewhere.path(at('to')), 'before'), '');
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    expect(() => writeFileSync(join(elsewhere.path(at('to')), 'x'), '')).toThrow('EROFS');
    expect(elsewhere.options(at('to'))?.slice(0, 3)).toEqual(['ro', 'nosuid', 'nodev']);
    expect(ground.mounts()).toEqual([ground.folder, at('to')]);
  });

  test('stays as it is if it lacks a flag and is in use, with an error', async () => {
    execFileSync('mount', ['--bind', at('from'), at('to')]);
    const inside = spawn('sleep', ['1000'], { cwd: at('to'), stdio: 'ignore' });
    await once(inside, 'spawn');
    try {
      await expect(mounter.bind(at('from'), at('to'), readOnly, ground.scope)).rejects.toMatchObject({
        code: 'in-use',
        message: `${at('to')} cannot be unmounted: it is in use by process ${inside.pid} (sleep)`,
      });
    } finally {
      inside.kill('SIGKILL');
      await once(inside, 'exit');
    }
    expect((await readMountTable()).at(at('to'))?.options).toContain('rw');
  });

  test('leaves nothing else behind', async () => {
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    await mounter.bind(at('file'), at('place'), readOnly, ground.scope);
    expect(ground.mounts()).toEqual([ground.folder, at('to'), at('place')]);
    for (const path of [at('mounts'), elsewhere.path(at('mounts'))]) expect(readdirSync(path)).toEqual([]);
  });
});

describe.skipIf(needs('root', 'mount'))('a bind on an older kernel', () => {
  let ground: ScratchFolder;
  const at = (name: string): string => join(ground.folder, name);
  const mounterWith = (calls: Partial<MountCalls>): Mounter =>
    createLinuxMounter({
      clock,
      run,
      calls: { ...older, ...calls },
      forbidden: () => [],
      storeRoots: () => [],
      mounts: at('mounts'),
    });
  const fails = () => {
    throw new SystemError('mount', 22);
  };

  beforeEach(() => {
    ground = createScratchFolder();
    for (const name of ['from', 'to', 'mounts']) mkdirSync(at(name));
  });
  afterEach(() => ground[Symbol.dispose]());

  test('is not made at all if it cannot be made read-only', async () => {
    const bound = mounterWith({ remount: fails }).bind(at('from'), at('to'), readOnly, ground.scope);
    await expect(bound).rejects.toMatchObject({
      message: `${at('from')} could not be mounted at ${at('to')} (mount: EINVAL)`,
    });
    expect(ground.mounts()).toEqual([]);
    expect(readdirSync(at('mounts'))).toEqual([]);
  });

  test('continues after a crash, and the next start removes leftovers', async () => {
    // Skips what the process would have done after the crash.
    const crashed = mounterWith({ remount: fails, detach: fails });
    await expect(crashed.bind(at('from'), at('to'), readOnly, ground.scope)).rejects.toThrow('EINVAL');
    const [left = expect.fail('nothing')] = ground.mounts();
    expect(await mounterWith({}).reap(at('mounts'), new Set(), ground.scope)).toContain(left);
    expect([ground.mounts(), existsSync(left)]).toEqual([[], false]);

    await expect(crashed.bind(at('from'), at('to'), readOnly, ground.scope)).rejects.toThrow('EINVAL');
    await mounterWith({}).bind(at('from'), at('to'), readOnly, ground.scope);
    expect(() => writeFileSync(join(at('to'), 'x'), '')).toThrow('EROFS');
    expect(ground.mounts()).toEqual([at('to')]);
    expect(readdirSync(at('mounts'))).toEqual([]);
  });

  test('is refused without a scratch folder, instead of a mount without its flags', async () => {
    const nowhere = createLinuxMounter({ clock, run, calls: older, forbidden: () => [], storeRoots: () => [] });
    await expect(nowhere.bind(at('from'), at('to'), readOnly, ground.scope)).rejects.toMatchObject({
      reason: 'mount-flags-refused',
    });
    expect(ground.mounts()).toEqual([]);
  });
});
