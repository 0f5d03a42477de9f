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
import { createLinuxMounter } from './linux.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { mountTable, parseMountinfo, readMountTable } from './mountinfo.ts';
import { createRun } from './run.ts';

const clock = systemClock();
const run = createRun(clock);
const [writable, readOnly] = [{ readOnly: false }, { readOnly: true }];

/** Another mount namespace, which is sent copies of what is mounted here, as a node is by a container, and a container by a node. */
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

/** As a kernel before 5.12, or a filter of calls that does not know the newer ones. */
const older: MountCalls = { ...mountCalls, bindAs: () => false };

describe.skipIf(needs('root', 'mount')).each([
  ['this kernel', mountCalls],
  ['an older kernel', older],
])('what other mount namespaces get of a bind, with %s', (_, calls) => {
  let ground: ScratchFolder;
  let mounter: Mounter;
  let elsewhere: Elsewhere;
  const at = (name: string): string => join(ground.folder, name);
  const mounterWith = (by: MountCalls): Mounter =>
    createLinuxMounter({ clock, run, calls: by, forbidden: () => [], storeRoots: () => [], mounts: at('mounts') });

  beforeEach(async () => {
    ground = createScratchFolder();
    // A group of its own: what is mounted in it is not to be mounted below it as well.
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

  test('read-only is read-only there too, and what is writable can be written', async () => {
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

  test('a file that is bound read-only is, there too', async () => {
    await mounter.bind(at('file'), at('place'), readOnly, ground.scope);
    expect(() => writeFileSync(elsewhere.path(at('place')), 'x')).toThrow('EROFS');
    writeFileSync(at('file'), 'x');
  });

  test('what its source forbids is forbidden there too', async () => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'noexec,noatime,size=1m', '--', 'stowage-test', at('from')]);
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    const all = expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec', 'noatime']);
    expect(elsewhere.options(at('to'))).toEqual(all);
    expect((await readMountTable()).at(at('to'))?.options).toEqual(all);
  });

  test('it is never writable at its place, not even for a moment', async () => {
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

  test('one that is there and lacks what is asked for is mounted anew, since changing it would not reach its copies', async () => {
    execFileSync('mount', ['--bind', at('from'), at('to')]);
    writeFileSync(join(elsewhere.path(at('to')), 'before'), '');
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    expect(() => writeFileSync(join(elsewhere.path(at('to')), 'x'), '')).toThrow('EROFS');
    expect(elsewhere.options(at('to'))?.slice(0, 3)).toEqual(['ro', 'nosuid', 'nodev']);
    expect(ground.mounts()).toEqual([ground.folder, at('to')]);
  });

  test('one that is there, lacks it and is in use stays as it is, and that is told', async () => {
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

  test('nothing else is left anywhere', async () => {
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

  test('is not made at all when it cannot be made read-only', async () => {
    const bound = mounterWith({ remount: fails }).bind(at('from'), at('to'), readOnly, ground.scope);
    await expect(bound).rejects.toMatchObject({
      message: `${at('from')} could not be mounted at ${at('to')} (mount: EINVAL)`,
    });
    expect(ground.mounts()).toEqual([]);
    expect(readdirSync(at('mounts'))).toEqual([]);
  });

  test('begins where a crash left the last one, and what that left is let go at the next start', async () => {
    // As if the process had ended: what it would have done then is not done.
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

  test('is refused where there is no place to make it, never weakened', async () => {
    const nowhere = createLinuxMounter({ clock, run, calls: older, forbidden: () => [], storeRoots: () => [] });
    await expect(nowhere.bind(at('from'), at('to'), readOnly, ground.scope)).rejects.toMatchObject({
      reason: 'mount-flags-refused',
    });
    expect(ground.mounts()).toEqual([]);
  });
});
