/**
 * Kills and upgrades the data path on the kernel of the Debian that this machine runs (of Debian 12: 6.1, which has no
 * FUSE_NOTIFY_RESEND), in a virtual machine. Not part of the tests: `node e2e/qemu/old-kernel.ts`, as root. Debian's packages
 * are kept in the cache folder of the test bed; nothing is installed.
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync } from 'node:fs';
import { chmod, copyFile, cp, mkdir, mkdtempDisposable, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { onPath, type Run, repository } from '#testbed/component.ts';
import { rootfs } from '#testbed/rootfs.ts';
import { runner } from '#testbed/run.ts';

const limitMs = 15 * 60_000;
const kernelPackage = 'linux-image-cloud-amd64';

const init = `#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=1g tmp /tmp
mkdir -p /srv && mount -t tmpfs -o size=512m srv /srv
insmod /fuse.ko
ip link set lo up
cd /stowage && node --disable-warning=ExperimentalWarning e2e/qemu/guest.ts /stowage/dist
echo o >/proc/sysrq-trigger
sleep 60
`;

async function unpacked(packages: readonly string[], into: string, run: Run): Promise<void> {
  const { tar } = await rootfs(packages, run);
  await mkdir(into);
  await run('tar', ['-xf', tar, '-C', into, '--numeric-owner']);
}

/** The kernel, and everything that the guest has, in its memory from the beginning. */
async function makeGuest(work: string, run: Run): Promise<{ readonly kernel: string; readonly memory: string }> {
  const root = join(work, 'guest');
  await unpacked([kernelPackage, 'cpio', 'iproute2', 'kmod', 'mount', 'util-linux'], root, run);
  const [kernel] = globSync(join(root, 'boot', 'vmlinuz-*'));
  const [fuse] = globSync(join(root, 'usr/lib/modules/*/kernel/fs/fuse/fuse.ko*'));
  if (kernel === undefined || fuse === undefined) throw new Error(`${kernelPackage} has no kernel, or it has no FUSE`);
  await copyFile(kernel, join(work, 'kernel'));
  await copyFile(fuse, join(root, 'fuse.ko'));
  await rm(join(root, 'usr/lib/modules'), { recursive: true });
  await rm(join(root, 'boot'), { recursive: true });
  await mkdir(join(root, 'usr/local/bin'), { recursive: true });
  await copyFile(process.execPath, join(root, 'usr/local/bin/node'));
  const ours = join(root, 'stowage');
  await mkdir(ours);
  for (const name of ['src', 'e2e', 'package.json'])
    await cp(join(repository, name), join(ours, name), { recursive: true });
  const native = join('node_modules', '@koromix', 'koffi-linux-x64');
  await cp(join(repository, native), join(ours, native), { recursive: true, dereference: true });
  await run(process.execPath, [join(repository, 'scripts', 'build.ts'), join(ours, 'dist')]);
  await writeFile(join(root, 'init'), init);
  await chmod(join(root, 'init'), 0o755);
  const memory = join(work, 'memory');
  // By the guest's own cpio, which comes with its kernel.
  const pack = 'set -e; find . -xdev >"$1.list"; chroot . cpio --quiet -o -H newc <"$1.list" >"$1"';
  await run('sh', ['-c', pack, 'sh', memory], { cwd: root });
  return { kernel: join(work, 'kernel'), memory };
}

interface Machine {
  readonly program: string;
  readonly env: NodeJS.ProcessEnv;
  readonly firmware: readonly string[];
}

/** The one that is installed, or one from Debian's packages. */
async function findMachine(work: string, run: Run): Promise<Machine> {
  const installed = onPath('qemu-system-x86_64');
  if (installed !== undefined) return { program: installed, env: process.env, firmware: [] };
  const root = join(work, 'qemu');
  await unpacked(['qemu-system-x86'], root, run);
  const libraries = ['', ...(await readdir(join(root, 'usr/lib/x86_64-linux-gnu')))]
    .filter((name) => name === '' || name === 'pulseaudio')
    .map((name) => join(root, 'usr/lib/x86_64-linux-gnu', name));
  return {
    program: join(root, 'usr/bin/qemu-system-x86_64'),
    env: { ...process.env, LD_LIBRARY_PATH: libraries.join(':') },
    firmware: ['qemu', 'seabios', 'ipxe'].flatMap((name) => ['-L', join(root, 'usr/share', name)]),
  };
}

/** What it printed. */
async function boot({ program, env, firmware }: Machine, kernel: string, memory: string): Promise<string> {
  const args = [
    // Emulated: slow, but the same on every machine.
    ...[
      ...firmware,
      '-accel',
      'tcg',
      '-cpu',
      'max',
      '-m',
      '4096',
      '-smp',
      '2',
      '-nographic',
      '-no-reboot',
      '-nic',
      'none',
    ],
    ...['-kernel', kernel, '-initrd', memory, '-append', 'console=ttyS0 rdinit=/init quiet panic=-1'],
  ];
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'inherit'] });
  const late = setTimeout(() => child.kill('SIGKILL'), limitMs);
  let said = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    process.stdout.write(text);
    said += text;
  });
  await once(child, 'close');
  clearTimeout(late);
  return said;
}

const run = runner(AbortSignal.timeout(limitMs));
await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-qemu-'));
const machine = await findMachine(work.path, run);
const { kernel, memory } = await makeGuest(work.path, run);
console.log(`starting ${dirname(machine.program)} with ${kernelPackage}`);
const said = await boot(machine, kernel, memory);
const version = /kernel (\d\S*)/.exec(said)?.[1] ?? 'unknown';
const isGood = /^RESULT good/m.test(said);
console.log(`\nthe data path on kernel ${version}: ${isGood ? 'good' : 'bad'}`);
process.exitCode = isGood ? 0 : 1;
