import { readFileSync, statfsSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Names of the directory that is listed. */
const entries = 5000;

/** A file system to measure on. */
export interface MeasuredFileSystem {
  /** As the kernel calls it. */
  readonly kind: string;
  readonly parent: string;
}

const memory = '/dev/shm';
const tmpfs = 0x0102_1994;

/** Memory first, where nothing but the programs counts; then the disk that temporary files are on, if they are on one. */
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

/** A new folder there, with one for each side in it, as the programs want them. */
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
