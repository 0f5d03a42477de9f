/**
 * Runs inside the virtual machine that old-kernel.ts starts. Mounts an export of Stowage's NFS server, and kills and
 * upgrades the data path while a workload changes and compares files and names. Argument: the folder of the bundles.
 * The last line of output is the result.
 */

import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { release } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { block, blockSize } from '#testing/block-writer.ts';
import { type KeeperMounts, runWithFaults, sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { run, runModelWorkload } from '#testing/workloads.ts';

const [, , bundles = ''] = process.argv;
const nfsPort = 2049;
/** Under emulation on a busy machine, a data path takes up to half a minute to start. */
const faultLimitMs = 3 * 60_000;
/** On a very busy host, keepers also mistake slow data paths for hung ones and replace them. */
const commandLimits = { timeout: 10 * 60_000 } as const;
const exported = '/srv/exported';
const writer = join(import.meta.dirname, '..', '..', 'src', 'testing', 'block-writer.ts');

/** Starts Stowage's NFS server as users do. Resolves when it listens. */
async function serve(): Promise<void> {
  mkdirSync(exported, { recursive: true });
  const args = [join(bundles, 'stowage.mjs'), 'nfs', 'serve', exported, '--port', String(nfsPort), '--squash', 'none'];
  const server = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.stdout.once('data', () => resolve());
  server.once('exit', (status) => reject(new Error(`the server ended with ${status}`)));
  await promise;
}

async function runTrial(
  what: string,
  faultCount: number,
  mountPoint: string,
  disturb: () => Promise<void>,
): Promise<void> {
  const file = join(mountPoint, `file ${what}`);
  const blocks = 64;
  await runWithFaults(faultCount, disturb, async (round) => {
    const names = join(mountPoint, `names ${what} ${round}`);
    await run('mkdir', [names], commandLimits);
    await run('truncate', ['--size=0', file], commandLimits);
    await Promise.all([
      runModelWorkload(names, round, 300, commandLimits),
      run(process.execPath, [writer, file, '0', `${blocks}`], commandLimits),
    ]);
    const found = readFileSync(join(exported, `file ${what}`));
    for (let i = 0; i < blocks; i++)
      if (!found.subarray(i * blockSize, (i + 1) * blockSize).equals(block(i))) throw new Error(`block ${i} differs`);
  });
  console.log(`${what}: ${faultCount} times, no error, no difference`);
}

async function main(mounts: KeeperMounts): Promise<void> {
  const served = { host: '127.0.0.1', nfsPort: nfsPort, mountPort: nfsPort };
  const { at: mountPoint } = await mounts.mount(await sourceOf(served, '/export'));
  await runTrial('killed', 12, mountPoint, () => mounts.killDataPath());
  await runTrial('upgraded', 4, mountPoint, () => mounts.upgrade());
  await runTrial('keeper replaced', 2, mountPoint, () => mounts.replaceKeeper());
  await run('umount', [mountPoint], commandLimits);
}

console.log(`kernel ${release()}`);
try {
  await serve();
  await using mounts = await startKeeperMounts({ program: join(bundles, 'data-path.mjs'), limitMs: faultLimitMs });
  await main(mounts).catch((cause: unknown) => {
    console.log(mounts.log().slice(-20_000));
    throw cause;
  });
  console.log('RESULT good');
} catch (cause) {
  console.log(cause);
  console.log('RESULT bad');
}
writeFileSync('/proc/sysrq-trigger', 'o');
