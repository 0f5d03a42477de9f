import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/**
 * A registry that mirrors only some platforms leaves gaps: `npm install` drops optional packages that it can't
 * find, and `npm ci` then rejects the lockfile as incomplete. `node scripts/lockfile.ts` fills the gaps without the registry: the parent
 * fixes the version, and the name contains the platform.
 */
export interface Lockfile {
  readonly packages: Readonly<Record<string, LockedPackage>>;
}

interface LockedPackage {
  readonly version?: string;
  readonly dev?: boolean;
  readonly optional?: boolean;
  readonly os?: readonly string[];
  readonly cpu?: readonly string[];
  readonly libc?: readonly string[];
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

const systems = ['aix', 'android', 'darwin', 'freebsd', 'linux', 'netbsd', 'openbsd', 'openharmony', 'sunos', 'win32'];
const processors = ['arm', 'arm64', 'ia32', 'loong64', 'mips64el', 'ppc64', 'riscv64', 's390x', 'wasm32', 'x64'];
const exact = /^\d+\.\d+\.\d+(?:-[\w.]+)?$/;

/** The missing entries, by their path in the lockfile. */
export function lockfileGaps({ packages }: Lockfile): Readonly<Record<string, LockedPackage>> {
  const gaps: Record<string, LockedPackage> = {};
  for (const [place, parent] of Object.entries(packages)) {
    for (const [name, version] of Object.entries(parent.optionalDependencies ?? {})) {
      const found = foldersFrom(place)
        .map((folder) => packages[`${folder}${name}`])
        .find((entry) => entry !== undefined);
      if (found !== undefined && (!exact.test(version) || found.version === version)) continue;
      if (!exact.test(version))
        throw new Error(`${place} asks for ${name} ${version}, a range that only a registry resolves`);
      gaps[`${containingFolder(place)}${name}`] = {
        version,
        ...platform(name),
        ...(parent.dev ? { dev: true } : {}),
        optional: true,
      };
    }
  }
  return gaps;
}

/** The folders in which Node searches the imports of a package, nearest first. */
function foldersFrom(place: string): readonly string[] {
  const at = place.lastIndexOf('node_modules/');
  const own = place === '' ? 'node_modules/' : `${place}/node_modules/`;
  return at < 0 ? [own] : [own, ...foldersFrom(place.slice(0, Math.max(0, at - 1)))];
}

/** The folder that contains the package. */
function containingFolder(place: string): string {
  return place.slice(0, place.lastIndexOf('node_modules/') + 'node_modules/'.length) || 'node_modules/';
}

function platform(name: string): Pick<LockedPackage, 'os' | 'cpu' | 'libc'> {
  const words = name.split(/[/-]/);
  const os = words.filter((word) => systems.includes(word));
  const cpu = words.filter((word) => processors.includes(word));
  if (cpu.length === 0) throw new Error(`the name ${name} does not say for which processor it is`);
  const libc = words.flatMap((word) => (word === 'gnu' ? ['glibc'] : word === 'musl' ? ['musl'] : []));
  return { ...(os.length > 0 ? { os } : {}), cpu, ...(libc.length > 0 ? { libc } : {}) };
}

function complete(file: string): void {
  const lock = JSON.parse(readFileSync(file, 'utf8')) as Lockfile;
  const gaps = lockfileGaps(lock);
  const packages = Object.entries({ ...lock.packages, ...gaps }).sort(([a], [b]) => a.localeCompare(b, 'en'));
  writeFileSync(file, `${JSON.stringify({ ...lock, packages: Object.fromEntries(packages) }, null, 2)}\n`);
  console.log(`${Object.keys(gaps).length} entries added to ${file}`);
}

if (import.meta.main) complete(join(dirname(import.meta.dirname), 'package-lock.json'));
