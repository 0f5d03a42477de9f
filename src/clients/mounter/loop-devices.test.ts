import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { attachedLoops, type Loop } from './attached-loops.ts';
import { configureOldLoop, freeLoop, loopInfo } from './loop-calls.ts';
import { createLoopDevices } from './loop-devices.ts';

const clock = systemClock();
const devices = createLoopDevices(clock);
let ground: ScratchFolder;
beforeEach(() => {
  ground = createScratchFolder();
});
afterEach(() => ground[Symbol.dispose]());

const loopOn = async (image: string): Promise<Loop> => {
  const found = (await attachedLoops()).find(({ file }) => file === image);
  if (found === undefined) throw new Error(`nothing has ${image}`);
  return found;
};

/** Runs the code in another process, with `devices`, `image` and `scope` in scope, until it prints something. */
async function otherProcess(image: string, code: string): Promise<ChildProcess> {
  const at = (file: string): string => JSON.stringify(new URL(file, import.meta.url).href);
  const script = `
    const { createLoopDevices } = await import(${at('loop-devices.ts')});
    const { systemClock } = await import(${at('../../base/clock.ts')});
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

async function killed(child: ChildProcess): Promise<void> {
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

describe.skipIf(needs('root', 'mount', 'loop'))("Stowage's own loop devices", () => {
  test('attach a file with 512-byte blocks and direct I/O, detached with the last user', async () => {
    const image = ground.image('v.img', 4);
    {
      await using held = await devices.attach(image, false, ground.scope);
      const loop = await loopOn(image);
      expect(loop).toMatchObject({ node: held.path, readOnly: false, autoclear: true, bytes: 4 * 2 ** 20 });
      const sys = `/sys/block/${loop.name}`;
      expect(readFileSync(`${sys}/queue/logical_block_size`, 'utf8').trim()).toBe('512');
      expect(readFileSync(`${sys}/loop/dio`, 'utf8').trim()).toBe('1');
    }
    await vi.waitFor(() => expect(ground.loops()).toEqual([]), 10_000);
  });

  test('attach a file read-only', async () => {
    const image = ground.image('v.img', 4);
    await using held = await devices.attach(image, true, ground.scope);
    expect([held.readOnly, (await loopOn(image)).readOnly]).toEqual([true, true]);
  });

  test('stay attached with keep(), and are detached once', async () => {
    const image = ground.image('v.img', 4);
    {
      await using held = await devices.attach(image, false, ground.scope);
      await held.keep();
    }
    const loop = await loopOn(image);
    expect(loop.autoclear).toBe(false);
    expect(await devices.detach(loop, ground.scope)).toBe(true);
    await vi.waitFor(() => expect(ground.loops()).toEqual([]), 10_000);
    expect(await devices.detach(loop, ground.scope)).toBe(false);
  });

  test('are left alone if they have another file by now', async () => {
    const [image, other] = [ground.image('v.img', 4), ground.image('other.img', 4)];
    await using _held = await devices.attach(other, false, ground.scope);
    const stale = { ...(await loopOn(other)), file: image };
    expect(await devices.detach(stale, ground.scope)).toBe(false);
    expect(await devices.hold(stale, ground.scope)).toBeUndefined();
    expect(ground.loops(other)).toHaveLength(1);
  });

  test('do not stay if the process is killed while it holds one', async () => {
    const image = ground.image('v.img', 4);
    const child = await otherProcess(image, 'await devices.attach(image, false, scope);');
    expect(ground.loops(image)).toHaveLength(1);
    await killed(child);
    await vi.waitFor(() => expect(ground.loops(image)).toEqual([]), 10_000);
  });

  test('use another device if a program has the free one open exclusively', async () => {
    const image = ground.image('v.img', 4);
    await using control = await open('/dev/loop-control', 'r+');
    const free = `/dev/loop${await freeLoop(control.fd)}`;
    const claimed = openSync(free, constants.O_RDWR | constants.O_EXCL);
    try {
      for (let n = 0; n < 3; n++) {
        await using held = await devices.attach(image, false, ground.scope);
        expect(held.path).not.toBe(free);
      }
    } finally {
      closeSync(claimed);
    }
  });

  test('are separate for twenty concurrent attaches by two processes', async () => {
    const images = Array.from({ length: 20 }, (_, n) => ground.image(`v${n}.img`, 1));
    const rest = JSON.stringify(images.slice(10));
    const [child, held] = await Promise.all([
      otherProcess('', `await Promise.all(${rest}.map((one) => devices.attach(one, false, scope)));`),
      Promise.all(images.slice(0, 10).map((image) => devices.attach(image, false, ground.scope))),
    ]);
    try {
      expect(images.map((image) => ground.loops(image).length)).toEqual(images.map(() => 1));
    } finally {
      for (const one of held) await one[Symbol.asyncDispose]();
      await killed(child);
    }
    await vi.waitFor(() => expect(ground.loops()).toEqual([]), 10_000);
  });

  test("get their node if a container's /dev lacks it", async () => {
    const image = ground.image('v.img', 4);
    const dev = join(ground.folder, 'dev');
    mkdirSync(dev);
    // On a file system without nodev.
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'stowage-test', dev]);
    symlinkSync('/dev/loop-control', join(dev, 'loop-control'));
    await using held = await createLoopDevices(clock, '/sys/block', dev).attach(image, false, ground.scope);
    const { node } = await loopOn(image);
    expect(held.path).toBe(join(dev, basename(node)));
    expect([statSync(held.path).rdev, statSync(held.path).mode]).toEqual([statSync(node).rdev, 0o060600]);
  });

  test('attach a file in two calls on a kernel before 5.8', async () => {
    const image = ground.image('v.img', 4);
    await using control = await open('/dev/loop-control', 'r+');
    await using backing = await open(image, 'r+');
    const attached = async (): Promise<string> => {
      const path = `/dev/loop${await freeLoop(control.fd)}`;
      await using device = await open(path, 'r+');
      await configureOldLoop(device.fd, backing.fd, loopInfo({ file: image, readOnly: false }));
      expect(await loopOn(image)).toMatchObject({ node: path, autoclear: true });
      return path;
    };
    // Another test may have taken the free device.
    await vi.waitFor(attached, 10_000);
    await vi.waitFor(() => expect(ground.loops()).toEqual([]), 10_000);
  });

  test('do not follow a symbolic link in place of the image', async () => {
    writeFileSync(join(ground.folder, 'target'), Buffer.alloc(4096));
    symlinkSync('target', join(ground.folder, 'v.img'));
    await expect(devices.attach(join(ground.folder, 'v.img'), false, ground.scope)).rejects.toMatchObject({
      code: 'ELOOP',
    });
  });
});
