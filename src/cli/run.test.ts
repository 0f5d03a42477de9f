import type { ServerResponse } from 'node:http';
import { Writable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import type { UpOptions } from './io.ts';
import { page, run, scriptedServer, store, volume } from './scripted-server.ts';

describe('output', () => {
  test('a list is a table with aligned columns, sizes and ages for people', async () => {
    await using server = await scriptedServer({
      'GET /v1/volumes': page(
        volume('local', 'demo', { labels: { team: 'blue' } }),
        volume('data', 'a-long-name', { bytes: null }),
      ),
    });
    expect(await run(server, ['volume', 'list'])).toEqual({
      status: 0,
      stderr: '',
      stdout: [
        'VOLUME            SIZE  ACCESS      LABELS     AGE',
        'local/demo        1GiB  filesystem  team=blue  3d',
        'data/a-long-name  -     filesystem  -          3d',
        '',
      ].join('\n'),
    });
  });

  test('--json prints whole objects of all pages, before or after the command', async () => {
    const [one, two] = [volume('local', 'one'), volume('local', 'two')];
    await using server = await scriptedServer({
      'GET /v1/volumes?store=local&label=a%3Db&label=c%3Dd': [200, { items: [one], next: 'local/one' }],
      'GET /v1/volumes?store=local&label=a%3Db&label=c%3Dd&after=local%2Fone': page(two),
    });
    const words = ['volume', 'list', '--store', 'local', '--label', 'a=b', '--label', 'c=d'];
    for (const argv of [
      ['--json', ...words],
      [...words, '--json'],
    ]) {
      const { stdout, status } = await run(server, argv);
      expect(JSON.parse(stdout)).toEqual([one, two]);
      expect(status).toBe(0);
    }
  });

  test('a server that repeats a page is an error', async () => {
    await using server = await scriptedServer({ 'GET /v1/volumes': [200, { items: [], next: 'again' }] });
    const { status, stderr } = await run(server, ['volume', 'list']);
    expect(stderr).toContain('is not a valid Stowage response (the same page twice)');
    expect(status).toBe(1);
  });

  test('--quiet prints ids, and an empty list nothing', async () => {
    await using server = await scriptedServer({
      'GET /v1/volumes': page(volume('local', 'x')),
      'GET /v1/stores': page(store('local')),
      'GET /v1/trash': page(),
    });
    expect((await run(server, ['volume', 'list', '-q'])).stdout).toMatch(/^sv1-\S+\n$/);
    expect((await run(server, ['store', 'list', '--quiet'])).stdout).toBe('local\n');
    expect(await run(server, ['volume', 'trash', 'list', '--quiet'])).toEqual({ status: 0, stdout: '', stderr: '' });
    expect((await run(server, ['volume', 'trash', 'list'])).stderr).toBe('the trash is empty\n');
  });

  test.each([[[]], [['--json']], [['--quiet']]])(
    'a list names the stores that cannot be used, with %j',
    async (how) => {
      const kept = { deletedAt: '2026-01-02T03:04:05Z', expiresAt: '2026-01-09T03:04:05Z' };
      const down = (unanswered: readonly string[], next: string | null = null): readonly [number, object] => [
        200,
        { items: [{ ...volume('data', 'x'), ...kept }], next, unanswered },
      ];
      await using server = await scriptedServer({
        'GET /v1/volumes': down(['data'], 'data/x'),
        'GET /v1/volumes?after=data%2Fx': down(['data', 'a\x1b[31m']),
        'GET /v1/trash': down(['data']),
      });
      const volumes = await run(server, ['volume', 'list', ...how]);
      expect(volumes.stderr).toBe(
        'note: store data is unavailable; its volumes are shown as last seen (see: stowage store show data)\n' +
          'note: store a\\u001b[31m is unavailable; its volumes are shown as last seen (see: stowage store show a\\u001b[31m)\n',
      );
      expect(volumes.stdout).not.toContain('note');
      const trash = await run(server, ['volume', 'trash', 'list', ...how]);
      expect(trash.stderr).toBe(
        'note: store data is unavailable; its trash is not shown (see: stowage store show data)\n',
      );
      expect([volumes.status, trash.status]).toEqual([0, 0]);
    },
  );

  test('the trash is not reported as empty while a store cannot be used', async () => {
    await using server = await scriptedServer({
      'GET /v1/trash': [200, { items: [], next: null, unanswered: ['data'] }],
    });
    expect((await run(server, ['volume', 'trash', 'list'])).stderr).toBe(
      'no volume of the other stores is in the trash\nnote: store data is unavailable; its trash is not shown (see: stowage store show data)\n',
    );
  });

  test('on a terminal, a slow answer shows a message until it comes', async () => {
    const asked = Promise.withResolvers<ServerResponse>();
    await using server = await scriptedServer({
      'GET /v1/stores': (_seen, answer) => {
        asked.resolve(answer);
        return undefined;
      },
    });
    let written = '';
    const terminal = new Writable({
      write: (chunk, _encoding, done) => {
        written += String(chunk);
        done();
        // The server answers only after the message is shown.
        if (String(chunk).includes('waiting')) void asked.promise.then((answer) => answer.end('{"items":[]}'));
      },
    });
    const stderr = Object.assign(terminal, { isTTY: true });
    expect(await run(server, ['store', 'list', '--json'], { stderr })).toMatchObject({ status: 0, stdout: '[]\n' });
    expect(written).toBe('\r\x1b[2Kwaiting for the server…\r\x1b[2K');
  });

  test('control characters and direction marks in names are escaped, in JSON too', async () => {
    const name = 'a\x1b[31m\u202eb\x9b';
    await using server = await scriptedServer({ 'GET /v1/volumes': page(volume('local', name)) });
    const people = await run(server, ['volume', 'list']);
    expect(people.stdout).toContain('local/a\\u001b[31m\\u202eb\\u009b');
    const programs = await run(server, ['volume', 'list', '--json']);
    expect(programs.stdout).not.toMatch(/[\x1b\x9b\u202e]/);
    expect(JSON.parse(programs.stdout)).toMatchObject([{ name }]);
  });

  test('colours are for terminals, and not with NO_COLOR, --no-color or a dumb terminal', async () => {
    await using server = await scriptedServer({ 'GET /v1/stores': page(store('local')) });
    const colored = async (argv: string[], how: { isTTY: boolean; env?: object }): Promise<boolean> =>
      (
        await run(server, argv, { isTTY: how.isTTY, env: { STOWAGE_SOCKET: server.socket, ...how.env } })
      ).stdout.includes('\x1b[');
    expect(await colored(['store', 'list'], { isTTY: true })).toBe(true);
    expect(await colored(['store', 'list'], { isTTY: false })).toBe(false);
    expect(await colored(['store', 'list', '--no-color'], { isTTY: true })).toBe(false);
    expect(await colored(['store', 'list'], { isTTY: true, env: { NO_COLOR: '1' } })).toBe(false);
    expect(await colored(['store', 'list'], { isTTY: true, env: { TERM: 'dumb' } })).toBe(false);
  });

  test('a closed pipe ends the program silently, and a full disk is an error', async () => {
    await using server = await scriptedServer({ 'GET /v1/volumes': page(volume('local', 'x')) });
    const failing = (code: string): Writable =>
      new Writable({ write: (_chunk, _encoding, done) => done(Object.assign(new Error(code), { code })) });
    expect(await run(server, ['volume', 'list'], { stdout: failing('EPIPE') })).toMatchObject({
      status: 0,
      stderr: '',
    });
    expect(await run(server, ['volume', 'list'], { stdout: failing('ENOSPC') })).toMatchObject({
      status: 1,
      stderr: 'error: cannot write the output (ENOSPC)\n',
    });
  });
});

test('up gets its options and the socket from the same sources as the clients', async () => {
  const given: UpOptions[] = [];
  const up = async (options: UpOptions): Promise<number> => {
    given.push(options);
    return 7;
  };
  const argv = ['up', '--state', '/s', '--listen', 'none', '--log-level', 'debug'];
  expect((await run(undefined, argv, { injected: { up }, env: { STOWAGE_SOCKET: '/e' } })).status).toBe(7);
  expect((await run(undefined, [...argv, '--socket', '/f'], { injected: { up } })).status).toBe(7);
  expect(given).toEqual([
    { state: '/s', listen: 'none', logLevel: 'debug', socket: '/e' },
    { state: '/s', listen: 'none', logLevel: 'debug', socket: '/f' },
  ]);
});

test('node runs the server without a default store and TCP port', async () => {
  const given: UpOptions[] = [];
  const up = async (options: UpOptions): Promise<number> => {
    given.push(options);
    return 0;
  };
  const engines = ['--plugins', '/p', '--docker-socket', '/d', '--podman-socket', 'none'];
  expect((await run(undefined, ['node', '--state', '/s', ...engines], { injected: { up } })).status).toBe(0);
  expect((await run(undefined, ['up', ...engines], { injected: { up } })).status).toBe(0);
  const same = { plugins: '/p', dockerSocket: '/d', podmanSocket: 'none' };
  expect(given).toEqual([{ ...same, state: '/s', bare: true }, same]);
  for (const option of ['--listen', '--nfs'])
    expect(await run(undefined, ['node', option, '1'], { injected: { up } })).toMatchObject({ status: 2 });
});
