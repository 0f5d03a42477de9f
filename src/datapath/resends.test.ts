import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { startReplayingProxy } from '#testing/replaying-proxy.ts';
import { run } from '#testing/workloads.ts';
import { mkdir, remove, rename, rmdir } from '#wire/nfs3/procedures.ts';

/** An application on this node, and another node's change on the server before the call is resent. */
interface Sequence {
  readonly name: string;
  readonly procedure: number;
  readonly prepare: (on: (name: string) => string) => void;
  readonly command: (on: (name: string) => string) => readonly [string, ...string[]];
  readonly changeByOther: (on: (name: string) => string) => void;
  readonly verify: (on: (name: string) => string) => void;
}

const sequences: readonly Sequence[] = [
  {
    name: 'rm',
    procedure: remove.number,
    prepare: (on) => writeFileSync(on('file'), 'old'),
    command: (on) => ['rm', on('file')],
    changeByOther: (on) => writeFileSync(on('file'), 'of another node'),
    verify: (on) => expect(readFileSync(on('file'), 'utf8')).toBe('of another node'),
  },
  {
    name: 'rmdir',
    procedure: rmdir.number,
    prepare: (on) => mkdirSync(on('sub')),
    command: (on) => ['rmdir', on('sub')],
    changeByOther: (on) => mkdirSync(on('sub')),
    verify: (on) => expect(readdirSync(on('.'))).toEqual(['sub']),
  },
  {
    name: 'mv',
    procedure: rename.number,
    prepare: (on) => writeFileSync(on('from'), 'old'),
    command: (on) => ['mv', on('from'), on('to')],
    changeByOther: (on) => writeFileSync(on('from'), 'of another node'),
    verify: (on) => {
      expect(readFileSync(on('from'), 'utf8')).toBe('of another node');
      expect(readFileSync(on('to'), 'utf8')).toBe('old');
    },
  },
  {
    name: 'mkdir',
    procedure: mkdir.number,
    prepare: () => undefined,
    command: (on) => ['mkdir', on('sub')],
    changeByOther: (on) => rmdirSync(on('sub')),
    verify: (on) => expect(readdirSync(on('.'))).toEqual([]),
  },
];

describe.skipIf(lacks('root', 'fuse', 'ganesha'))(
  'a mount whose connection is lost between a call and its reply',
  () => {
    const exported = exportedByGanesha();

    test.each(sequences)('does not do $name a second time', { timeout: 120_000 }, async (sequence) => {
      const proxy = await startReplayingProxy({ host: exported.server.host, port: exported.server.nfsPort });
      const source = await sourceOf(exported.server, exported.folder);
      await using mounts = await startKeeperMounts();
      sequence.prepare(exported.on);
      const mounted = await mounts.mount({ ...source, host: proxy.host, port: proxy.port }, { connections: 1 });
      const lostReply = proxy.loseReply(sequence.procedure);
      const commandResult = run(...split(sequence.command(mounted.on)));
      await lostReply;
      await proxy.down();
      sequence.changeByOther(exported.on);
      await proxy.up();
      await commandResult;
      sequence.verify(exported.on);
      // The keeper has closed its copy of the connection by then.
      expect(new Set(proxy.ports).size).toBe(1);
      await run('umount', [mounted.at]);
    });
  },
);

const split = ([program, ...args]: readonly [string, ...string[]]): [string, string[]] => [program, args];
