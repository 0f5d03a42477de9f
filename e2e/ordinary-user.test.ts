import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chown, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { childrenOf, commandTree } from '#cli/command-tree.ts';
import { createProgram } from '#cli/program.ts';
import { type ErrorCode, errorCodes } from '#core/error-codes.ts';
import { needs } from '#testbed/needs.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { program, type Stowage, startStowage } from './stowage.ts';

/** As users type them: `volume create`. A command with subcommands only shows its help. */
const everyCommand = commandTree(createProgram({ version: '', program: 'stowage' }, () => async () => undefined))
  .filter(({ command }) => childrenOf(command).length === 0)
  .map(({ path }) => path.join(' '));

/** Runs every command in the order of the documentation. Each one uses the result of the previous ones. */
describe.skipIf(needs('linux', 'ordinary-user'))('a user who is not root', () => {
  const done = new Set(['up', 'node', 'controller']);
  let home: string;
  let command: readonly [string, ...string[]];
  let server: Stowage;

  /** A folder that the user owns. */
  async function folder(...names: readonly string[]): Promise<string> {
    const path = join(home, ...names);
    await mkdir(path);
    if (process.getuid?.() === 0) await chown(path, ordinaryUid, ordinaryUid);
    return path;
  }

  async function ends(
    status: number,
    words: readonly string[],
  ): Promise<{ readonly out: string; readonly err: string }> {
    const name = everyCommand.find((one) => `${words.join(' ')} `.startsWith(`${one} `));
    if (name !== undefined) done.add(name);
    const { status: found, stdout, stderr } = await server.cli(...words);
    expect(found, `stowage ${words.join(' ')}\n${stdout}${stderr}`).toBe(status);
    return { out: stdout, err: stderr };
  }
  const says = async (...words: readonly string[]): Promise<string> => (await ends(0, words)).out;
  const json = async (...words: readonly string[]): Promise<unknown> => JSON.parse(await says(...words, '--json'));
  const refuses = async (code: ErrorCode, ...words: readonly string[]): Promise<string> =>
    (await ends(errorCodes[code].exit, words)).err;

  beforeAll(async () => {
    home = await realpath(await mkdtemp(join(tmpdir(), 'stowage-user-')));
    if (process.getuid?.() === 0) await chown(home, ordinaryUid, ordinaryUid);
    const [file, args] = asOrdinaryUser([program]);
    // Not the folders of the user who runs the tests.
    const xdg = ['CACHE', 'CONFIG', 'DATA', 'STATE'].map((name) => `XDG_${name}_HOME=${join(home, name)}`);
    command = ['env', '-u', 'XDG_RUNTIME_DIR', `HOME=${home}`, ...xdg, file, ...args];
    server = await startStowage({ state: join(home, 'state'), command });
  });
  afterAll(async () => {
    await server.stop();
    await rm(home, { recursive: true });
  });

  test('can do everything but mount, and learns what mounting needs', { timeout: 300_000 }, async () => {
    await theMachine();
    await stores();
    await volumes();
    await theTrash();
    await mounts();
    await operations();
    await events();
    await tokens();
    await serving();
    expect(await says('store', 'remove', 'data')).toBe('removed store data; its volumes were not deleted\n');
    expect([...done].sort()).toEqual([...everyCommand].sort());
  });

  async function serving(): Promise<void> {
    const [file, ...args] = command;
    const place = ['--port', '0', '--state', join(home, 'served')];
    const child = spawn(file, [...args, '--json', 'nfs', 'serve', await folder('exported'), ...place], {
      timeout: 60_000,
    });
    const ended = once(child, 'close');
    const [line] = (await once(child.stdout, 'data')) as [Buffer];
    expect(JSON.parse(line.toString())).toMatchObject({ port: expect.any(Number) });
    child.kill('SIGTERM');
    expect((await ended)[0]).toBe(0);
    done.add('nfs serve');
    expect(await refuses('unavailable', 'keeper', '--check', 'ready')).toContain('no keeper is in charge');
  }

  async function theMachine(): Promise<void> {
    expect(await json('status')).toMatchObject({
      ready: true,
      defaultStore: 'local',
      mounting: { able: false, why: 'this process lacks CAP_SYS_ADMIN' },
    });
    expect((await ends(1, ['doctor'])).out).toContain('missing  permission to mount: this process lacks CAP_SYS_ADMIN');
    expect(await says('completion', 'bash')).toContain('complete -F _stowage stowage');
    expect(await says('help', 'exit-codes')).toContain('unsupported');
  }

  async function stores(): Promise<void> {
    const root = await folder('data');
    await writeFile(join(await folder('data', 'photos'), 'file'), 'kept');
    expect(await says('store', 'add', 'data', `local://${root}?onDelete=archive`)).toBe('data\n');
    expect(await json('store', 'list')).toMatchObject([{ name: 'local', default: true }, { name: 'data' }]);
    expect(await says('store', 'show', 'data')).toContain(`local://${root}`);
    expect(await says('store', 'check', 'data')).toContain('ok       writable');
    expect(await json('store', 'orphans', 'data')).toMatchObject([{ name: 'photos' }]);
    expect(await says('store', 'adopt', 'data')).toBe('adopted photos (data without a record)\n');
    expect(await says('store', 'default', 'data')).toBe('data is now the default store\n');
    await says('store', 'default', 'local');
  }

  async function volumes(): Promise<void> {
    expect(await says('volume', 'create', 'demo', '--size', '1M', '--label', 'team=blue')).toBe('local/demo\n');
    expect(await says('volume', 'expand', 'demo', '2M')).toBe('expanded local/demo to 2MiB\n');
    expect(await says('volume', 'rename', 'demo', 'kept')).toBe('renamed local/kept (was demo)\n');
    expect(await says('volume', 'label', 'kept', 'stage=test', 'team-')).toBe('labelled local/kept\n');
    expect(await refuses('unsupported', 'volume', 'enforce', 'kept')).toContain('enforce');
    const release = ['volume', 'release', 'kept', '--host', 'another', '--yes'];
    expect(await refuses('unsupported', ...release)).toContain('no other host can');
    await writeFile(join(home, 'state', 'stores', 'local', 'kept', 'file'), 'four');
    expect(await json('volume', 'usage', 'kept')).toMatchObject({ files: '1' });
    expect(await json('volume', 'show', 'kept')).toMatchObject({
      store: 'local',
      bytes: '2097152',
      labels: { stage: 'test' },
      condition: 'ok',
    });
    expect(await json('volume', 'list')).toMatchObject([{ name: 'photos' }, { name: 'kept' }]);
  }

  async function theTrash(): Promise<void> {
    expect(await says('volume', 'delete', 'local/kept')).toBe('deleted local/kept\n');
    expect(await says('volume', 'delete', 'data/photos')).toMatch(/^moved data\/photos to the trash until /);
    expect(await json('volume', 'trash', 'list')).toMatchObject([{ store: 'data', name: 'photos' }]);
    expect(await says('volume', 'restore', 'photos', '--name', 'pictures')).toBe('restored data/pictures\n');
    await says('volume', 'delete', 'pictures');
    expect(await says('volume', 'trash', 'purge', 'pictures')).toBe('permanently deleted data/pictures\n');
    expect(await json('volume', 'trash', 'list')).toEqual([]);
  }

  async function mounts(): Promise<void> {
    await says('volume', 'create', 'demo');
    const target = join(home, 'target');
    expect(await refuses('unsupported', 'mount', 'demo', target)).toBe(
      'error: volumes cannot be mounted here: this process lacks CAP_SYS_ADMIN\n' +
        'action: Run Stowage as root; in a container, add the capability: docker run --cap-add SYS_ADMIN\n',
    );
    expect(await json('client', 'status')).toEqual([]);
    expect(await says('client', 'upgrade')).toBe('no data path is running: nothing to replace\n');
    expect(await refuses('not-found', 'unmount', target)).toContain(`no volume is mounted at ${target}`);
    expect(await json('mounts')).toEqual([]);
  }

  async function operations(): Promise<void> {
    const [last] = (await json('operations', 'list')) as { id: string; kind: string }[];
    expect(last?.kind).toBe('volume.create');
    expect(await json('operations', 'show', last?.id ?? '')).toMatchObject({ subject: 'local/demo', state: 'done' });
    await says('operations', 'cancel', last?.id ?? '');
    expect(await refuses('not-found', 'operations', 'cancel', 'op1-none')).toContain('op1-none');
  }

  /** This command runs until it gets a signal. */
  async function events(): Promise<void> {
    const [file, ...args] = command;
    const socket = join(home, 'state', 'stowage.sock');
    const child = spawn(file, [...args, '--socket', socket, 'events', '--json'], { timeout: 60_000 });
    const ended = once(child, 'close');
    let heard = '';
    child.stdout.on('data', (chunk: Buffer) => {
      heard += String(chunk);
    });
    // The stream has only Events that happen after it was opened.
    for (let n = 0; child.exitCode === null && !/volume.changed.*\n/.test(heard); n++) {
      await server.api('PATCH', '/v1/volumes/demo', { labels: { n: String(n) } });
    }
    child.kill('SIGINT');
    expect((await ended)[0]).toBe(errorCodes.canceled.exit);
    expect(heard).toMatch(/^\{"type":"volume.changed",.*"name":"demo"/m);
    done.add('events');
  }

  async function tokens(): Promise<void> {
    expect(await says('token', 'create', 'ci', '--role', 'user', '--expires', '1d')).toMatch(/^stowage_\S+\n$/);
    const [token] = (await json('token', 'list')) as { id: string; name: string }[];
    expect(token?.name).toBe('ci');
    expect(await says('token', 'revoke', token?.id ?? '')).toBe(`revoked token ${token?.id}\n`);
    expect(await json('token', 'list')).toEqual([]);
  }
});
