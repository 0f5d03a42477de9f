import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Component, cachedBuild, missingPrograms, testbedCommand } from './component.ts';
import { digest } from './rootfs.ts';

const source = join(import.meta.dirname, 'libnfs-bench', 'libnfs-bench.c');
const header = '/usr/include/nfsc/libnfs-raw.h';
const place = cachedBuild('libnfs-bench', digest(readFileSync(source, 'utf8')), 'libnfs-bench');

/** A C program on libnfs: the yardstick of `npm run bench -- nfs`, and the client of `npm run bench -- nfs-server`. */
export const libnfsBench: Component = {
  what: 'the benchmark program on libnfs',
  probe: place.probe,
  tool: place.tool,
  command: testbedCommand,
  packages: () => [
    ...(existsSync(header) ? [] : ['libnfs-dev']),
    ...(missingPrograms('gcc') === undefined ? [] : ['gcc', 'libc6-dev']),
  ],
  make: async (run) => {
    await rm(place.folder(), { recursive: true, force: true });
    await mkdir(place.folder(), { recursive: true });
    await run('gcc', ['-O2', '-Wall', '-Wextra', '-Werror', '-o', place.tool(), source, '-lnfs']);
    await writeFile(place.marker(), '');
  },
};
