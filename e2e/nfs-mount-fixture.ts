import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, onTestFinished } from 'vitest';
import { isErrno } from '#base/errno.ts';
import { type Stowage, startStowage } from './stowage.ts';

const run = promisify(execFile);
export const pollOptions = { timeout: 20_000, interval: 50 };

export interface DataPath {
  readonly state: string;
  readonly mounts: number;
  readonly pid: number;
  readonly standby: boolean;
  readonly takeovers: number;
}

export interface ServerFolders {
  readonly top: string;
  readonly state: string;
  readonly socket: string;
}

/** Other users may enter the folder, because the data path runs as nobody. */
export async function createServerFolders(): Promise<ServerFolders> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'st-mnt-')));
  await chmod(top, 0o755);
  onTestFinished(async () => {
    for (const path of mountsIn(top)) await run('umount', ['--force', '--lazy', path]).catch(() => undefined);
    killKeepers(top);
    await rm(top, { recursive: true, force: true });
  });
  return { top, state: join(top, 's'), socket: join(top, 'r', 'stowage.sock') };
}

export const mountsIn = (top: string): readonly string[] =>
  readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .flatMap((line) => (line.split(' ')[1]?.startsWith(`${top}/`) === true ? (line.split(' ')[1] ?? '') : []))
    .toReversed();

/** Also kills keepers that are about to end. */
export function killKeepers(top: string): void {
  for (const pid of keeperPids(top)) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch (thrown) {
      if (!isErrno(thrown, 'ESRCH')) throw thrown;
    }
  }
}

/** The pids in the keepers' logs. The processes that a keeper started end with the keeper, or by themselves. */
export function keeperPids(top: string): readonly number[] {
  const folder = join(top, 'r', 'keepers');
  const logs = existsSync(folder) ? readdirSync(folder).map((name) => join(folder, name, 'log')) : [];
  const contents = logs.flatMap((log) => (existsSync(log) ? [readFileSync(log, 'utf8')] : []));
  const pids = contents.flatMap((text) =>
    [...text.matchAll(/"(?:keeper|dataPath|pid)":(\d+)/g)].map(([, pid]) => Number(pid)),
  );
  return [...new Set(pids)].filter((pid) => pid > 1 && isStowageProcess(pid));
}

export function isStowageProcess(pid: number): boolean {
  try {
    return /^stowage (keeper|data path)/.test(readFileSync(`/proc/${pid}/cmdline`, 'utf8'));
  } catch {
    return false;
  }
}

export async function startTestServer({ state, socket }: ServerFolders): Promise<Stowage> {
  const server = await startStowage({ state, socket });
  onTestFinished(() => server.stop());
  return server;
}

export async function dataPath(server: Stowage): Promise<DataPath | undefined> {
  const { body } = await server.api('GET', '/v1/client');
  return (body['items'] as readonly DataPath[])[0];
}

export const waitUntilServing = (server: Stowage): Promise<DataPath> =>
  expect
    .poll(() => dataPath(server), pollOptions)
    .toMatchObject({ state: expect.stringMatching(/serving|failing/), standby: true })
    .then(async () => (await dataPath(server)) as DataPath);

export async function runCli(server: Stowage, ...args: string[]): Promise<string> {
  const { status, stdout, stderr } = await server.cli(...args);
  expect(status, `${args.join(' ')}: ${stderr}`).toBe(0);
  return stdout;
}

/** The returned function returns the Events that the server has sent since this call. */
export function followEvents(socketPath: string): () => string {
  let events = '';
  const subscription = request(
    { socketPath, path: '/v1/events', headers: { accept: 'text/event-stream' } },
    (answer) => {
      answer.on('data', (chunk: Buffer) => {
        events += String(chunk);
      });
      answer.on('error', () => undefined);
    },
  );
  subscription.on('error', () => undefined).end();
  onTestFinished(() => void subscription.destroy());
  return () => events;
}

/** Writes numbered lines with fsync and prints each number. Ends at the first error. */
export function startWriter(file: string): {
  readonly ended: Promise<string>;
  readonly count: () => number;
  stop(): void;
} {
  // With synchronous writes: Node would defer asynchronous ones to the event loop, which never runs here.
  const program = `
    const { openSync, writeSync, fsyncSync } = require('node:fs');
    const fd = openSync(process.argv[1], 'a');
    for (let i = 1; ; i++) { writeSync(fd, i + '\\n'); fsyncSync(fd); writeSync(1, i + '\\n'); }`;
  const child = spawn(process.execPath, ['-e', program, file], { stdio: ['ignore', 'pipe', 'pipe'] });
  let errorOutput = '';
  let last = 0;
  child.stdout.on('data', (chunk: Buffer) => {
    last = Number(String(chunk).trim().split('\n').at(-1));
  });
  child.stderr.on('data', (chunk: Buffer) => {
    errorOutput += String(chunk);
  });
  const ended = once(child, 'close').then(() => errorOutput);
  onTestFinished(() => void child.kill('SIGKILL'));
  return { ended, count: () => last, stop: () => void child.kill('SIGKILL') };
}
