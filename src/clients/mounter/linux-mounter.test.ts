import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { SystemError } from '#base/linux/libc.ts';
import type { Facts, Scope } from '#base/log.ts';
import type { NodeName, VolumeId } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { Mounter } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { attachImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { mountFuse } from '../data-path/fuse-mount.ts';
import { createDirectoryClient } from '../kinds/directory.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { readMountTable } from './mountinfo.ts';
import { createOrphanWait } from './orphaned-programs.ts';
import { createRunProgram, type RunProgram } from './run-program.ts';

// The search for process names gives up after two seconds, which is too short on a busy machine.
const clock: Clock = {
  ...systemClock(),
  deadline: (ms, parent) => systemClock().deadline(Math.max(ms, 30_000), parent),
};
const owner = '/state/of/this/test';
const runProgram = createRunProgram(clock, undefined, owner);
const mounterWith = (run: RunProgram, ground: ScratchFolder, calls = mountCalls): Mounter =>
  createLinuxMounter({
    clock,
    run,
    calls,
    waitForOrphans: createOrphanWait(clock, owner),
    forbiddenFolders: () => [],
    storeRoots: () => [join(ground.folder, 'store')],
  });

describe.skipIf(lacks('root', 'mount'))('the Linux mounter', () => {
  let scratch: ScratchFolder;
  let mounter: Mounter;
  const children: ChildProcess[] = [];
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const writable = { readOnly: false };
  const readOnly = { readOnly: true };

  beforeEach(() => {
    scratch = createScratchFolder();
    mounter = mounterWith(runProgram, scratch);
    for (const name of ['from', 'other', 'to', 'store']) mkdirSync(scratchPath(name));
    writeFileSync(join(scratchPath('from'), 'file'), 'from');
  });
  afterEach(async () => {
    for (const child of children.splice(0)) {
      child.kill('SIGKILL');
      if (child.exitCode === null && child.signalCode === null) await new Promise((done) => child.once('exit', done));
    }
    scratch[Symbol.dispose]();
  });

  async function start(program: string, args: readonly string[], cwd: string): Promise<ChildProcess> {
    const child = spawn(program, args, { cwd, stdio: 'ignore' });
    children.push(child);
    await new Promise((done) => child.once('spawn', done));
    return child;
  }

  test.skipIf(lacks('fuse'))('reports a mount whose server is gone', async () => {
    const mounted = await mountFuse('nobody', scratchPath('other'), writable);
    await mounted[Symbol.asyncDispose]();
    const expectedError = {
      code: 'unavailable',
      reason: 'mount-unanswered',
      message: expect.stringContaining('no process serves'),
    };
    await expect(mounter.bind(scratchPath('other'), scratchPath('to'), writable, scratch.scope)).rejects.toMatchObject(
      expectedError,
    );
    await mounter.detach(scratchPath('other'), scratch.scope, { abort: true });
    expect(scratch.mounts()).toEqual([]);
  });

  test('binds a folder; repeating changes nothing', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    expect(readFileSync(join(scratchPath('to'), 'file'), 'utf8')).toBe('from');
    writeFileSync(join(scratchPath('to'), 'new'), '');
    expect(existsSync(join(scratchPath('from'), 'new'))).toBe(true);
    expect(scratch.mounts()).toEqual([scratchPath('to')]);
    const point = (await mounter.list(scratch.scope)).find((one) => one.at === scratchPath('to'));
    expect(point).toMatchObject({ readOnly: false, root: scratchPath('from') });
  });

  test('makes one mount for ten concurrent binds of one folder to one path', async () => {
    await Promise.all(
      Array.from({ length: 10 }, () => mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope)),
    );
    expect(scratch.mounts()).toEqual([scratchPath('to')]);
  });

  test('binds a file onto a file, and refuses other combinations', async () => {
    writeFileSync(scratchPath('a'), 'a');
    writeFileSync(scratchPath('b'), '');
    await mounter.bind(scratchPath('a'), scratchPath('b'), writable, scratch.scope);
    await mounter.bind(scratchPath('a'), scratchPath('b'), writable, scratch.scope);
    expect(readFileSync(scratchPath('b'), 'utf8')).toBe('a');
    await expect(mounter.bind(scratchPath('a'), scratchPath('to'), writable, scratch.scope)).rejects.toMatchObject({
      reason: 'target-kind',
    });
    await expect(
      mounter.bind(scratchPath('from'), scratchPath('missing'), writable, scratch.scope),
    ).rejects.toMatchObject({
      code: 'not-found',
    });
    await expect(
      mounter.bind(scratchPath('missing'), scratchPath('to'), writable, scratch.scope),
    ).rejects.toMatchObject({
      code: 'not-found',
    });
  });

  test('binds a folder with nosuid and nodev, but not a device, which must work', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    writeFileSync(scratchPath('node'), '');
    await mounter.bind('/dev/null', scratchPath('node'), writable, scratch.scope);
    const table = await readMountTable();
    expect(table.mountAt(scratchPath('to'))?.options).toEqual(expect.arrayContaining(['rw', 'nosuid', 'nodev']));
    expect(table.mountAt(scratchPath('node'))?.options).not.toContain('nodev');
    expect(readFileSync(scratchPath('node'), 'utf8')).toBe('');
    // As if another program had made the bind.
    await runProgram('mount', ['-o', 'bind', '--', scratchPath('from'), scratchPath('other')], scratch.scope);
    await mounter.bind(scratchPath('from'), scratchPath('other'), writable, scratch.scope);
    expect((await readMountTable()).mountAt(scratchPath('other'))?.options).toEqual(
      expect.arrayContaining(['rw', 'nosuid', 'nodev']),
    );
    expect(scratch.mounts()).toEqual([scratchPath('to'), scratchPath('node'), scratchPath('other')]);
  });

  test('accepts paths with spaces, newlines and dashes', async () => {
    const oddPath = scratchPath('-o loop\n\\040é');
    mkdirSync(oddPath);
    await mounter.bind(scratchPath('from'), oddPath, readOnly, scratch.scope);
    await mounter.bind(scratchPath('from'), oddPath, readOnly, scratch.scope);
    expect(readFileSync(join(oddPath, 'file'), 'utf8')).toBe('from');
    await mounter.unmount(oddPath, scratch.scope);
    expect(scratch.mounts()).toEqual([]);
    await expect(mounter.bind('-o', scratchPath('to'), writable, scratch.scope)).rejects.toMatchObject({
      code: 'invalid',
    });
  });

  test('makes a read-only bind read-only, and keeps the restrictions of the source', async () => {
    await runProgram(
      'mount',
      ['-t', 'tmpfs', '-o', 'nosuid,nodev,noexec,size=1m', '--', 'stowage-test', scratchPath('other')],
      scratch.scope,
    );
    await mounter.bind(scratchPath('other'), scratchPath('to'), readOnly, scratch.scope);
    await mounter.bind(scratchPath('other'), scratchPath('to'), readOnly, scratch.scope);
    expect(() => writeFileSync(join(scratchPath('to'), 'x'), '')).toThrow('EROFS');
    writeFileSync(join(scratchPath('other'), 'x'), '');
    const entry = (await readMountTable()).mountAt(scratchPath('to'));
    expect(entry?.options).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec']));
  });

  test('makes a writable bind read-only on request, and refuses to make a read-only bind writable', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    await mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    expect(() => writeFileSync(join(scratchPath('to'), 'x'), '')).toThrow('EROFS');
    await expect(mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'mounted-read-only',
    });
  });

  test('does not mount at all if it cannot make the mount read-only, also after a cancelled call', async () => {
    const cancel = new AbortController();
    const failingCalls: MountCalls = {
      ...mountCalls,
      bindWithFlags: (from, to) => {
        cancel.abort(new Error('enough'));
        mountCalls.bind(from, to);
        throw new SystemError('mount_setattr', 22);
      },
    };
    const scope = { ...scratch.scope, signal: cancel.signal };
    const message = `${scratchPath('from')} could not be mounted at ${scratchPath('to')} (mount_setattr: EINVAL)`;
    const failed = mounterWith(runProgram, scratch, failingCalls).bind(
      scratchPath('from'),
      scratchPath('to'),
      readOnly,
      scope,
    );
    await expect(failed).rejects.toMatchObject({ message });
    expect(scratch.mounts()).toEqual([]);
  });

  test('refuses to bind a read-only source for writing', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), readOnly, scratch.scope);
    await expect(mounter.bind(scratchPath('to'), scratchPath('other'), writable, scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'source-read-only',
    });
    await mounter.bind(scratchPath('to'), scratchPath('other'), readOnly, scratch.scope);
  });

  test('refuses to bind over another mount, and names that mount', async () => {
    await runProgram('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', scratchPath('to')], scratch.scope);
    await expect(mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
      message: `something else is mounted at ${scratchPath('to')}: stowage-test (tmpfs)`,
      action: `Unmount it (umount ${scratchPath('to')}), or give another path.`,
    });
    expect(await mounter.inspectTarget(scratchPath('to'), 'filesystem', scratch.scope)).toEqual({
      target: scratchPath('to'),
      existed: true,
    });
  });

  test('unmounts twice, or a path that was never mounted, without an error', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    await mounter.unmount(scratchPath('to'), scratch.scope);
    await mounter.unmount(scratchPath('to'), scratch.scope);
    await mounter.unmount(scratchPath('missing'), scratch.scope);
    await mounter.unmount(join(scratchPath('missing'), 'below'), scratch.scope);
    expect(scratch.mounts()).toEqual([]);
  });

  test('does not unmount a busy mount, and names its users', async () => {
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    const processInside = await start('sleep', ['100'], scratchPath('to'));
    const reader = await start('tail', ['-f', join(scratchPath('to'), 'file')], '/');
    await expect.poll(() => existsSync(`/proc/${reader.pid}/fd/3`)).toBe(true);
    const pids = [processInside, reader].map((child) => child.pid ?? 0).sort((a, b) => a - b);
    const names = pids.map((pid) => `${pid} (${pid === processInside.pid ? 'sleep' : 'tail'})`);
    await expect(mounter.unmount(scratchPath('to'), scratch.scope)).rejects.toMatchObject({
      code: 'in-use',
      reason: 'mount-busy',
      message: `${scratchPath('to')} cannot be unmounted: it is in use by processes ${names.join(', ')}`,
      action: 'End these processes, or make them leave the mount, then retry.',
    });
    expect(scratch.mounts()).toEqual([scratchPath('to')]);
  });

  test('does not unmount a mount with another one inside, and names the inner one', async () => {
    mkdirSync(join(scratchPath('from'), 'sub'));
    await mounter.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
    await mounter.bind(scratchPath('other'), join(scratchPath('to'), 'sub'), writable, scratch.scope);
    await expect(mounter.unmount(scratchPath('to'), scratch.scope)).rejects.toMatchObject({
      message: `${scratchPath('to')} cannot be unmounted: it is in use by mounts at ${scratchPath('to')}/sub`,
      action: 'Unmount or detach these first, then retry.',
    });
  });

  test.each([
    ['list', (own: Scope) => mounter.list(own)],
    [
      'mountsOf',
      async (own: Scope) => {
        const client = createDirectoryClient({ mounter, waitForOrphans: createOrphanWait(clock, owner) });
        const source = { kind: 'directory', node: 'here' as NodeName, path: scratchPath('from') } as const;
        return await client.mountsOf(source, targetAt(scratchPath('stage')), own);
      },
    ],
  ])(
    '%s waits for programs that a killed Stowage left running, and not for those of another one',
    async (_name, call) => {
      // Use another mounter for each row, since a mounter waits only once.
      await mounterWith(runProgram, scratch).bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope);
      const spawnSleep = (by: string, owner: string) =>
        spawn('sleep', ['100'], {
          stdio: 'ignore',
          env: { PATH: '/usr/bin:/bin', STOWAGE_RUN_BY: by, STOWAGE_RUN_FOR: owner },
        });
      const orphan = spawnSleep('1', owner);
      const ownProgram = spawnSleep(`${process.pid}`, owner);
      const foreignOrphan = spawnSleep('1', '/elsewhere');
      children.push(orphan, ownProgram, foreignOrphan);
      await Promise.all(
        [orphan, ownProgram, foreignOrphan].map((child) => new Promise((done) => child.once('spawn', done))),
      );
      const loggedPids: string[] = [];
      const log = {
        ...scratch.scope.log,
        info: (_: string, facts?: Facts) => void loggedPids.push(JSON.stringify(facts?.['pids'])),
      };
      const listing = call({ ...scratch.scope, log });
      await expect.poll(() => loggedPids.length).toBeGreaterThan(1);
      expect(loggedPids[1]).toContain(`"${orphan.pid}"`);
      expect(loggedPids[1]).not.toContain(`"${ownProgram.pid}"`);
      expect(loggedPids[1]).not.toContain(`"${foreignOrphan.pid}"`);
      orphan.kill('SIGKILL');
      expect((await listing).length).toBeGreaterThan(0);
      expect([ownProgram.exitCode, foreignOrphan.exitCode]).toEqual([null, null]);
    },
  );

  test('reaps staged mounts and folders of unknown volumes, and nothing else', async () => {
    const [known, stale, busy, empty] = [newVolumeId(), newVolumeId(), newVolumeId(), newVolumeId()] as const;
    const folder = scratchPath('mounts');
    for (const name of [known, stale, busy, empty, 'foreign']) mkdirSync(join(folder, name), { recursive: true });
    for (const name of [known, stale, busy, 'foreign']) {
      await mounter.bind(scratchPath('from'), join(folder, name), writable, scratch.scope);
    }
    await start('sleep', ['100'], join(folder, busy));
    const freed = await mounter.reap(folder, new Set<VolumeId>([known]), scratch.scope);
    expect(freed.toSorted()).toEqual([join(folder, stale), join(folder, empty)].sort());
    expect(scratch.mounts().toSorted()).toEqual([known, busy, 'foreign'].map((name) => join(folder, name)).sort());
    expect(existsSync(join(folder, stale))).toBe(false);
    expect(existsSync(join(scratchPath('from'), 'file'))).toBe(true);
    expect(await mounter.reap(folder, new Set([known]), scratch.scope)).toEqual([]);
    expect(await mounter.reap(scratchPath('missing'), new Set(), scratch.scope)).toEqual([]);
  });

  test.skipIf(lacks('loop'))('reaps idle loop devices on images of the stores, and no others', async () => {
    for (const name of ['volume', '.stowage/deleting', '.stowage/other'])
      mkdirSync(scratchPath(`store/${name}`), { recursive: true });
    const idle = [
      attachImage(scratch.image('store/idle.img', 1)),
      attachImage(scratch.image('store/.stowage/deleting/x.img', 1)),
    ];
    const bound = attachImage(scratch.image('store/bound.img', 1));
    // Inside a volume, not an image of a volume, not in the store's own folders, or not in a store: these belong to other programs.
    const foreign: string[] = [];
    for (const name of ['store/volume/disk.img', 'store/disk.raw', 'store/.stowage/other/x.img', 'foreign.img']) {
      foreign.push(attachImage(scratch.image(name, 1)));
    }
    writeFileSync(scratchPath('node'), '');
    await mounter.bind(bound, scratchPath('node'), writable, scratch.scope);
    expect((await mounter.reap(scratchPath('mounts'), new Set(), scratch.scope)).toSorted()).toEqual(idle.toSorted());
    expect(await mounter.reap(scratchPath('mounts'), new Set(), scratch.scope)).toEqual([]);
    expect(scratch.loops().toSorted()).toEqual([bound, ...foreign].sort());
  });
});
