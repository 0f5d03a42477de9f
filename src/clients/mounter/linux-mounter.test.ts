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
import { needs } from '#testbed/needs.ts';
import { attachImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { mountFuse } from '../data-path/fuse-mount.ts';
import { createDirectoryClient } from '../kinds/directory.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { readMountTable } from './mountinfo.ts';
import { createOrphanWait } from './orphaned-programs.ts';
import { createRun, type Run } from './run-program.ts';

// The search for process names gives up after two seconds, which is too short on a busy machine.
const clock: Clock = {
  ...systemClock(),
  deadline: (ms, parent) => systemClock().deadline(Math.max(ms, 30_000), parent),
};
const owner = '/state/of/this/test';
const real = createRun(clock, undefined, owner);
const mounterWith = (run: Run, ground: ScratchFolder, calls = mountCalls): Mounter =>
  createLinuxMounter({
    clock,
    run,
    calls,
    settled: createOrphanWait(clock, owner),
    forbidden: () => [],
    storeRoots: () => [join(ground.folder, 'store')],
  });

describe.skipIf(needs('root', 'mount'))('the Linux mounter', () => {
  let ground: ScratchFolder;
  let mounter: Mounter;
  const children: ChildProcess[] = [];
  const at = (name: string): string => join(ground.folder, name);
  const writable = { readOnly: false };
  const readOnly = { readOnly: true };

  beforeEach(() => {
    ground = createScratchFolder();
    mounter = mounterWith(real, ground);
    for (const name of ['from', 'other', 'to', 'store']) mkdirSync(at(name));
    writeFileSync(join(at('from'), 'file'), 'from');
  });
  afterEach(async () => {
    for (const child of children.splice(0)) {
      child.kill('SIGKILL');
      if (child.exitCode === null && child.signalCode === null) await new Promise((done) => child.once('exit', done));
    }
    ground[Symbol.dispose]();
  });

  async function start(program: string, args: readonly string[], cwd: string): Promise<ChildProcess> {
    const child = spawn(program, args, { cwd, stdio: 'ignore' });
    children.push(child);
    await new Promise((done) => child.once('spawn', done));
    return child;
  }

  test.skipIf(needs('fuse'))('reports a mount whose server is gone', async () => {
    const mounted = await mountFuse('nobody', at('other'), writable);
    await mounted[Symbol.asyncDispose]();
    const told = {
      code: 'unavailable',
      reason: 'mount-unanswered',
      message: expect.stringContaining('no process serves'),
    };
    await expect(mounter.bind(at('other'), at('to'), writable, ground.scope)).rejects.toMatchObject(told);
    await mounter.detach(at('other'), ground.scope, { abort: true });
    expect(ground.mounts()).toEqual([]);
  });

  test('binds a folder; repeating changes nothing', async () => {
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    expect(readFileSync(join(at('to'), 'file'), 'utf8')).toBe('from');
    writeFileSync(join(at('to'), 'new'), '');
    expect(existsSync(join(at('from'), 'new'))).toBe(true);
    expect(ground.mounts()).toEqual([at('to')]);
    const point = (await mounter.list(ground.scope)).find((one) => one.at === at('to'));
    expect(point).toMatchObject({ readOnly: false, root: at('from') });
  });

  test('ten concurrent binds of the same thing to one place make one mount', async () => {
    await Promise.all(Array.from({ length: 10 }, () => mounter.bind(at('from'), at('to'), writable, ground.scope)));
    expect(ground.mounts()).toEqual([at('to')]);
  });

  test('binds a file onto a file, and refuses other combinations', async () => {
    writeFileSync(at('a'), 'a');
    writeFileSync(at('b'), '');
    await mounter.bind(at('a'), at('b'), writable, ground.scope);
    await mounter.bind(at('a'), at('b'), writable, ground.scope);
    expect(readFileSync(at('b'), 'utf8')).toBe('a');
    await expect(mounter.bind(at('a'), at('to'), writable, ground.scope)).rejects.toMatchObject({
      reason: 'target-kind',
    });
    await expect(mounter.bind(at('from'), at('missing'), writable, ground.scope)).rejects.toMatchObject({
      code: 'not-found',
    });
    await expect(mounter.bind(at('missing'), at('to'), writable, ground.scope)).rejects.toMatchObject({
      code: 'not-found',
    });
  });

  test('binds a folder with nosuid and nodev, but not a device, which must work', async () => {
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    writeFileSync(at('node'), '');
    await mounter.bind('/dev/null', at('node'), writable, ground.scope);
    const table = await readMountTable();
    expect(table.at(at('to'))?.options).toEqual(expect.arrayContaining(['rw', 'nosuid', 'nodev']));
    expect(table.at(at('node'))?.options).not.toContain('nodev');
    expect(readFileSync(at('node'), 'utf8')).toBe('');
    // As if another program had made the bind.
    await real('mount', ['-o', 'bind', '--', at('from'), at('other')], ground.scope);
    await mounter.bind(at('from'), at('other'), writable, ground.scope);
    expect((await readMountTable()).at(at('other'))?.options).toEqual(
      expect.arrayContaining(['rw', 'nosuid', 'nodev']),
    );
    expect(ground.mounts()).toEqual([at('to'), at('node'), at('other')]);
  });

  test('accepts paths with spaces, newlines and dashes', async () => {
    const odd = at('-o loop\n\\040é');
    mkdirSync(odd);
    await mounter.bind(at('from'), odd, readOnly, ground.scope);
    await mounter.bind(at('from'), odd, readOnly, ground.scope);
    expect(readFileSync(join(odd, 'file'), 'utf8')).toBe('from');
    await mounter.unmount(odd, ground.scope);
    expect(ground.mounts()).toEqual([]);
    await expect(mounter.bind('-o', at('to'), writable, ground.scope)).rejects.toMatchObject({ code: 'invalid' });
  });

  test('a read-only bind is read-only, and keeps the restrictions of the source', async () => {
    await real(
      'mount',
      ['-t', 'tmpfs', '-o', 'nosuid,nodev,noexec,size=1m', '--', 'stowage-test', at('other')],
      ground.scope,
    );
    await mounter.bind(at('other'), at('to'), readOnly, ground.scope);
    await mounter.bind(at('other'), at('to'), readOnly, ground.scope);
    expect(() => writeFileSync(join(at('to'), 'x'), '')).toThrow('EROFS');
    writeFileSync(join(at('other'), 'x'), '');
    const entry = (await readMountTable()).at(at('to'));
    expect(entry?.options).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec']));
  });

  test('makes a writable bind read-only on request; the other way round is a conflict', async () => {
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    expect(() => writeFileSync(join(at('to'), 'x'), '')).toThrow('EROFS');
    await expect(mounter.bind(at('from'), at('to'), writable, ground.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'mounted-read-only',
    });
  });

  test('does not mount at all if it cannot make the mount read-only, also after a cancelled call', async () => {
    const cancel = new AbortController();
    const stubborn: MountCalls = {
      ...mountCalls,
      bindAs: (from, to) => {
        cancel.abort(new Error('enough'));
        mountCalls.bind(from, to);
        throw new SystemError('mount_setattr', 22);
      },
    };
    const scope = { ...ground.scope, signal: cancel.signal };
    const message = `${at('from')} could not be mounted at ${at('to')} (mount_setattr: EINVAL)`;
    const failed = mounterWith(real, ground, stubborn).bind(at('from'), at('to'), readOnly, scope);
    await expect(failed).rejects.toMatchObject({ message });
    expect(ground.mounts()).toEqual([]);
  });

  test('refuses to bind a read-only source for writing', async () => {
    await mounter.bind(at('from'), at('to'), readOnly, ground.scope);
    await expect(mounter.bind(at('to'), at('other'), writable, ground.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'source-read-only',
    });
    await mounter.bind(at('to'), at('other'), readOnly, ground.scope);
  });

  test('something else at the place is a conflict that names it', async () => {
    await real('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', at('to')], ground.scope);
    await expect(mounter.bind(at('from'), at('to'), writable, ground.scope)).rejects.toMatchObject({
      code: 'conflict',
      message: `something else is mounted at ${at('to')}: stowage-test (tmpfs)`,
      action: `Unmount it (umount ${at('to')}), or give another path.`,
    });
    expect(await mounter.inspectTarget(at('to'), 'filesystem', ground.scope)).toEqual({
      target: at('to'),
      existed: true,
    });
  });

  test('unmounting twice, or what was never mounted, succeeds', async () => {
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    await mounter.unmount(at('to'), ground.scope);
    await mounter.unmount(at('to'), ground.scope);
    await mounter.unmount(at('missing'), ground.scope);
    await mounter.unmount(join(at('missing'), 'below'), ground.scope);
    expect(ground.mounts()).toEqual([]);
  });

  test('does not unmount a busy mount, and names its users', async () => {
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    const inside = await start('sleep', ['100'], at('to'));
    const reader = await start('tail', ['-f', join(at('to'), 'file')], '/');
    await expect.poll(() => existsSync(`/proc/${reader.pid}/fd/3`)).toBe(true);
    const pids = [inside, reader].map((child) => child.pid ?? 0).sort((a, b) => a - b);
    const names = pids.map((pid) => `${pid} (${pid === inside.pid ? 'sleep' : 'tail'})`);
    await expect(mounter.unmount(at('to'), ground.scope)).rejects.toMatchObject({
      code: 'in-use',
      reason: 'mount-busy',
      message: `${at('to')} cannot be unmounted: it is in use by processes ${names.join(', ')}`,
      action: 'End these processes, or make them leave the mount, then retry.',
    });
    expect(ground.mounts()).toEqual([at('to')]);
  });

  test('does not unmount a mount with another one inside, and names that', async () => {
    mkdirSync(join(at('from'), 'sub'));
    await mounter.bind(at('from'), at('to'), writable, ground.scope);
    await mounter.bind(at('other'), join(at('to'), 'sub'), writable, ground.scope);
    await expect(mounter.unmount(at('to'), ground.scope)).rejects.toMatchObject({
      message: `${at('to')} cannot be unmounted: it is in use by mounts at ${at('to')}/sub`,
      action: 'Unmount or detach these first, then retry.',
    });
  });

  test.each([
    ['list', (own: Scope) => mounter.list(own)],
    [
      'mountsOf',
      async (own: Scope) => {
        const client = createDirectoryClient({ mounter, settled: createOrphanWait(clock, owner) });
        const source = { kind: 'directory', node: 'here' as NodeName, path: at('from') } as const;
        return await client.mountsOf(source, targetAt(at('stage')), own);
      },
    ],
  ])(
    '%s waits for programs that a killed Stowage left running, and not for those of another one',
    async (_name, look) => {
      // Each time with another mounter, since one waits only once.
      await mounterWith(real, ground).bind(at('from'), at('to'), writable, ground.scope);
      const sleeping = (by: string, owner: string) =>
        spawn('sleep', ['100'], {
          stdio: 'ignore',
          env: { PATH: '/usr/bin:/bin', STOWAGE_RUN_BY: by, STOWAGE_RUN_FOR: owner },
        });
      const orphan = sleeping('1', owner);
      const another = sleeping(`${process.pid}`, owner);
      const others = sleeping('1', '/elsewhere');
      children.push(orphan, another, others);
      await Promise.all([orphan, another, others].map((child) => new Promise((done) => child.once('spawn', done))));
      const waits: string[] = [];
      const log = {
        ...ground.scope.log,
        info: (_: string, facts?: Facts) => void waits.push(JSON.stringify(facts?.['pids'])),
      };
      const listing = look({ ...ground.scope, log });
      await expect.poll(() => waits.length).toBeGreaterThan(1);
      expect(waits[1]).toContain(`"${orphan.pid}"`);
      expect(waits[1]).not.toContain(`"${another.pid}"`);
      expect(waits[1]).not.toContain(`"${others.pid}"`);
      orphan.kill('SIGKILL');
      expect((await listing).length).toBeGreaterThan(0);
      expect([another.exitCode, others.exitCode]).toEqual([null, null]);
    },
  );

  test('reaps staged mounts and folders of unknown volumes, and nothing else', async () => {
    const [known, stale, busy, empty] = [newVolumeId(), newVolumeId(), newVolumeId(), newVolumeId()] as const;
    const folder = at('mounts');
    for (const name of [known, stale, busy, empty, 'foreign']) mkdirSync(join(folder, name), { recursive: true });
    for (const name of [known, stale, busy, 'foreign']) {
      await mounter.bind(at('from'), join(folder, name), writable, ground.scope);
    }
    await start('sleep', ['100'], join(folder, busy));
    const freed = await mounter.reap(folder, new Set<VolumeId>([known]), ground.scope);
    expect(freed.toSorted()).toEqual([join(folder, stale), join(folder, empty)].sort());
    expect(ground.mounts().toSorted()).toEqual([known, busy, 'foreign'].map((name) => join(folder, name)).sort());
    expect(existsSync(join(folder, stale))).toBe(false);
    expect(existsSync(join(at('from'), 'file'))).toBe(true);
    expect(await mounter.reap(folder, new Set([known]), ground.scope)).toEqual([]);
    expect(await mounter.reap(at('missing'), new Set(), ground.scope)).toEqual([]);
  });

  test.skipIf(needs('loop'))('reaps idle loop devices on images of the stores, and no others', async () => {
    for (const name of ['volume', '.stowage/deleting', '.stowage/other'])
      mkdirSync(at(`store/${name}`), { recursive: true });
    const idle = [
      attachImage(ground.image('store/idle.img', 1)),
      attachImage(ground.image('store/.stowage/deleting/x.img', 1)),
    ];
    const bound = attachImage(ground.image('store/bound.img', 1));
    // Inside a volume, not an image of a volume, not in the store's own folders, or not in a store: these belong to other programs.
    const foreign: string[] = [];
    for (const name of ['store/volume/disk.img', 'store/disk.raw', 'store/.stowage/other/x.img', 'foreign.img']) {
      foreign.push(attachImage(ground.image(name, 1)));
    }
    writeFileSync(at('node'), '');
    await mounter.bind(bound, at('node'), writable, ground.scope);
    expect((await mounter.reap(at('mounts'), new Set(), ground.scope)).toSorted()).toEqual(idle.toSorted());
    expect(await mounter.reap(at('mounts'), new Set(), ground.scope)).toEqual([]);
    expect(ground.loops().toSorted()).toEqual([bound, ...foreign].sort());
  });
});
