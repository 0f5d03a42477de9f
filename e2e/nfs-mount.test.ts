import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { chmod, mkdtemp, readFile, realpath, rm } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { ganeshaFolders, portsOf } from '#testing/ganesha-folders.ts';
import { type Stowage, startStowage } from './stowage.ts';

const run = promisify(execFile);
const patience = { timeout: 20_000, interval: 50 };

interface DataPath {
  readonly state: string;
  readonly mounts: number;
  readonly pid: number;
  readonly standby: boolean;
  readonly takeovers: number;
}

interface Place {
  readonly top: string;
  readonly state: string;
}

/** A folder that everybody may pass, as the usual ones: so the data path runs as nobody. */
async function place(): Promise<Place> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'st-mnt-')));
  await chmod(top, 0o755);
  onTestFinished(async () => {
    for (const at of mountsIn(top)) await run('umount', ['--force', '--lazy', at]).catch(() => undefined);
    for (const pid of keeperPids(top)) process.kill(pid, 'SIGKILL');
    await rm(top, { recursive: true, force: true });
  });
  return { top, state: join(top, 's') };
}

const mountsIn = (top: string): readonly string[] =>
  readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .flatMap((line) => (line.split(' ')[1]?.startsWith(`${top}/`) === true ? (line.split(' ')[1] ?? '') : []))
    .toReversed();

/** Keepers say in which folder they are; what they started ends with them, or by itself. */
function keeperPids(top: string): readonly number[] {
  const logs = [join(top, 'r', 'keepers', 'host', 'log'), join(top, 's', 'keepers', 'host', 'log')];
  const told = logs.flatMap((log) => (existsSync(log) ? [readFileSync(log, 'utf8')] : []));
  const all = told.flatMap((text) =>
    [...text.matchAll(/"(?:keeper|dataPath|pid)":(\d+)/g)].map(([, pid]) => Number(pid)),
  );
  return [...new Set(all)].filter((pid) => pid > 1 && isOurs(pid));
}

function isOurs(pid: number): boolean {
  try {
    return /^stowage (keeper|data path)/.test(readFileSync(`/proc/${pid}/cmdline`, 'utf8'));
  } catch {
    return false;
  }
}

async function started({ top, state }: Place): Promise<Stowage> {
  const server = await startStowage({ state, socket: join(top, 'r', 'stowage.sock') });
  onTestFinished(() => server.stop());
  return server;
}

async function dataPath(server: Stowage): Promise<DataPath | undefined> {
  const { body } = await server.api('GET', '/v1/client');
  return (body['items'] as readonly DataPath[])[0];
}

const serving = (server: Stowage): Promise<DataPath> =>
  expect
    .poll(() => dataPath(server), patience)
    .toMatchObject({ state: expect.stringMatching(/serving|failing/), standby: true })
    .then(async () => (await dataPath(server)) as DataPath);

async function succeeds(server: Stowage, ...args: string[]): Promise<string> {
  const { status, stdout, stderr } = await server.cli(...args);
  expect(status, `${args.join(' ')}: ${stderr}`).toBe(0);
  return stdout;
}

/** What the server says of itself, from now on. */
function follow(socketPath: string): () => string {
  let said = '';
  const asking = request({ socketPath, path: '/v1/events', headers: { accept: 'text/event-stream' } }, (answer) => {
    answer.on('data', (chunk: Buffer) => {
      said += String(chunk);
    });
    answer.on('error', () => undefined);
  });
  asking.on('error', () => undefined).end();
  onTestFinished(() => void asking.destroy());
  return () => said;
}

