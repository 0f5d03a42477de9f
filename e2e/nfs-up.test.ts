import { once } from 'node:events';
import { chown, mkdir, mkdtemp, readdir, readFile, realpath, rm, stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { freePorts } from '#testbed/daemon.ts';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { program, run, type Stowage, startStowage } from './stowage.ts';

const pollOptions = { timeout: 40_000, interval: 100 };

async function newState(): Promise<string> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-nfs-up-')));
  onTestFinished(() => rm(top, { recursive: true }));
  return join(top, 'state');
}

async function startWithNfs(state: string, ...more: readonly string[]): Promise<Stowage> {
  const server = await startStowage({ state, options: ['--nfs', ...more] });
  onTestFinished(() => server.stop());
  return server;
}

async function outputOf(result: ReturnType<Stowage['cli']>): Promise<string> {
  const { status, stdout, stderr } = await result;
  expect(status, stderr).toBe(0);
  return stdout;
}

/** The pid of the NFS server of a state folder, from the system's process list. */
async function nfsServerPid(state: string): Promise<number | undefined> {
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (command.includes(`\0nfs\0serve\0${state}/stores/nfs\0`)) return Number(pid);
  }
  return undefined;
}

async function waitForOtherServer(pid: number | undefined, state: string): Promise<number> {
  return await vi.waitFor(async () => {
    const found = await nfsServerPid(state);
    if (found === undefined || found === pid) throw new Error('no other server yet');
    return found;
  }, pollOptions);
}

const portIn = (server: Stowage): number =>
  Number(/^ {2}nfs +network +nfs:\/\/127\.0\.0\.1\/export\?port=(\d+)&mountport=\1 /m.exec(server.output())?.[1]);
const volumeNames = async (server: Stowage): Promise<string[]> => {
  const { body } = await server.api('GET', '/v1/volumes');
  return (body['items'] as { name: string }[]).map(({ name }) => name);
};

/** Uses the API, because the CLI starts slowly. */
async function create(server: Stowage, store: string, name: string): Promise<void> {
  const { status, body } = await server.api('POST', '/v1/volumes', { store, name });
  expect(status, JSON.stringify(body)).toBe(201);
}

