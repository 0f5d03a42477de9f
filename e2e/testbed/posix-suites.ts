import { mkdir, mkdtempDisposable, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { builtByCargo, type Component, cachedBuild } from './component.ts';

const crates = ['pjdfstest@0.2.2', 'fsx@0.3.2'] as const;
const cachedSuites = cachedBuild('posix-suites', crates.join('-').replaceAll('@', '-'), 'bin/pjdfstest');

/** Tests of POSIX file systems: pjdfstest (names, permissions, errors) and fsx (data). */
export const posixSuites: Component = {
  what: `the Rust crates ${crates.join(' and ')}`,
  ...builtByCargo(cachedSuites),
  make: async (run) => {
    await rm(cachedSuites.folder(), { recursive: true, force: true });
    await mkdir(cachedSuites.folder(), { recursive: true });
    await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-cargo-'));
    const flags = [
      '--locked',
      '--no-track',
      '--target-dir',
      join(work.path, 'target'),
      '--root',
      cachedSuites.folder(),
    ];
    await run('cargo', ['install', ...crates, ...flags]);
    await writeFile(cachedSuites.marker(), '');
  },
};

/** The path of the second program. */
export const fsxPath = (): string => join(dirname(cachedSuites.tool()), 'fsx');
