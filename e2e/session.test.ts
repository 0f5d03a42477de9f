import { mkdir, mkdtemp, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { program, run, type Stowage, startStowage } from './stowage.ts';

interface StartedServer {
  readonly server: Stowage;
  readonly top: string;
  readonly socket: string;
}

async function startServer(
  command: (socket: string) => readonly string[] = () => [program],
  folder = 'stowage-session-',
): Promise<StartedServer> {
  const top = await realpath(await mkdtemp(join(tmpdir(), folder)));
  const socket = join(top, 'state', 'stowage.sock');
  const server = await startStowage({ state: join(top, 'state'), command: command(socket) });
  onTestFinished(async () => {
    await server.stop();
    await rm(top, { recursive: true });
  });
  return { server, top, socket };
}

async function outputOf(result: ReturnType<Stowage['cli']>): Promise<string> {
  const { status, stdout, stderr } = await result;
  expect(status, stderr).toBe(0);
  return stdout;
}

/** The size that `df -h` shows for a path. */
async function df(path: string): Promise<string> {
  const { stdout } = await run('df', ['-h', '--output=size', path]);
  return stdout.split('\n')[1]?.trim() ?? '';
}

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'xfs', 'jq'))('in the session of the README,', () => {
  test('an image volume has its size, holds data, and grows while it is mounted', async () => {
    const { server, top } = await startServer();
    const images = join(top, 'images');
    const mountPoint = join(top, 'x');
    await mkdir(images);
    await outputOf(server.cli('store', 'add', 'images', `local://${images}?layout=image&onDelete=archive`));
    const json = await outputOf(server.cli('volume', 'create', 'images/x', '--size', '1G', '--json'));
    await writeFile(join(top, 'x.json'), json);
    expect((await run('jq', ['-r', '.bytes, .enforced', join(top, 'x.json')])).stdout).toBe('1073741824\ntrue\n');
    await outputOf(server.cli('mount', 'x', mountPoint));
    await writeFile(join(mountPoint, 'file'), 'kept');
    expect(await df(mountPoint)).toBe('1.0G');
    await outputOf(server.cli('volume', 'expand', 'x', '2G'));
    expect(await df(mountPoint)).toBe('2.0G');
    expect(await readFile(join(mountPoint, 'file'), 'utf8')).toBe('kept');
    await outputOf(server.cli('unmount', mountPoint));
    expect(await outputOf(server.cli('volume', 'delete', 'x'))).toContain('trash');
    await outputOf(server.cli('volume', 'restore', 'images/x'));
    await outputOf(server.cli('mount', 'x', mountPoint, '--read-only'));
    expect(await readFile(join(mountPoint, 'file'), 'utf8')).toBe('kept');
    await expect(writeFile(join(mountPoint, 'other'), '')).rejects.toMatchObject({ code: 'EROFS' });
    await outputOf(server.cli('unmount', mountPoint));
  });

  test('a volume of 300 MiB does not take 400 MiB', async () => {
    const { server, top } = await startServer();
    const mountPoint = join(top, 'small');
    await mkdir(join(top, 'images'));
    await outputOf(server.cli('store', 'add', 'images', `local://${join(top, 'images')}?layout=image`));
    await outputOf(server.cli('volume', 'create', 'small', '--store', 'images', '--size', '300M'));
    await outputOf(server.cli('mount', 'small', mountPoint));
    await expect(writeFile(join(mountPoint, 'big'), Buffer.alloc(400 * 1024 * 1024))).rejects.toMatchObject({
      code: 'ENOSPC',
    });
    await outputOf(server.cli('unmount', mountPoint));
  });

  test('a block volume is a device of exactly its size', async () => {
    const { server, top } = await startServer();
    const mountPoint = join(top, 'disk');
    await mkdir(join(top, 'images'));
    await outputOf(server.cli('store', 'add', 'images', `local://${join(top, 'images')}?layout=image`));
    await outputOf(server.cli('volume', 'create', 'raw', '--store', 'images', '--size', '32M', '--block'));
    await outputOf(server.cli('mount', 'raw', mountPoint));
    expect((await run('blockdev', ['--getsize64', mountPoint])).stdout.trim()).toBe(String(32 * 1024 * 1024));
    await outputOf(server.cli('volume', 'expand', 'raw', '64M'));
    expect((await run('blockdev', ['--getsize64', mountPoint])).stdout.trim()).toBe(String(64 * 1024 * 1024));
    await outputOf(server.cli('unmount', mountPoint));
  });
});

