import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { type Loop, listAttachedLoops } from './attached-loops.ts';
import { configureOldLoop, freeLoop, loopInfo } from './loop-calls.ts';
import { createLoopDevices } from './loop-devices.ts';

const clock = systemClock();
const devices = createLoopDevices(clock);
let scratch: ScratchFolder;
beforeEach(() => {
  scratch = createScratchFolder();
});
afterEach(() => scratch[Symbol.dispose]());

const requireLoopOn = async (image: string): Promise<Loop> => {
  const found = (await listAttachedLoops()).find(({ file }) => file === image);
  if (found === undefined) throw new Error(`nothing has ${image}`);
  return found;
};

/** Runs the code in another process, with `devices`, `image` and `scope` in scope, until it prints something. */
async function startOtherProcess(image: string, code: string): Promise<ChildProcess> {
  const moduleUrl = (file: string): string => JSON.stringify(new URL(file, import.meta.url).href);
  const script = `
    const { createLoopDevices } = await import(${moduleUrl('loop-devices.ts')});
    const { systemClock } = await import(${moduleUrl('../../base/clock.ts')});
    const devices = createLoopDevices(systemClock());
    const [image, scope] = [${JSON.stringify(image)}, { signal: new AbortController().signal }];
    ${code}
    process.stdout.write('done');
    setInterval(() => undefined, 1000);`;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await Promise.race([
    once(child.stdout, 'data'),
    once(child, 'exit').then(() => Promise.reject(new Error('it ended'))),
  ]);
  return child;
}

async function killProcess(child: ChildProcess): Promise<void> {
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

describe.skipIf(lacks('root', 'mount', 'loop'))("Stowage's own loop devices", () => {
  test('attach a file with 512-byte blocks and direct I/O, detached with the last user', async () => {
    const image = scratch.image('v.img', 4);
    {
      await using held = await devices.attach(image, false, scratch.scope);
      const loop = await requireLoopOn(image);
      expect(loop).toMatchObject({ node: held.path, readOnly: false, autoclear: true, bytes: 4 * 2 ** 20 });
      const sys = `/sys/block/${loop.name}`;
      expect(readFileSync(`${sys}/queue/logical_block_size`, 'utf8').trim()).toBe('512');
      expect(readFileSync(`${sys}/loop/dio`, 'utf8').trim()).toBe('1');
    }
    await vi.waitFor(() => expect(scratch.loops()).toEqual([]), 10_000);
  });

  test('attach a file read-only', async () => {
    const image = scratch.image('v.img', 4);
    await using held = await devices.attach(image, true, scratch.scope);
    expect([held.readOnly, (await requireLoopOn(image)).readOnly]).toEqual([true, true]);
  });

  test('stay attached with keep(), and are detached once', async () => {
    const image = scratch.image('v.img', 4);
    {
      await using held = await devices.attach(image, false, scratch.scope);
      await held.keep();
    }
    const loop = await requireLoopOn(image);
    expect(loop.autoclear).toBe(false);
    expect(await devices.detach(loop, scratch.scope)).toBe(true);
    await vi.waitFor(() => expect(scratch.loops()).toEqual([]), 10_000);
    expect(await devices.detach(loop, scratch.scope)).toBe(false);
  });

  test('are left alone if they have another file by now', async () => {
    const [image, other] = [scratch.image('v.img', 4), scratch.image('other.img', 4)];
    await using _held = await devices.attach(other, false, scratch.scope);
    const stale = { ...(await requireLoopOn(other)), file: image };
    expect(await devices.detach(stale, scratch.scope)).toBe(false);
    expect(await devices.hold(stale, scratch.scope)).toBeUndefined();
    expect(scratch.loops(other)).toHaveLength(1);
  });

  test('are detached if the process that holds them is killed', async () => {
    const image = scratch.image('v.img', 4);
    const child = await startOtherProcess(image, 'await devices.attach(image, false, scope);');
    expect(scratch.loops(image)).toHaveLength(1);
    await killProcess(child);
    await vi.waitFor(() => expect(scratch.loops(image)).toEqual([]), 10_000);
  });

  test('use another device if a program has the free one open exclusively', async () => {
    const image = scratch.image('v.img', 4);
    await using control = await open('/dev/loop-control', 'r+');
    const free = `/dev/loop${await freeLoop(control.fd)}`;
    const claimed = openSync(free, constants.O_RDWR | constants.O_EXCL);
    try {
      for (let n = 0; n < 3; n++) {
        await using held = await devices.attach(image, false, scratch.scope);
        expect(held.path).not.toBe(free);
      }
    } finally {
      closeSync(claimed);
    }
  });

  test('are separate for twenty concurrent attaches by two processes', async () => {
    const images = Array.from({ length: 20 }, (_, n) => scratch.image(`v${n}.img`, 1));
    const rest = JSON.stringify(images.slice(10));
    const [child, attached] = await Promise.all([
      startOtherProcess('', `await Promise.all(${rest}.map((one) => devices.attach(one, false, scope)));`),
      Promise.all(images.slice(0, 10).map((image) => devices.attach(image, false, scratch.scope))),
    ]);
    try {
      expect(images.map((image) => scratch.loops(image).length)).toEqual(images.map(() => 1));
    } finally {
      for (const one of attached) await one[Symbol.asyncDispose]();
      await killProcess(child);
    }
    await vi.waitFor(() => expect(scratch.loops()).toEqual([]), 10_000);
  });

  test("get their node if a container's /dev lacks it", async () => {
    const image = scratch.image('v.img', 4);
    const dev = join(scratch.folder, 'dev');
    mkdirSync(dev);
    // On a file system without nodev.
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'stowage-test', dev]);
    symlinkSync('/dev/loop-control', join(dev, 'loop-control'));
    await using held = await createLoopDevices(clock, '/sys/block', dev).attach(image, false, scratch.scope);
    const { node } = await requireLoopOn(image);
    expect(held.path).toBe(join(dev, basename(node)));
    expect([statSync(held.path).rdev, statSync(held.path).mode]).toEqual([statSync(node).rdev, 0o060600]);
  });

  test('attach a file in two calls on a kernel before 5.8', async () => {
    const image = scratch.image('v.img', 4);
    await using control = await open('/dev/loop-control', 'r+');
    await using backing = await open(image, 'r+');
    const attached = async (): Promise<string> => {
      const path = `/dev/loop${await freeLoop(control.fd)}`;
      await using device = await open(path, 'r+');
      await configureOldLoop(device.fd, backing.fd, loopInfo({ file: image, readOnly: false }));
      expect(await requireLoopOn(image)).toMatchObject({ node: path, autoclear: true });
      return path;
    };
    // Another test may have taken the free device.
    await vi.waitFor(attached, 10_000);
    await vi.waitFor(() => expect(scratch.loops()).toEqual([]), 10_000);
  });

  test('do not follow a symbolic link in place of the image', async () => {
    writeFileSync(join(scratch.folder, 'target'), Buffer.alloc(4096));
    symlinkSync('target', join(scratch.folder, 'v.img'));
    await expect(devices.attach(join(scratch.folder, 'v.img'), false, scratch.scope)).rejects.toMatchObject({
      code: 'ELOOP',
    });
  });
});
