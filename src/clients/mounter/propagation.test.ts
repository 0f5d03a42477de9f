import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { SystemError } from '#base/linux/libc.ts';
import type { Mounter } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { mountTable, parseMountinfo, readMountTable } from './mountinfo.ts';
import { createRunProgram } from './run-program.ts';

const clock = systemClock();
const run = createRunProgram(clock);
const [writable, readOnly] = [{ readOnly: false }, { readOnly: true }];

/** Another mount namespace that receives copies of mounts here, as between a node and its containers. */
interface OtherNamespace extends AsyncDisposable {
  path(path: string): string;
  options(path: string): readonly string[] | undefined;
}

async function startOtherNamespace(): Promise<OtherNamespace> {
  const child = spawn('unshare', [...slaveMounts, 'sh', '-c', 'echo ready; exec sleep 1000'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  return {
    path: (path) => `/proc/${child.pid}/root${path}`,
    options: (path) =>
      mountTable(parseMountinfo(readFileSync(`/proc/${child.pid}/mountinfo`, 'utf8'))).mountAt(path)?.options,
    [Symbol.asyncDispose]: async () => {
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    },
  };
}

/** As on a kernel before 5.12, or with a seccomp filter that does not know the newer calls. */
const olderCalls: MountCalls = { ...mountCalls, bindWithFlags: () => false };

describe.skipIf(lacks('root', 'mount')).each([
  ['this kernel', mountCalls],
  ['an older kernel', olderCalls],
])('a bind that propagates to another mount namespace, with %s', (_, calls) => {
  let scratch: ScratchFolder;
  let mounter: Mounter;
  let otherNamespace: OtherNamespace;
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const mounterWith = (requestedCalls: MountCalls): Mounter =>
    createLinuxMounter({
      clock,
      run,
      calls: requestedCalls,
      forbiddenFolders: () => [],
      storeRoots: () => [],
      mountsFolder: scratchPath('mounts'),
    });

  beforeEach(async () => {
    scratch = createScratchFolder();
    // With a peer group of its own, so that mounts in it do not appear below it as well.
    execFileSync('mount', ['--bind', '--make-private', scratch.folder, scratch.folder]);
    execFileSync('mount', ['--make-shared', scratch.folder]);
    for (const name of ['from', 'to', 'mounts']) mkdirSync(scratchPath(name));
    for (const name of ['file', 'place']) writeFileSync(scratchPath(name), '');
    mounter = mounterWith(calls);
    otherNamespace = await startOtherNamespace();
  });
  afterEach(async () => {
    await otherNamespace[Symbol.asyncDispose]();
    scratch[Symbol.dispose]();
  });

  test('is read-only there too if requested, otherwise writable', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    expect(() => writeFileSync(join(otherNamespace.path(scratchPath('to')), 'x'), '')).toThrow('EROFS');
    expect(otherNamespace.options(scratchPath('to'))).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev']));
    await mounter.unmount(scratchPath('to'), scratch.scope);
    expect(otherNamespace.options(scratchPath('to'))).toBeUndefined();
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    expect(otherNamespace.options(scratchPath('to'))).toEqual(expect.arrayContaining(['rw', 'nosuid', 'nodev']));
    writeFileSync(join(otherNamespace.path(scratchPath('to')), 'x'), '');
    expect(readdirSync(scratchPath('from'))).toEqual(['x']);
  });

  test('is read-only there too if it is a file', async () => {
    await mounter.bind(scratchPath('file'), scratchPath('place'), readOnly, scratch.scope);
    expect(() => writeFileSync(otherNamespace.path(scratchPath('place')), 'x')).toThrow('EROFS');
    writeFileSync(scratchPath('file'), 'x');
  });

  test('has the restrictions of its source there too', async () => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'noexec,noatime,size=1m', '--', 'stowage-test', scratchPath('from')]);
    await mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    const expectedFlags = expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec', 'noatime']);
    expect(otherNamespace.options(scratchPath('to'))).toEqual(expectedFlags);
    expect((await readMountTable()).mountAt(scratchPath('to'))?.options).toEqual(expectedFlags);
  });

  test('is never writable at its target, not even for a moment', async () => {
    const seenOptions: (readonly string[])[] = [];
    const recordOptionsAfter = (name: keyof MountCalls) => {
      const call = calls[name] as (...words: readonly unknown[]) => unknown;
      return (...words: readonly unknown[]): unknown => {
        const answer = call(...words);
        seenOptions.push(otherNamespace.options(scratchPath('to')) ?? []);
        return answer;
      };
    };
    const recordingCalls = {
      bind: recordOptionsAfter('bind'),
      bindWithFlags: recordOptionsAfter('bindWithFlags'),
      remount: recordOptionsAfter('remount'),
    };
    await mounterWith({ ...calls, ...recordingCalls } as MountCalls).bind(
      scratchPath('from'),
      scratchPath('to'),
      readOnly,
      scratch.scope,
    );
    expect(seenOptions.at(-1)).toContain('ro');
    for (const options of seenOptions) expect(options).not.toContain('rw');
  });

  test('is mounted again if an existing one lacks a flag, since a remount would not reach its copies', async () => {
    execFileSync('mount', ['--bind', scratchPath('from'), scratchPath('to')]);
    writeFileSync(join(otherNamespace.path(scratchPath('to')), 'before'), '');
    await mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    expect(() => writeFileSync(join(otherNamespace.path(scratchPath('to')), 'x'), '')).toThrow('EROFS');
    expect(otherNamespace.options(scratchPath('to'))?.slice(0, 3)).toEqual(['ro', 'nosuid', 'nodev']);
    expect(scratch.mounts()).toEqual([scratch.folder, scratchPath('to')]);
  });

  test('stays unchanged, with an error, if it lacks a flag and is in use', async () => {
    execFileSync('mount', ['--bind', scratchPath('from'), scratchPath('to')]);
    const processInside = spawn('sleep', ['1000'], { cwd: scratchPath('to'), stdio: 'ignore' });
    await once(processInside, 'spawn');
    try {
      await expect(mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope)).rejects.toMatchObject(
        {
          code: 'in-use',
          message: `${scratchPath('to')} cannot be unmounted: it is in use by process ${processInside.pid} (sleep)`,
        },
      );
    } finally {
      processInside.kill('SIGKILL');
      await once(processInside, 'exit');
    }
    expect((await readMountTable()).mountAt(scratchPath('to'))?.options).toContain('rw');
  });

  test('leaves nothing else behind', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    await mounter.bind(scratchPath('file'), scratchPath('place'), readOnly, scratch.scope);
    expect(scratch.mounts()).toEqual([scratch.folder, scratchPath('to'), scratchPath('place')]);
    for (const path of [scratchPath('mounts'), otherNamespace.path(scratchPath('mounts'))])
      expect(readdirSync(path)).toEqual([]);
  });
});

