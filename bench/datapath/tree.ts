import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const directories = 20;
export const filesEach = 1000;
export const files = directories * filesEach;

/** Directories `d0`, `d1` … with files `f0`, `f1` … in each. */
export function plantTree(at: string): void {
  for (let d = 0; d < directories; d++) {
    const directory = join(at, `d${d}`);
    mkdirSync(directory, { recursive: true });
    for (let f = 0; f < filesEach; f++) writeFileSync(join(directory, `f${f}`), 'a small file\n');
  }
}