/** Writes a line a second part, with fsync, and says which; ends with the first error. */
function writer(file: string): { readonly ended: Promise<string>; readonly count: () => number; stop(): void } {
  const program = `
    const { openSync, writeSync, fsyncSync } = require('node:fs');
    const fd = openSync(process.argv[1], 'a');
    for (let i = 1; ; i++) { writeSync(fd, i + '\\n'); fsyncSync(fd); console.log(i); }`;
  const child = spawn(process.execPath, ['-e', program, file], { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  let last = 0;
  child.stdout.on('data', (chunk: Buffer) => {
    last = Number(String(chunk).trim().split('\n').at(-1));
  });
  child.stderr.on('data', (chunk: Buffer) => {
    said += String(chunk);
  });
  const ended = once(child, 'close').then(() => said);
  onTestFinished(() => void child.kill('SIGKILL'));
  return { ended, count: () => last, stop: () => void child.kill('SIGKILL') };
}

describe.skipIf(needs('linux', 'root', 'mount', 'fuse', 'ganesha'))('volumes of an NFS store, mounted', () => {
  const ganesha = ganeshaFolders('nfs-mount');

  async function withVolume(
    more = '',
  ): Promise<Place & { readonly server: Stowage; readonly at: string; exported: string }> {
    const where = await place();
    const server = await started(where);
    const { folder, uri } = ganesha.fresh();
    const { port, mountport } = portsOf(ganesha.server);
    await succeeds(server, 'store', 'add', 'silver', `${uri}?port=${port}&mountport=${mountport}${more}`);
    await succeeds(server, 'volume', 'create', 'silver/photos');
    const at = join(where.top, 'mnt');
    await succeeds(server, 'mount', 'silver/photos', at);
    return { ...where, server, at, exported: join(folder, 'photos') };
  }

  test('by nobody who has any rights, and gone without a trace', { timeout: 60_000 }, async () => {
    const { top, server, at, exported } = await withVolume();
    await run('sh', ['-c', 'echo hello > "$1/file"', 'sh', at]);
    expect(await readFile(join(exported, 'file'), 'utf8')).toBe('hello\n');
    const { pid } = await serving(server);
    const status = await readFile(`/proc/${pid}/status`, 'utf8');
    expect(status).toMatch(/^Uid:\t65534\t65534\t65534\t65534$/m);
    expect(status).toMatch(/^CapEff:\t0{16}$/m);
    expect(status).toMatch(/^CapBnd:\t0{16}$/m);
    expect(status).toMatch(/^NoNewPrivs:\t1$/m);
    expect(status).toMatch(/^Groups:\t\s*$/m);
    expect(await succeeds(server, 'volume', 'show', 'silver/photos')).toContain(`path ${at}`);
    expect((await server.cli('volume', 'delete', 'silver/photos')).stderr).toContain('it is used by');
    await succeeds(server, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
    expect(await dataPath(server)).toMatchObject({ mounts: 0 });
    expect(await succeeds(server, 'volume', 'show', 'silver/photos')).toMatch(/^hosts +-$/m);
    await succeeds(server, 'volume', 'delete', 'silver/photos');
    const keepers = keeperPids(top);
    expect(keepers.length).toBeGreaterThan(0);
    await server.stop();
    await expect.poll(() => keepers.filter(isOurs), patience).toEqual([]);
  });

  test('an application writes on, whatever is killed or replaced', { timeout: 90_000 }, async () => {
    const { top, state, server, at, exported } = await withVolume();
    const app = writer(join(at, 'log'));
    const goesOn = async (): Promise<void> => {
      const before = app.count();
      await expect.poll(() => app.count(), patience).toBeGreaterThan(before + 10);
    };
    await goesOn();
    for (let round = 1; round <= 3; round++) {
      const { pid, takeovers } = await serving(server);
      process.kill(pid, 'SIGKILL');
      await expect.poll(async () => (await dataPath(server))?.takeovers, patience).toBeGreaterThan(takeovers);
      await goesOn();
      const said = await succeeds(server, 'client', 'upgrade');
      expect(said).toContain('replaced 1 data path');
      expect((await serving(server)).pid).not.toBe(pid);
      await goesOn();
    }
    // The server itself, without a word; the next one finds everything as it was.
    server.signal('SIGKILL');
    await server.ended();
    await goesOn();
    const next = await started({ top, state });
    expect(await dataPath(next)).toMatchObject({ mounts: 1 });
    await goesOn();
    expect((await next.cli('unmount', at)).stderr).toContain('it is in use');
    app.stop();
    expect(await app.ended).toBe('');
    const lines = (await readFile(join(exported, 'log'), 'utf8')).trim().split('\n').map(Number);
    expect(lines).toEqual(lines.map((_, i) => i + 1));
    await succeeds(next, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
  });

  test('keeper and data path killed together: mounted anew at the same place, and it is told', {
    timeout: 60_000,
  }, async () => {
    const { top, server, at } = await withVolume();
    await run('sh', ['-c', 'echo kept > "$1/file"', 'sh', at]);
    await serving(server);
    const told = follow(join(top, 'r', 'stowage.sock'));
    await expect.poll(told, patience).toContain('hello');
    for (const pid of keeperPids(top)) process.kill(pid, 'SIGKILL');
    const killedAt = performance.now();
    const looked = async (): Promise<string> =>
      (await run('cat', [join(at, 'file')], { timeout: 5_000 }).catch(({ stderr }) => ({ stdout: String(stderr) })))
        .stdout;
    await expect.poll(looked, patience).toBe('kept\n');
    expect(performance.now() - killedAt).toBeLessThan(15_000);
    await expect.poll(told, patience).toContain('mount.repaired');
    await succeeds(server, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
  });

  test('a server that is silent holds up no command, and force frees who hangs on it', {
    timeout: 90_000,
  }, async () => {
    const { top, server, at } = await withVolume('&hard');
    const app = writer(join(at, 'log'));
    await expect.poll(() => app.count(), patience).toBeGreaterThan(3);
    await ganesha.server.freeze();
    try {
      await delay(1_500);
      for (const args of [['status'], ['mounts'], ['volume', 'list'], ['client', 'status']]) {
        const since = performance.now();
        await server.cli(...args);
        expect(performance.now() - since, args.join(' ')).toBeLessThan(12_000);
      }
      const since = performance.now();
      expect((await server.cli('unmount', at)).stderr).toContain('in use');
      await succeeds(server, 'unmount', at, '--force');
      expect(performance.now() - since).toBeLessThan(20_000);
      expect(await app.ended).toMatch(/ECONNABORTED|ENOTCONN|EIO|ESHUTDOWN|EINTR/);
      expect(mountsIn(top)).toEqual([]);
    } finally {
      ganesha.server.thaw();
    }
    await expect
      .poll(async () => (await server.cli('volume', 'show', 'silver/photos')).stdout, {
        timeout: 60_000,
        interval: 500,
      })
      .toMatch(/^hosts +-$/m);
  });
});