describe.skipIf(lacks('root', 'mount'))('a bind on an older kernel', () => {
  let scratch: ScratchFolder;
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const mounterWith = (calls: Partial<MountCalls>): Mounter =>
    createLinuxMounter({
      clock,
      run,
      calls: { ...olderCalls, ...calls },
      forbiddenFolders: () => [],
      storeRoots: () => [],
      mountsFolder: scratchPath('mounts'),
    });
  const failCall = () => {
    throw new SystemError('mount', 22);
  };

  beforeEach(() => {
    scratch = createScratchFolder();
    for (const name of ['from', 'to', 'mounts']) mkdirSync(scratchPath(name));
  });
  afterEach(() => scratch[Symbol.dispose]());

  test('is not made at all if it cannot be made read-only', async () => {
    const bound = mounterWith({ remount: failCall }).bind(
      scratchPath('from'),
      scratchPath('to'),
      readOnly,
      scratch.scope,
    );
    await expect(bound).rejects.toMatchObject({
      message: `${scratchPath('from')} could not be mounted at ${scratchPath('to')} (mount: EINVAL)`,
    });
    expect(scratch.mounts()).toEqual([]);
    expect(readdirSync(scratchPath('mounts'))).toEqual([]);
  });

  test('continues after a crash, and the next start removes leftovers', async () => {
    // Skips what the process would have done after the crash.
    const crashed = mounterWith({ remount: failCall, detach: failCall });
    await expect(crashed.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope)).rejects.toThrow(
      'EINVAL',
    );
    const [leftover = expect.fail('nothing')] = scratch.mounts();
    expect(await mounterWith({}).reap(scratchPath('mounts'), new Set(), scratch.scope)).toContain(leftover);
    expect([scratch.mounts(), existsSync(leftover)]).toEqual([[], false]);

    await expect(crashed.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope)).rejects.toThrow(
      'EINVAL',
    );
    await mounterWith({}).bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    expect(() => writeFileSync(join(scratchPath('to'), 'x'), '')).toThrow('EROFS');
    expect(scratch.mounts()).toEqual([scratchPath('to')]);
    expect(readdirSync(scratchPath('mounts'))).toEqual([]);
  });

  test('is refused without a scratch folder, instead of a mount without its flags', async () => {
    const mounterWithoutScratch = createLinuxMounter({
      clock,
      run,
      calls: olderCalls,
      forbiddenFolders: () => [],
      storeRoots: () => [],
    });
    await expect(
      mounterWithoutScratch.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope),
    ).rejects.toMatchObject({
      reason: 'mount-flags-refused',
    });
    expect(scratch.mounts()).toEqual([]);
  });
});
