import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Ext4Superblock } from '#base/superblock.ts';
import { scope } from '#testing/contracts/store.ts';
import { refusal } from '#testing/expected-errors.ts';
import { growUnmountedExt4 } from './loop-growth.ts';

let folder: string;
let image: string;
const programs: string[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-growth-'));
  image = join(folder, 'image');
  writeFileSync(image, 'not checked yet');
});
afterEach(() => {
  rmSync(folder, { recursive: true });
  programs.length = 0;
});

/** Not clean, so it needs a check. */
const superblock = { kind: 'ext4', clean: false } as Ext4Superblock;

function partsWith(searchMs?: number): Parameters<typeof growUnmountedExt4>[0] {
  const clock = systemClock();
  return {
    clock: { ...clock, deadline: (ms, parent) => clock.deadline(searchMs ?? ms, parent) },
    run: async (program) => {
      programs.push(program);
      return { stdout: '', stderr: '' } as never;
    },
    growCalls: {} as never,
  };
}

test('checks an image that no process has open', async () => {
  await growUnmountedExt4(partsWith(), image, superblock, scope);
  expect(programs).toEqual(['e2fsck']);
});

test('checks an image after an incomplete search if the kernel says that no process has it open for writing', async () => {
  await growUnmountedExt4(partsWith(0), image, superblock, scope);
  expect(programs).toEqual(['e2fsck']);
});

test('does not touch an image that is open for writing by a process that the search did not reach', async () => {
  await using _writer = await open(image, 'r+');
  const thrown = await refusal(growUnmountedExt4(partsWith(0), image, superblock, scope));
  expect(thrown).toMatchObject({ code: 'busy', reason: 'image-busy' });
  expect(thrown.message).toBe(`Stowage could not determine whether another program has ${image} open`);
  expect(thrown.action).toContain(`fuser -v ${image}`);
  expect(programs).toEqual([]);
});
