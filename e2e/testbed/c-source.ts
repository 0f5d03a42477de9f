import { mkdir, mkdtempDisposable, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { builtByCargo, type Component, cachedBuild, missingPrograms } from './component.ts';

/** A Rust crate that contains the C sources of bzip2 with their Makefile and tests. */
const [crate, version] = ['bzip2-sys', '0.1.13'] as const;
const cachedTar = cachedBuild('c-source', `${crate}-${version}`, 'bzip2-1.0.8.tar');

/** A source package that tests unpack and compile on a volume. */
export const cSource: Component = {
  what: `the sources of bzip2, from the crate ${crate}@${version}, and a C compiler`,
  ...builtByCargo(cachedTar),
  probe: () => cachedTar.probe() ?? missingPrograms('gcc', 'make', 'ar'),
  packages: () => (missingPrograms('gcc', 'make', 'ar') === undefined ? [] : ['gcc', 'libc6-dev', 'make', 'binutils']),
  make: async (run) => {
    await rm(cachedTar.folder(), { recursive: true, force: true });
    await mkdir(cachedTar.folder(), { recursive: true });
    await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-cargo-'));
    const lines = [
      '[package]',
      'name = "sources"',
      'version = "0.0.0"',
      'edition = "2021"',
      '[lib]',
      'path = "lib.rs"',
    ];
    await writeFile(join(work.path, 'Cargo.toml'), [...lines, '[dependencies]', `${crate} = "=${version}"`].join('\n'));
    await writeFile(join(work.path, 'lib.rs'), '');
    await run('cargo', ['vendor', '--quiet', 'vendor'], { cwd: work.path });
    await run('tar', ['-C', join(work.path, 'vendor', crate), '-cf', cachedTar.tool(), 'bzip2-1.0.8']);
    await writeFile(cachedTar.marker(), '');
  },
};
