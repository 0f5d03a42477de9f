/**
 * Shows on a Linux nfsd that the NFS client resends calls as docs/designs/nfs-resends.md says: contents and locks are
 * correct across cut connections, restarts and fail-over. The server and the clients run in one virtual machine with
 * the kernel of this machine's Debian release. Not part of the tests: `node e2e/qemu/linux-nfsd.ts [SEED]`, as root.
 * Debian's packages stay in the cache folder of the test bed; nothing is installed. The exit status is 1 if a sequence
 * fails.
 */

import { appendFile, mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { runner } from '#testbed/run.ts';
import { boot, findMachine, kernelPackage, makeGuest } from './virtual-machine.ts';

const runLimitMs = 30 * 60_000;
const seed = Number(process.argv[2] ?? Date.now() % 1_000_000);

/**
 * Three exports with file handles of different lengths: nfsd remembers no reply that is longer than 256 bytes, and the reply to CREATE
 * contains a handle. nfsd listens on all addresses.
 */
const init = `#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=2g tmp /tmp
mount -t tmpfs run /run
mkdir -p /run/rpcbind /var/lib/nfs/v4recovery /srv/ext4 /srv/xfs
modprobe -a loop nfsd xfs
ip link set lo up
for kind in ext4 xfs; do
  truncate -s 400M /tmp/$kind.img
  mkfs.$kind -q /tmp/$kind.img
  mount -o loop /tmp/$kind.img /srv/$kind
done
mkdir /srv/xfs/below /srv/xfs/checked
options=rw,insecure,no_root_squash,sync
echo "/srv/ext4 *($options,no_subtree_check,fsid=1)" >/etc/exports
echo "/srv/xfs/below *($options,no_subtree_check)" >>/etc/exports
echo "/srv/xfs/checked *($options,subtree_check)" >>/etc/exports
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd
rpcbind -w
rpc.nfsd --no-udp --tcp --nfs-version 3 8
rpc.mountd --port 20048
exportfs -ra
cat /proc/fs/nfsd/versions
cd /stowage && node --disable-warning=ExperimentalWarning e2e/qemu/nfsd-guest.ts ${seed}
echo o >/proc/sysrq-trigger
sleep 60
`;

const run = runner(AbortSignal.timeout(runLimitMs));
await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-qemu-'));
const machine = await findMachine(work.path, run);
const guest = await makeGuest(
  work.path,
  {
    packages: ['e2fsprogs', 'netbase', 'nfs-kernel-server', 'xfsprogs'],
    modules: [
      'fs/{lockd,nfs_common,nfsd,xfs}/*.ko*',
      'net/sunrpc/**/*.ko*',
      'lib/libcrc32c.ko*',
      'drivers/block/loop.ko*',
      'arch/x86/crypto/crc32c-intel.ko*',
    ],
    init,
    finish: async (root) => {
      // The user that the package's installation script would create.
      await appendFile(join(root, 'etc/passwd'), '_rpc:x:101:65534::/run/rpcbind:/usr/sbin/nologin\n');
      await appendFile(join(root, 'etc/hosts'), '127.0.0.1 localhost\n');
    },
  },
  run,
);
console.log(`starting ${dirname(machine.program)} with ${kernelPackage}, seed ${seed}`);
const output = await boot(machine, guest, runLimitMs);
const version = /kernel (\d\S*)/.exec(output)?.[1] ?? 'unknown';
const isGood = /^RESULT good/m.test(output);
console.log(`\nLinux nfsd of kernel ${version}, seed ${seed}: ${isGood ? 'good' : 'bad'}`);
process.exitCode = isGood ? 0 : 1;
