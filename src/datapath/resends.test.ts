import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { startReplayingProxy } from '#testing/replaying-proxy.ts';
import { run } from '#testing/workloads.ts';
import { mkdir, remove, rename, rmdir } from '#wire/nfs3/procedures.ts';

/** An application on this node, and another node's change on the server before the call is resent. */
interface Sequence {
  readonly name: string;
  readonly procedure: number;
  readonly before: (on: (name: string) => string) => void;
  readonly command: (on: (name: string) => string) => readonly [string, ...string[]];
  readonly meanwhile: (on: (name: string) => string) => void;
  readonly after: (on: (name: string) => string) => void;
}

const sequences: readonly Sequence[] = [
  {
    name: 'rm',
    procedure: remove.number,
    before: (on) => writeFileSync(on('file'), 'old'),
    command: (on) => ['rm', on('file')],
    meanwhile: (on) => writeFileSync(on('file'), 'of another node'),
    after: (on) => expect(readFileSync(on('file'), 'utf8')).toBe('of another node'),
  },
  {
    name: 'rmdir',
    procedure: rmdir.number,
    before: (on) => mkdirSync(on('sub')),
    command: (on) => ['rmdir', on('sub')],
    meanwhile: (on) => mkdirSync(on('sub')),
    after: (on) => expect(readdirSync(on('.'))).toEqual(['sub']),
  },
  {
    name: 'mv',
    procedure: rename.number,
    before: (on) => writeFileSync(on('from'), 'old'),
    command: (on) => ['mv', on('from'), on('to')],
    meanwhile: (on) => writeFileSync(on('from'), 'of another node'),
    after: (on) => {
      expect(readFileSync(on('from'), 'utf8')).toBe('of another node');
      expect(readFileSync(on('to'), 'utf8')).toBe('old');
    },
  },
  {
    name: 'mkdir',
    procedure: mkdir.number,
    before: () => undefined,
    command: (on) => ['mkdir', on('sub')],
    meanwhile: (on) => rmdirSync(on('sub')),
    after: (on) => expect(readdirSync(on('.'))).toEqual([]),
  },
];

describe.skipIf(needs('root', 'fuse', 'ganesha'))(
  'a mount whose connection is lost between a call and its reply',
  () => {
    const it = exportedByGanesha();

    test.each(sequences)('does not do $name a second time', { timeout: 120_000 }, async (sequence) => {
      const proxy = await startReplayingProxy({ host: it.server.host, port: it.server.nfsPort });
      const source = await sourceOf(it.server, it.folder);
      await using mounts = await startKeeperMounts();
      sequence.before(it.on);
      const mounted = await mounts.mount({ ...source, host: proxy.host, port: proxy.port }, { connections: 1 });
      const lost = proxy.loseReply(sequence.procedure);
      const done = run(...split(sequence.command(mounted.on)));
      await lost;
      await proxy.down();
      sequence.meanwhile(it.on);
      await proxy.up();
      await done;
      sequence.after(it.on);
      // The keeper has closed its copy of the connection by then.
      expect(new Set(proxy.ports).size).toBe(1);
      await run('umount', [mounted.at]);
    });
  },
);

const split = ([program, ...args]: readonly [string, ...string[]]): [string, string[]] => [program, args];
