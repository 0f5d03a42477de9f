import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chown, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { childrenOf, commandTree } from '#cli/command-tree.ts';
import { createProgram } from '#cli/program.ts';
import { type ErrorCode, errorCodes } from '#core/error-codes.ts';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { program, type Stowage, startStowage } from './stowage.ts';

/** The commands as users type them, such as `volume create`. A command with subcommands only shows its help. */
const everyCommand = commandTree(createProgram({ version: '', program: 'stowage' }, () => async () => undefined))
  .filter(({ command }) => childrenOf(command).length === 0)
  .map(({ path }) => path.join(' '));

/** Runs every command in the order of the documentation. Each command uses the results of earlier ones. */
describe.skipIf(lacks('linux', 'ordinary-user'))('a user who is not root', () => {
  const testedCommands = new Set(['up', 'node', 'controller']);
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

  async function expectStatus(
    status: number,
    words: readonly string[],
  ): Promise<{ readonly out: string; readonly err: string }> {
    const name = everyCommand.find((command) => `${words.join(' ')} `.startsWith(`${command} `));
    if (name !== undefined) testedCommands.add(name);
    const { status: found, stdout, stderr } = await server.cli(...words);
    expect(found, `stowage ${words.join(' ')}\n${stdout}${stderr}`).toBe(status);
    return { out: stdout, err: stderr };
  }
  const outputOf = async (...words: readonly string[]): Promise<string> => (await expectStatus(0, words)).out;
  const json = async (...words: readonly string[]): Promise<unknown> => JSON.parse(await outputOf(...words, '--json'));
  const errorOf = async (code: ErrorCode, ...words: readonly string[]): Promise<string> =>
    (await expectStatus(errorCodes[code].exit, words)).err;

  beforeAll(async () => {
    home = await realpath(await mkdtemp(join(tmpdir(), 'stowage-user-')));
    if (process.getuid?.() === 0) await chown(home, ordinaryUid, ordinaryUid);
    const [file, args] = asOrdinaryUser([program]);
    // Hides the folders of the user who runs the tests.
    const xdg = ['CACHE', 'CONFIG', 'DATA', 'STATE'].map((name) => `XDG_${name}_HOME=${join(home, name)}`);
    command = ['env', '-u', 'XDG_RUNTIME_DIR', `HOME=${home}`, ...xdg, file, ...args];
    server = await startStowage({ state: join(home, 'state'), command });
  });
  afterAll(async () => {
    await server.stop();
    await rm(home, { recursive: true });
  });

  test('can run every command except mounts, and the error of a mount says what mounting needs', {
    timeout: 300_000,
  }, async () => {
    await checkMachineCommands();
    await checkStoreCommands();
    await checkVolumeCommands();
    await checkTrashCommands();
    await checkMountCommands();
    await checkOperationCommands();
    await checkEventStream();
    await checkTokenCommands();
    await checkNfsServe();
    expect(await outputOf('store', 'remove', 'data')).toBe('removed store data; its volumes were not deleted\n');
    expect([...testedCommands].sort()).toEqual([...everyCommand].sort());
  });

  async function checkNfsServe(): Promise<void> {
    const [file, ...args] = command;
    const serveArgs = ['--port', '0', '--state', join(home, 'served')];
    const child = spawn(file, [...args, '--json', 'nfs', 'serve', await folder('exported'), ...serveArgs], {
      timeout: 60_000,
    });
    const ended = once(child, 'close');
    const [line] = (await once(child.stdout, 'data')) as [Buffer];
    expect(JSON.parse(line.toString())).toMatchObject({ port: expect.any(Number) });
    child.kill('SIGTERM');
    expect((await ended)[0]).toBe(0);
    testedCommands.add('nfs serve');
    expect(await errorOf('unavailable', 'keeper', '--check', 'ready')).toContain('no keeper is in charge');
  }

  async function checkMachineCommands(): Promise<void> {
    expect(await json('status')).toMatchObject({
      ready: true,
      defaultStore: 'local',
      mounting: { able: false, why: 'this process lacks CAP_SYS_ADMIN' },
    });
    expect((await expectStatus(1, ['doctor'])).out).toContain(
      'missing  permission to mount: this process lacks CAP_SYS_ADMIN',
    );
    expect(await outputOf('completion', 'bash')).toContain('complete -F _stowage stowage');
    expect(await outputOf('help', 'exit-codes')).toContain('unsupported');
  }

  async function checkStoreCommands(): Promise<void> {
    const root = await folder('data');
    await writeFile(join(await folder('data', 'photos'), 'file'), 'kept');
    expect(await outputOf('store', 'add', 'data', `local://${root}?onDelete=archive`)).toBe('data\n');
    expect(await json('store', 'list')).toMatchObject([{ name: 'local', default: true }, { name: 'data' }]);
    expect(await outputOf('store', 'show', 'data')).toContain(`local://${root}`);
    expect(await outputOf('store', 'check', 'data')).toContain('ok       writable');
    expect(await json('store', 'orphans', 'data')).toMatchObject([{ name: 'photos' }]);
    expect(await outputOf('store', 'adopt', 'data')).toBe('adopted photos (data without a record)\n');
    expect(await outputOf('store', 'default', 'data')).toBe('data is now the default store\n');
    await outputOf('store', 'default', 'local');
  }

  async function checkVolumeCommands(): Promise<void> {
    expect(await outputOf('volume', 'create', 'demo', '--size', '1M', '--label', 'team=blue')).toBe('local/demo\n');
    expect(await outputOf('volume', 'expand', 'demo', '2M')).toBe('expanded local/demo to 2MiB\n');
    expect(await outputOf('volume', 'rename', 'demo', 'kept')).toBe('renamed local/kept (was demo)\n');
    expect(await outputOf('volume', 'label', 'kept', 'stage=test', 'team-')).toBe('labelled local/kept\n');
    expect(await errorOf('unsupported', 'volume', 'enforce', 'kept')).toContain('enforce');
    const release = ['volume', 'release', 'kept', '--host', 'another', '--yes'];
    expect(await errorOf('unsupported', ...release)).toContain('no other host can');
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

  async function checkTrashCommands(): Promise<void> {
    expect(await outputOf('volume', 'delete', 'local/kept')).toBe('deleted local/kept\n');
    expect(await outputOf('volume', 'delete', 'data/photos')).toMatch(/^moved data\/photos to the trash until /);
    expect(await json('volume', 'trash', 'list')).toMatchObject([{ store: 'data', name: 'photos' }]);
    expect(await outputOf('volume', 'restore', 'photos', '--name', 'pictures')).toBe('restored data/pictures\n');
    await outputOf('volume', 'delete', 'pictures');
    expect(await outputOf('volume', 'trash', 'purge', 'pictures')).toBe('permanently deleted data/pictures\n');
    expect(await json('volume', 'trash', 'list')).toEqual([]);
  }

  async function checkMountCommands(): Promise<void> {
    await outputOf('volume', 'create', 'demo');
    const target = join(home, 'target');
    expect(await errorOf('unsupported', 'mount', 'demo', target)).toBe(
      'error: volumes cannot be mounted here: this process lacks CAP_SYS_ADMIN\n' +
        'action: Run Stowage as root; in a container, add the capability: docker run --cap-add SYS_ADMIN\n',
    );
    expect(await json('client', 'status')).toEqual([]);
    expect(await outputOf('client', 'upgrade')).toBe('no data path is running: nothing to replace\n');
    expect(await errorOf('not-found', 'unmount', target)).toContain(`no volume is mounted at ${target}`);
    expect(await json('mounts')).toEqual([]);
  }

  async function checkOperationCommands(): Promise<void> {
    const [last] = (await json('operations', 'list')) as { id: string; kind: string }[];
    expect(last?.kind).toBe('volume.create');
    expect(await json('operations', 'show', last?.id ?? '')).toMatchObject({ subject: 'local/demo', state: 'done' });
    await outputOf('operations', 'cancel', last?.id ?? '');
    expect(await errorOf('not-found', 'operations', 'cancel', 'op1-none')).toContain('op1-none');
  }

  /** This command runs until it receives a signal. */
  async function checkEventStream(): Promise<void> {
    const [file, ...args] = command;
    const socket = join(home, 'state', 'stowage.sock');
    const child = spawn(file, [...args, '--socket', socket, 'events', '--json'], { timeout: 60_000 });
    const ended = once(child, 'close');
    let received = '';
    child.stdout.on('data', (chunk: Buffer) => {
      received += String(chunk);
    });
    // The stream sends only Events that happen after it was opened.
    for (let n = 0; child.exitCode === null && !/volume.changed.*\n/.test(received); n++) {
      await server.api('PATCH', '/v1/volumes/demo', { labels: { n: String(n) } });
    }
    child.kill('SIGINT');
    expect((await ended)[0]).toBe(errorCodes.canceled.exit);
    expect(received).toMatch(/^\{"type":"volume.changed",.*"name":"demo"/m);
    testedCommands.add('events');
  }

  async function checkTokenCommands(): Promise<void> {
    expect(await outputOf('token', 'create', 'ci', '--role', 'user', '--expires', '1d')).toMatch(/^stowage_\S+\n$/);
    const [token] = (await json('token', 'list')) as { id: string; name: string }[];
    expect(token?.name).toBe('ci');
    expect(await outputOf('token', 'revoke', token?.id ?? '')).toBe(`revoked token ${token?.id}\n`);
    expect(await json('token', 'list')).toEqual([]);
  }
});
