import * as fs from 'node:fs';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import { listDirectory } from './listing.ts';

const count = 100_000;

describe.skipIf(lacks('root', 'mount', 'ganesha'))('a directory of 100,000 entries', () => {
  const it = exportedByGanesha({ inMemory: true });

  test('is listed with all attributes, with only a few of them in memory', async () => {
    for (let i = 0; i < count; i++) fs.closeSync(fs.openSync(it.on(`entry-${i}`), 'w'));
    const timesListed = new Uint8Array(count);
    const before = usedMemoryMib();
    let maxUsedMib = 0;
    let pages = 0;
    for await (const page of listDirectory(it.nfs, it.directory)) {
      for (const { name, attributes, handle } of page) {
        const i = Number(name.slice('entry-'.length));
        if (attributes?.size === 0 && handle !== undefined) timesListed[i] = (timesListed[i] ?? 0) + 1;
      }
      if (++pages % 100 === 0) maxUsedMib = Math.max(maxUsedMib, usedMemoryMib() - before);
    }
    expect(timesListed.every((times) => times === 1)).toBe(true);
    expect(pages).toBeGreaterThan(200);
    // Keeping the names takes 5 MiB (measured). Keeping attributes and handles, too, would take 55 MiB.
    expect(maxUsedMib).toBeLessThan(25);
  });
});
