import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { copyFile, mkdir, mkdtempDisposable, readdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { arch, tmpdir } from 'node:os';
import { join } from 'node:path';
import { cacheFolder, type Run } from './component.ts';

/** The part of Debian's slim image that these programs need. */
const essentialPackages = [
  'base-files',
  'base-passwd',
  'bash',
  'coreutils',
  'dash',
  'findutils',
  'grep',
  'hostname',
  'libc-bin',
  'login',
  'passwd',
  'sed',
];
const nodeLibraries = ['libatomic1', 'libstdc++6'];
/** Increased when the build changes. */
const formatVersion = 1;

export function digest(...parts: readonly string[]): string {
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 16);
}

/** A tar of the files of packages and all their dependencies, without running maintainer scripts. Cached. */
export async function rootfs(
  packages: readonly string[],
  run: Run,
): Promise<{ readonly tar: string; readonly key: string }> {
  const wanted = [...new Set([...essentialPackages, ...nodeLibraries, ...packages])].sort();
  const key = digest(`${formatVersion}`, arch(), readFileSync('/etc/os-release', 'utf8'), ...wanted);
  const tar = join(cacheFolder(), `rootfs-${key}.tar`);
  if (existsSync(tar)) return { tar, key };
  await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-rootfs-'));
  const root = join(work.path, 'root');
  const debs = await download(wanted, work.path, run);
  // Creates the links first, so that packages that still install into /lib end up in /usr/lib.
  for (const name of ['bin', 'sbin', 'lib', 'lib64']) {
    await mkdir(join(root, 'usr', name), { recursive: true });
    await symlink(join('usr', name), join(root, name));
  }
  const excludes = ['doc', 'man', 'locale'].map((name) => `--exclude=./usr/share/${name}/*`);
  for (const deb of debs) {
    const files = join(work.path, 'files.tar');
    // dpkg-deb alone would replace the links by folders.
    await run('sh', ['-c', 'dpkg-deb --fsys-tarfile "$1" >"$2"', 'sh', deb, files]);
    await run('tar', ['-x', '-f', files, '-C', root, '--keep-directory-symlink', ...excludes]);
  }
  await configureRoot(root, run);
  await mkdir(cacheFolder(), { recursive: true });
  const partialTar = `${tar}.${process.pid}`;
  await run('tar', ['--sort=name', '--mtime=@0', '--numeric-owner', '-C', root, '-cf', partialTar, '.']);
  await rename(partialTar, tar);
  return { tar, key };
}

/** With an empty list of installed packages, apt downloads all dependencies, and checks them against the archive's signature. */
async function download(packages: readonly string[], work: string, run: Run): Promise<readonly string[]> {
  const archives = join(work, 'debs');
  await mkdir(join(archives, 'partial'), { recursive: true });
  await writeFile(join(work, 'status'), '');
  const options = [
    `Dir::State::status=${join(work, 'status')}`,
    `Dir::Cache::Archives=${archives}`,
    'APT::Sandbox::User=root',
  ];
  const flags = options.flatMap((option) => ['-o', option]);
  await run('apt-get', [...flags, '-qq', '-y', '--no-install-recommends', '--download-only', 'install', ...packages]);
  const names = await readdir(archives);
  return names.filter((name) => name.endsWith('.deb')).map((name) => join(archives, name));
}

/** Does the necessary part of the packages' maintainer scripts. */
async function configureRoot(root: string, run: Run): Promise<void> {
  for (const name of ['passwd', 'group']) {
    await copyFile(join(root, 'usr/share/base-passwd', `${name}.master`), join(root, 'etc', name));
  }
  await mkdir(join(root, 'tmp'), { recursive: true });
  await run('chmod', ['1777', join(root, 'tmp')]);
  for (const name of ['proc', 'sys', 'dev', 'run', 'root']) await mkdir(join(root, name), { recursive: true });
  await rm(join(root, 'var/cache'), { recursive: true, force: true });
  await run('ldconfig', ['-r', root]);
}
