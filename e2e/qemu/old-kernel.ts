/**
 * Kills and upgrades the data path on the kernel of this machine's Debian release, in a virtual machine (Debian 12 has
 * kernel 6.1, which lacks FUSE_NOTIFY_RESEND). Not part of the tests: `node e2e/qemu/old-kernel.ts`, as root. Debian's
 * packages stay in the cache folder of the test bed; nothing is installed. On failure, the output of the virtual
 * machine, with the logs of keepers and data paths, is in `.stowage-qemu/old-kernel.log` in the current folder.
 */

import { mkdir, mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { repository } from '#testbed/component.ts';
import { runner } from '#testbed/run.ts';
import { boot, findMachine, kernelPackage, makeGuest } from './virtual-machine.ts';

/** The run takes three minutes on an idle machine. */
const runLimitMs = 30 * 60_000;
const logFile = join('.stowage-qemu', 'old-kernel.log');

const init = `#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=1g tmp /tmp
mkdir -p /srv && mount -t tmpfs -o size=512m srv /srv
modprobe fuse
ip link set lo up
cd /stowage && node --disable-warning=ExperimentalWarning e2e/qemu/old-kernel-guest.ts /stowage/dist
echo o >/proc/sysrq-trigger
sleep 60
`;

const run = runner(AbortSignal.timeout(runLimitMs));
await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-qemu-'));
const machine = await findMachine(work.path, run);
const finish = async (_root: string, ours: string): Promise<void> => {
  await run(process.execPath, [join(repository, 'scripts', 'build.ts'), join(ours, 'dist')]);
};
const guest = await makeGuest(work.path, { modules: ['fs/fuse/fuse.ko*'], init, finish }, run);
console.log(`starting ${dirname(machine.program)} with ${kernelPackage}`);
const output = await boot(machine, guest, runLimitMs);
const version = /kernel (\d\S*)/.exec(output)?.[1] ?? 'unknown';
const isGood = /^RESULT good/m.test(output);
console.log(`\nthe data path on kernel ${version}: ${isGood ? 'good' : 'bad'}`);
if (!isGood) {
  await mkdir(dirname(logFile), { recursive: true });
  await writeFile(logFile, output);
  console.log(`its output is in ${logFile}`);
}
process.exitCode = isGood ? 0 : 1;
