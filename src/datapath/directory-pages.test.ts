import { execFile } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';

const run = promisify(execFile);

describe.skipIf(lacks('fuse', 'ganesha', 'perl'))('a server that lists a directory in a loop', () => {
  const exported = exportedByGanesha();

  /** Never returns eof. `again`: the entry at which it starts over. */
  function withEndlessListing(nfs: NfsClient, loopStart: number): NfsClient {
    return {
      ...nfs,
      readdirplus: async (args, options) => {
        const all = await nfs.readdirplus({ ...args, cookie: 0n, verifier: 0n }, options);
        const index = all.entries.findIndex(({ cookie }) => cookie === args.cookie);
        const rest = all.entries.slice(index + 1);
        return { ...all, isEnd: false, entries: rest.length > 0 ? rest : all.entries.slice(loopStart) };
      },
    };
  }

  test.each([0, 1, 7, 39])(
    'causes an error instead of an endless listing, with a loop to entry %i',
    async (loopStart) => {
      using scratch = createScratchFolder();
      for (let i = 0; i < 40; i++) await fs.writeFile(exported.on(`file-${i}`), '');
      await using mount = await mountNfs(scratch.folder, {
        nfs: withEndlessListing(exported.nfs, loopStart),
        root: exported.directory,
      });
      await expect(run('ls', [mount.at], { timeout: 20_000 })).rejects.toThrow('Input/output error');
      expect(await fs.readFile(join(mount.at, 'file-1'), 'utf8')).toBe('');
      expect(mount.faults).toEqual([]);
    },
  );

  test('is not confused with a listing read in pieces, back and forth', async () => {
    using scratch = createScratchFolder();
    for (let i = 0; i < 300; i++) await fs.writeFile(exported.on(`a long name, so that they fill pages ${i}`), '');
    await using mount = await mountNfs(scratch.folder, { nfs: exported.nfs, root: exported.directory });
    const script = `
      opendir(my $dir, $ARGV[0]) or die $!;
      my (@at, %seen);
      while (1) { push @at, telldir $dir; my $name = readdir $dir; last unless defined $name; $seen{$name}++; }
      for my $place (reverse @at) { seekdir $dir, $place; readdir $dir; }
      seekdir $dir, $at[5];
      my $rest = 0;
      while (defined readdir $dir) { $rest++ }
      print scalar(keys %seen), ' ', $rest;`;
    const { stdout } = await run('perl', ['-e', script, mount.at], { timeout: 20_000 });
    expect(stdout).toBe('302 297');
  });
});

describe.skipIf(lacks('fuse', 'ganesha'))('a server that can never continue a listing', () => {
  const exported = exportedByGanesha();
  let calls = 0;

  /** Returns the first few names, then rejects every cookie. */
  const rejectsCookies: NfsClient['readdirplus'] = async (args, options) => {
    calls++;
    if (args.cookie !== 0n) throw new NfsError('READDIRPLUS', nfsStatus.BAD_COOKIE, false);
    const page = await exported.nfs.readdirplus(args, options);
    return { ...page, entries: page.entries.slice(0, 5), isEnd: false };
  };
  const rejectsSizes: NfsClient['readdirplus'] = async () => {
    throw new NfsError('READDIRPLUS', calls++ % 2 === 0 ? nfsStatus.TOOSMALL : nfsStatus.INVAL, false);
  };

  test.each([
    ['it forgets its position', rejectsCookies],
    ['it rejects every size', rejectsSizes],
  ])('causes an error after a few calls: %s', async (_, readdirplus) => {
    using scratch = createScratchFolder();
    calls = 0;
    for (let i = 0; i < 40; i++) await fs.writeFile(exported.on(`file-${i}`), '');
    await using mount = await mountNfs(scratch.folder, {
      nfs: { ...exported.nfs, readdirplus },
      root: exported.directory,
    });
    await expect(run('ls', [mount.at], { timeout: 20_000 })).rejects.toThrow(/Input\/output error|Invalid argument/);
    expect(calls).toBeLessThan(50);
    expect(mount.faults).toEqual([]);
  });
});