describe.skipIf(lacks('linux'))('a first start', () => {
  test('prints where it listens, and which store is the default', async () => {
    const { server, top } = await startServer();
    expect(server.output().split('\n')[0]).toMatch(/^stowage ready in \d+\.\d s$/);
    expect(server.output()).toContain(`  socket   ${join(top, 'state', 'stowage.sock')}`);
    expect(server.output()).toContain(`  default  local  local://${join(top, 'state', 'stores', 'local')}`);
  });

  test('prints commands to try next that work as printed, even if the socket’s path contains spaces and quotes', async () => {
    const { server } = await startServer(undefined, "stowage's session-");
    await expectToWork(suggestedCommands(server));
    expect(await outputOf(server.cli('volume', 'list'))).toContain('local/photos');
  });

  test('prints commands without a socket option if the socket is the default one', async () => {
    const { server, socket } = await startServer((socketPath) => [
      'env',
      '-u',
      'STOWAGE_URL',
      `STOWAGE_SOCKET=${socketPath}`,
      program,
    ]);
    expect(suggestedCommands(server).join('\n')).not.toContain('--socket');
    await expectToWork(suggestedCommands(server), `STOWAGE_SOCKET=${socket}`);
  });
});

const suggestedCommands = (server: Stowage): string[] => {
  const lines = server.output().split('\n');
  return lines.slice(lines.indexOf('Try next:') + 1).filter((line) => line.startsWith('  '));
};

/** Runs the lines in a shell without variables that name a server, except the given ones. */
async function expectToWork(lines: readonly string[], ...env: readonly string[]): Promise<void> {
  expect(lines).toHaveLength(3);
  for (const line of lines) {
    const { status, stderr } = await run('env', [
      '-u',
      'STOWAGE_SOCKET',
      '-u',
      'STOWAGE_URL',
      ...env,
      'sh',
      '-c',
      line,
    ]);
    // The doctor command exits with 1 if this machine lacks something.
    const maxStatus = line.endsWith(' doctor') ? 1 : 0;
    expect(status, `${line}\n${stderr}`).toBeLessThanOrEqual(maxStatus);
    expect(stderr).toBe('');
  }
}

describe.skipIf(lacks('linux'))('help', () => {
  test('shows how to delete everything with a label, in a way that also works when no volume has the label', async () => {
    const { server, socket } = await startServer();
    const [, line = ''] =
      /^ +(stowage volume list .*\| .*)$/m.exec(await outputOf(server.cli('volume', 'list', '--help'))) ?? [];
    const inShell = (): ReturnType<typeof run> => {
      const env = [`PATH=${dirname(program)}:${process.env['PATH']}`, `STOWAGE_SOCKET=${socket}`];
      return run('env', [...env, 'sh', '-c', line]);
    };
    expect(await inShell()).toEqual({ status: 0, stdout: '', stderr: '' });
    await outputOf(server.cli('volume', 'create', 'kept'));
    await outputOf(server.cli('volume', 'create', 'one', '--label', 'temporary=yes'));
    await outputOf(server.cli('volume', 'create', 'two', '--label', 'temporary=yes'));
    expect(await inShell()).toEqual({ status: 0, stdout: 'deleted local/one\ndeleted local/two\n', stderr: '' });
    expect(await outputOf(server.cli('volume', 'list'))).toMatch(/^VOLUME.*\nlocal\/kept .*\n$/);
  });

  test('lists as many operations as the help of --limit says', async () => {
    const { server } = await startServer();
    const [, maxLimit = ''] =
      /--limit <n> .* up to (\d+)/.exec(await outputOf(server.cli('operations', 'list', '--help'))) ?? [];
    await outputOf(server.cli('volume', 'create', 'x'));
    expect(await outputOf(server.cli('operations', 'list', '--limit', maxLimit))).toContain('volume.create');
  });
});

