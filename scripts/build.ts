import { chmod, copyFile, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { rolldown } from 'rolldown';

const repository = dirname(import.meta.dirname);

/**
 * Bundles the sources into one file that needs only Node. It starts ten times faster than the sources, and is part of
 * the image.
 */
async function build(source: string, outfile: string, kind: 'program' | 'library' = 'program'): Promise<void> {
  const since = performance.now();
  const entry = join(repository, 'src', source);
  const needsShebang = kind === 'program' && !(await readFile(entry, 'utf8')).startsWith('#!');
  const bundle = await rolldown({
    input: entry,
    cwd: repository,
    platform: 'node',
    tsconfig: false,
    // A missing package must fail the build instead of becoming an import that fails at run time.
    onLog: (level, log, handle) => {
      if (log.code === 'UNRESOLVED_IMPORT') throw new Error(log.message);
      handle(level, log);
    },
  });
  await bundle.write({
    // Written under another name first, because the program may be starting at that moment.
    file: `${outfile}.new`,
    format: 'esm',
    codeSplitting: false,
    minify: { compress: true, mangle: false, codegen: true },
    banner: needsShebang ? '#!/usr/bin/env node' : '',
  });
  await bundle.close();
  await spellInAscii(`${outfile}.new`);
  if (kind === 'program') await chmod(`${outfile}.new`, 0o755);
  await rename(`${outfile}.new`, outfile);
  const { size } = await stat(outfile);
  console.log(`${outfile}: ${(size / 1024).toFixed(0)} KB`);
  console.log(`built in ${((performance.now() - since) / 1000).toFixed(1)} s`);
}

/**
 * V8 keeps a program's source text in memory, with two bytes per character if any character needs two. So this replaces
 * such characters by escapes, which strings and expressions both allow.
 */
async function spellInAscii(file: string): Promise<void> {
  const text = await readFile(file, 'utf8');
  const spelled = text.replaceAll(/\P{ASCII}/gu, (character) =>
    Array.from({ length: character.length }, (_, i) => `\\u${hex(character.charCodeAt(i))}`).join(''),
  );
  await writeFile(file, spelled);
}

const hex = (unit: number): string => unit.toString(16).padStart(4, '0');

/** The native module that calls the C library (src/base/linux/libc.ts), for this machine's CPU and glibc. */
async function copyNative(outfile: string): Promise<void> {
  const { arch, platform } = process;
  if (platform !== 'linux') return;
  const found = createRequire(import.meta.url).resolve(`@koromix/koffi-linux-${arch}/package.json`);
  await copyFile(join(dirname(found), `linux_${arch}`, 'koffi.node'), `${outfile}.new`);
  await rename(`${outfile}.new`, outfile);
}

const folder = process.argv[2] ?? join(repository, 'dist');
// The library for other programs: `stowage/nfs3` (src/wire/nfs3/README.md).
await build('wire/nfs3/index.ts', join(folder, 'nfs3.mjs'), 'library');
// Programs that the bundle starts from its own folder (src/stores/nfs/network-process.ts, src/keeper).
await build('stores/nfs/network-child.ts', join(folder, 'network-child.mjs'));
await build('keeper/main.ts', join(folder, 'keeper.mjs'));
await build('datapath/main.ts', join(folder, 'data-path.mjs'));
await copyNative(join(folder, `koffi-${process.arch}.node`));
await build('app/main.ts', join(folder, 'stowage.mjs'));