describe.skipIf(lacks('linux'))('stowage up --nfs', () => {
  test('provides a network store that works at once, and is the same after a restart', async () => {
    const state = await newState();
    const first = await startWithNfs(state);
    expect(first.output()).toContain(`(files in ${state}/stores/nfs)`);
    expect(first.output()).toContain('  default  local ');
    expect(await outputOf(first.cli('volume', 'create', 'network/x', '--label', 'team=blue'))).toBe('network/x\n');
    await outputOf(first.cli('volume', 'create', 'network/y'));
    expect((await stat(join(state, 'stores', 'nfs', 'x'))).isDirectory()).toBe(true);
    await outputOf(first.cli('volume', 'delete', 'network/y'));
    expect(await outputOf(first.cli('store', 'check', 'network'))).toMatch(/^ok +write: /m);
    await first.stop();
    expect(first.output()).not.toContain('"level"');
    expect(await nfsServerPid(state)).toBeUndefined();
    const second = await startWithNfs(state);
    expect(portIn(second)).toBe(portIn(first));
    expect(await volumeNames(second)).toEqual(['x']);
    await second.stop();
    const withoutNfs = await startStowage({ state });
    onTestFinished(() => withoutNfs.stop());
    expect(await outputOf(withoutNfs.cli('store', 'list', '--quiet'))).toBe('local\n');
  });

  test('prints a command to try next that works', async () => {
    const server = await startWithNfs(await newState());
    const [, line = ''] = /^ {2}(.* volume create network\/\S+)$/m.exec(server.output()) ?? [];
    expect(await run('sh', ['-c', line])).toEqual({ status: 0, stdout: 'network/shared\n', stderr: '' });
  });

  test('restarts a killed NFS server, and its store keeps working', async () => {
    const state = await newState();
    const server = await startWithNfs(state);
    await create(server, 'network', 'before');
    const pid = await waitForOtherServer(undefined, state);
    process.kill(pid, 'SIGKILL');
    await waitForOtherServer(pid, state);
    // Until the new server listens, the store reports that the server can't be reached.
    await vi.waitFor(() => create(server, 'network', 'after'), pollOptions);
    expect(await volumeNames(server)).toEqual(['after', 'before']);
    expect(server.output()).toMatch(/"level":"warn".*it exited with SIGKILL.*"msg":"restarting the NFS server"/);
  });

  test('ends its NFS server when Stowage is killed, and the next start continues with the same volumes', async () => {
    const state = await newState();
    const first = await startWithNfs(state);
    await create(first, 'network', 'x');
    expect(await nfsServerPid(state)).toBeGreaterThan(0);
    first.signal('SIGKILL');
    await first.ended();
    const second = await startWithNfs(state);
    expect(portIn(second)).toBe(portIn(first));
    await create(second, 'network', 'y');
    expect(await volumeNames(second)).toEqual(['x', 'y']);
    second.signal('SIGKILL');
    await second.ended();
    await vi.waitFor(async () => expect(await nfsServerPid(state)).toBeUndefined(), pollOptions);
  });

  test('ends on Ctrl-C at a terminal, with the NFS server last', async () => {
    const state = await newState();
    const server = await startStowage({ state, options: ['--nfs'], command: ['setsid', program] });
    onTestFinished(() => server.stop());
    // The NFS server is in another process group, so it doesn't receive the SIGINT.
    const pid = await nfsServerPid(state);
    const [, group] = /\) \S \d+ (\d+) /.exec(await readFile(`/proc/${pid}/stat`, 'utf8')) ?? [];
    expect(Number(group)).toBe(pid);
    process.kill(-server.pid, 'SIGINT');
    expect(await server.ended()).toBe(0);
    expect(server.output()).toMatch(/\nstowage stopping\nstowage stopped\n$/);
    expect(await nfsServerPid(state)).toBeUndefined();
  });

  test('disables only its own store while its port is in use', async () => {
    const state = await newState();
    const [port = 0] = await freePorts('127.0.0.1', 1);
    const other = createServer().listen(port, '127.0.0.1');
    await once(other, 'listening');
    const server = await startWithNfs(state, String(port));
    expect(server.output()).toContain(
      `  warning  store network: the embedded NFS server is not running: cannot listen on 127.0.0.1:${port}: the port is in use. Stop the program that uses it, or choose another port: stowage up --nfs PORT`,
    );
    expect(server.output()).toContain('"msg":"restarting the NFS server"');
    await create(server, 'local', 'x');
    const refused = await server.cli('volume', 'create', 'network/x');
    expect(refused.status).toBe(10);
    expect(refused.stderr).toContain('the port is in use');
    expect((await server.cli('store', 'check', 'network')).stdout).toMatch(/^failed +server: .*the port is in use$/m);
    await other[Symbol.asyncDispose]();
    await vi.waitFor(async () => create(server, 'network', 'x'), pollOptions);
  }, 90_000);

  test('refuses to add a store in or above the directory of its volumes, unless the new store is read-only', async () => {
    const state = await newState();
    const server = await startWithNfs(state);
    await create(server, 'network', 'x');
    const port = portIn(server);
    const nfsUri = (path: string, more = ''): string => `nfs://127.0.0.1${path}?port=${port}&mountport=${port}${more}`;
    for (const [uri, reason] of [
      [`local://${state}/stores/nfs`, 'store-overlaps'],
      [`local://${state}/stores/nfs/x`, 'store-overlaps'],
      [`local://${state}/stores`, 'store-overlaps'],
      [nfsUri('/export/x'), 'store-overlaps'],
      [nfsUri('/export/'), 'store-place-taken'],
      // Another name of the same server.
      [nfsUri('/export').replace('127.0.0.1', 'localhost'), 'store-place-taken'],
    ] as const) {
      const { status, body } = await server.api('POST', '/v1/stores', { name: 'other', uri });
      expect({ uri, reason: body['reason'] }).toEqual({ uri, reason });
      expect(status).toBeGreaterThanOrEqual(400);
    }
    await outputOf(server.cli('store', 'add', 'reader', nfsUri('/export', '&readOnly=true')));
  });

  test.skipIf(lacks('ordinary-user'))('works without root', async () => {
    const state = await newState();
    const top = join(state, '..');
    await mkdir(join(top, 'home'));
    if (process.getuid?.() === 0)
      for (const path of [top, join(top, 'home')]) await chown(path, ordinaryUid, ordinaryUid);
    const [file, args] = asOrdinaryUser(['env', `HOME=${top}/home`, program]);
    const server = await startStowage({ state, options: ['--nfs'], command: [file, ...args] });
    onTestFinished(() => server.stop());
    await create(server, 'network', 'x');
    expect((await stat(join(state, 'stores', 'nfs', 'x'))).uid).not.toBe(0);
  });
});
