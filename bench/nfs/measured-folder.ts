import { readFileSync, statfsSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The number of entries in the directory that the benchmark lists. */
const entries = 5000;

/** A file system to measure on. */
export interface MeasuredFileSystem {
  /** The kernel's name of the file system. */
  readonly kind: string;
  readonly parent: string;
}

const memory = '/dev/shm';
const tmpfs = 0x0102_1994;

/** A tmpfs, on which only the programs count, and the disk with the temporary files, if they are on a disk. */
export function measuredFileSystems(): readonly MeasuredFileSystem[] {
  const found: MeasuredFileSystem[] = [memory, tmpdir()].map((parent) => ({ parent, kind: kindOf(parent) }));
  return found.filter(({ kind }, i) => found.findIndex((other) => other.kind === kind) === i);
}

function kindOf(path: string): string {
  const { type } = statfsSync(path);
  if (type === tmpfs) return 'tmpfs';
  const mounts = readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .map((line) => line.split(' '))
    .filter(([, point = '-']) => path === point || path.startsWith(point === '/' ? '/' : `${point}/`));
  return mounts.toSorted(([, a = ''], [, b = '']) => b.length - a.length)[0]?.[2] ?? 'unknown';
}

/** Creates a folder there, with a subfolder for each side that contains the files that the programs need. */
export async function makeFolder(
  { parent }: MeasuredFileSystem,
  sides: readonly string[],
): Promise<AsyncDisposable & { readonly path: string }> {
  const path = await mkdtemp(join(parent, 'stowage-bench-'));
  const remove = (): Promise<void> => rm(path, { recursive: true, force: true });
  try {
    for (const side of sides) {
      const many = join(path, side, 'many');
      await mkdir(many, { recursive: true });
      for (let i = 0; i < entries; i++) await writeFile(join(many, `a file with some name ${i}`), '');
    }
  } catch (cause) {
    await remove();
    throw cause;
  }
  return { path, [Symbol.asyncDispose]: remove };
}
