import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Component, cachedBuild, missingPrograms, testbedCommand } from './component.ts';
import { digest } from './rootfs.ts';

const source = join(import.meta.dirname, 'libnfs-bench', 'libnfs-bench.c');
const header = '/usr/include/nfsc/libnfs-raw.h';
const cachedProgram = cachedBuild('libnfs-bench', digest(readFileSync(source, 'utf8')), 'libnfs-bench');

/** A C program on libnfs: the yardstick of `npm run bench -- nfs`, and the client of `npm run bench -- nfs-server`. */
export const libnfsBench: Component = {
  what: 'the benchmark program on libnfs',
  probe: cachedProgram.probe,
  tool: cachedProgram.tool,
  command: testbedCommand,
  packages: () => [
    ...(existsSync(header) ? [] : ['libnfs-dev']),
    ...(missingPrograms('gcc') === undefined ? [] : ['gcc', 'libc6-dev']),
  ],
  make: async (run) => {
    await rm(cachedProgram.folder(), { recursive: true, force: true });
    await mkdir(cachedProgram.folder(), { recursive: true });
    await run('gcc', ['-O2', '-Wall', '-Wextra', '-Werror', '-o', cachedProgram.tool(), source, '-lnfs']);
    await writeFile(cachedProgram.marker(), '');
  },
};