describe.skipIf(lacks('linux'))('existing directories', () => {
  test('become volumes in place, one by one or all at once', async () => {
    const { server, top } = await startServer();
    for (const name of ['one', 'two', 'three']) await mkdir(join(top, 'data', name), { recursive: true });
    await writeFile(join(top, 'data', 'two', 'file'), 'kept');
    await outputOf(server.cli('store', 'add', 'data', `local://${join(top, 'data')}`));
    const orphans = JSON.parse(await outputOf(server.cli('store', 'orphans', 'data', '--json'))) as {
      action: string;
    }[];
    expect(orphans).toHaveLength(3);
    // The command that the report recommends works as printed.
    const [, advisedCommand = ''] = /with: stowage ([^;]*)/.exec(orphans[0]?.action ?? '') ?? [];
    expect(await outputOf(server.cli(...advisedCommand.split(' ')))).toBe('adopted one (data without a record)\n');
    await outputOf(server.cli('store', 'adopt', 'data'));
    const volumes = JSON.parse(await outputOf(server.cli('volume', 'list', '--store', 'data', '--json'))) as {
      name: string;
    }[];
    expect(volumes.map(({ name }) => name)).toEqual(['one', 'three', 'two']);
    expect(await readFile(join(top, 'data', 'two', 'file'), 'utf8')).toBe('kept');
    expect(JSON.parse(await outputOf(server.cli('store', 'orphans', 'data', '--json')))).toEqual([]);
  });
});

describe.skipIf(lacks('linux'))('a system that is not Linux', () => {
  test('runs every command except mounts, and reports why it can’t mount', async () => {
    // Replaces process.platform only. The kernel is still Linux.
    const fakePlatform = "data:text/javascript,Object.defineProperty(process,'platform',{value:'darwin'})";
    const main = join(program, '../../src/app/main.ts');
    const { server, top } = await startServer(() => [
      process.execPath,
      '--import',
      fakePlatform,
      '--disable-warning=ExperimentalWarning',
      main,
    ]);
    expect(server.output()).toContain('volumes cannot be mounted: this is darwin, and mounting needs Linux');
    await outputOf(server.cli('volume', 'create', 'photos'));
    await outputOf(server.cli('volume', 'rename', 'photos', 'pictures'));
    const refused = await server.cli('mount', 'pictures', join(top, 'target'));
    expect(refused.status).toBe(7);
    expect(refused.stderr).toContain('error: volumes cannot be mounted here: this is darwin, and mounting needs Linux');
    expect((await server.cli('doctor')).stdout).toContain('volumes cannot be mounted');
    await outputOf(server.cli('volume', 'delete', 'pictures'));
  });
});

describe.skipIf(lacks('linux', 'node26'))('Node 26', () => {
  test('runs the server and the command line from the sources', async () => {
    const main = join(program, '../../src/app/main.ts');
    const { server } = await startServer(() => [toolPath('node26'), '--disable-warning=ExperimentalWarning', main]);
    await outputOf(server.cli('volume', 'create', 'photos', '--label', 'made=by-26'));
    expect(JSON.parse(await outputOf(server.cli('volume', 'list', '--json')))).toMatchObject([
      { name: 'photos', labels: { made: 'by-26' } },
    ]);
    await outputOf(server.cli('volume', 'delete', 'photos'));
  });
});
