import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync } from 'node:fs';
import { chmod, copyFile, cp, mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { onPath, type Run, repository } from '#testbed/component.ts';
import { rootfs } from '#testbed/rootfs.ts';

/** Virtual machines with the kernel of this machine's Debian release. Nothing is installed. */

export const kernelPackage = 'linux-image-cloud-amd64';

export interface GuestParts {
  /** Debian packages in addition to the kernel and the packages of every guest. */
  readonly packages?: readonly string[];
  /** Kernel modules, as globs below the module folder's `kernel`. */
  readonly modules: readonly string[];
  /** The script that runs as init. */
  readonly init: string;
  /** Changes the guest's files. Receives its root folder, and the folder of Stowage's sources in it. */
  readonly finish?: (root: string, ours: string) => Promise<void>;
}

export interface Guest {
  readonly kernel: string;
  readonly memory: string;
}

export interface Machine {
  readonly program: string;
  readonly env: NodeJS.ProcessEnv;
  readonly firmware: readonly string[];
}

async function unpackPackages(packages: readonly string[], into: string, run: Run): Promise<void> {
  const { tar } = await rootfs(packages, run);
  await mkdir(into);
  await run('tar', ['-xf', tar, '-C', into, '--numeric-owner']);
}

/** Keeps only the requested modules, because all of them would not fit into the guest's memory. */
async function selectModules(root: string, wanted: readonly string[], run: Run): Promise<void> {
  const [folder] = globSync(join(root, 'usr/lib/modules/*'));
  if (folder === undefined) throw new Error(`${kernelPackage} has no modules`);
  const kept = join(root, 'kept-modules');
  for (const pattern of wanted) {
    const found = globSync(join(folder, 'kernel', pattern));
    if (found.length === 0) throw new Error(`${kernelPackage} has no module ${pattern}`);
    await mkdir(kept, { recursive: true });
    for (const module of found) await run('cp', ['-a', module, kept]);
  }
  await rm(join(folder, 'kernel'), { recursive: true });
  await run('mv', [kept, join(folder, 'kernel')]);
  await run('chroot', [root, 'depmod', folder.slice(folder.lastIndexOf('/') + 1)]);
}

/** The kernel, and an initramfs with all files of the guest. */
export async function makeGuest(work: string, parts: GuestParts, run: Run): Promise<Guest> {
  const root = join(work, 'guest');
  const { packages = [], modules, init, finish } = parts;
  await unpackPackages([kernelPackage, 'cpio', 'iproute2', 'kmod', 'mount', 'util-linux', ...packages], root, run);
  const [kernel] = globSync(join(root, 'boot', 'vmlinuz-*'));
  if (kernel === undefined) throw new Error(`${kernelPackage} has no kernel`);
  await copyFile(kernel, join(work, 'kernel'));
  await selectModules(root, modules, run);
  await rm(join(root, 'boot'), { recursive: true });
  await mkdir(join(root, 'usr/local/bin'), { recursive: true });
  await copyFile(process.execPath, join(root, 'usr/local/bin/node'));
  const sourceFolder = join(root, 'stowage');
  await mkdir(sourceFolder);
  for (const name of ['src', 'e2e', 'package.json'])
    await cp(join(repository, name), join(sourceFolder, name), { recursive: true });
  const native = join('node_modules', '@koromix', 'koffi-linux-x64');
  await cp(join(repository, native), join(sourceFolder, native), { recursive: true, dereference: true });
  await finish?.(root, sourceFolder);
  await writeFile(join(root, 'init'), init);
  await chmod(join(root, 'init'), 0o755);
  const memory = join(work, 'memory');
  // Runs the guest's own cpio, which is a dependency of its kernel package.
  const pack = 'set -e; find . -xdev >"$1.list"; chroot . cpio --quiet -o -H newc <"$1.list" >"$1"';
  await run('sh', ['-c', pack, 'sh', memory], { cwd: root });
  await rm(root, { recursive: true });
  return { kernel: join(work, 'kernel'), memory };
}

/** The installed QEMU, or QEMU from Debian's packages. */
export async function findMachine(work: string, run: Run): Promise<Machine> {
  const installed = onPath('qemu-system-x86_64');
  if (installed !== undefined) return { program: installed, env: process.env, firmware: [] };
  const root = join(work, 'qemu');
  await unpackPackages(['qemu-system-x86'], root, run);
  const libraries = ['', ...(await readdir(join(root, 'usr/lib/x86_64-linux-gnu')))]
    .filter((name) => name === '' || name === 'pulseaudio')
    .map((name) => join(root, 'usr/lib/x86_64-linux-gnu', name));
  return {
    program: join(root, 'usr/bin/qemu-system-x86_64'),
    env: { ...process.env, LD_LIBRARY_PATH: libraries.join(':') },
    firmware: ['qemu', 'seabios', 'ipxe'].flatMap((name) => ['-L', join(root, 'usr/share', name)]),
  };
}

/** Runs the guest until it powers off. Returns its output. */
export async function boot(
  { program, env, firmware }: Machine,
  { kernel, memory }: Guest,
  limitMs: number,
): Promise<string> {
  const args = [
    // Emulation is slow, but the same on every machine. With one emulation thread per processor, Node crashed in V8
    // (SIGSEGV, SIGTRAP): in 9 of about 120 starts on `max`, and once on `Nehalem`. With a single thread, no crash was
    // seen. The cause in QEMU is unknown.
    ...firmware,
    '-accel',
    'tcg,thread=single',
    '-cpu',
    'Nehalem',
    '-m',
    '4096',
    '-smp',
    '2',
    '-nographic',
    '-no-reboot',
    '-nic',
    'none',
    '-kernel',
    kernel,
    '-initrd',
    memory,
    '-append',
    'console=ttyS0 rdinit=/init quiet panic=-1',
  ];
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'inherit'] });
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs);
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    process.stdout.write(text);
    output += text;
  });
  await once(child, 'close');
  clearTimeout(timer);
  return output;
}
