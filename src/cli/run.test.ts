import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import type { UpOptions } from './io.ts';
import { operation, problem, run, scriptedServer, store, volume } from './scripted-server.ts';

const page = (...items: readonly object[]): readonly [number, object] => [200, { items, next: null }];

describe('what is printed', () => {
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

  test('a server that gives the same page again and again does not keep us', async () => {
    await using server = await scriptedServer({ 'GET /v1/volumes': [200, { items: [], next: 'again' }] });
    const { status, stderr } = await run(server, ['volume', 'list']);
    expect(stderr).toContain('is not one of a Stowage server (the same page twice)');
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
    'stores that did not answer are named beside the list, with %j',
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
        'note: store data does not answer; its volumes are shown as last seen\n' +
          'note: store a\\u001b[31m does not answer; its volumes are shown as last seen\n',
      );
      expect(volumes.stdout).not.toContain('note');
      const trash = await run(server, ['volume', 'trash', 'list', ...how]);
      expect(trash.stderr).toBe('note: store data does not answer; its trash is not shown\n');
      expect([volumes.status, trash.status]).toEqual([0, 0]);
    },
  );

  test('a trash is not called empty while a store does not answer', async () => {
    await using server = await scriptedServer({
      'GET /v1/trash': [200, { items: [], next: null, unanswered: ['data'] }],
    });
    expect((await run(server, ['volume', 'trash', 'list'])).stderr).toBe(
      'nothing of the other stores is in the trash\nnote: store data does not answer; its trash is not shown\n',
    );
  });

  test('on a terminal, an answer that is long in coming is waited for with a word, which is taken back', async () => {
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
        // Not before: the answer comes because the line is there.
        if (String(chunk).includes('waiting')) void asked.promise.then((answer) => answer.end('{"items":[]}'));
      },
    });
    const stderr = Object.assign(terminal, { isTTY: true });
    expect(await run(server, ['store', 'list', '--json'], { stderr })).toMatchObject({ status: 0, stdout: '[]\n' });
    expect(written).toBe('\r\x1b[2Kwaiting for the answer…\r\x1b[2K');
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

  test('a reader that leaves ends it silently; a full disk does not', async () => {
    await using server = await scriptedServer({ 'GET /v1/volumes': page(volume('local', 'x')) });
    const failing = (code: string): Writable =>
      new Writable({ write: (_chunk, _encoding, done) => done(Object.assign(new Error(code), { code })) });
    expect(await run(server, ['volume', 'list'], { stdout: failing('EPIPE') })).toMatchObject({
      status: 0,
      stderr: '',
    });
    expect(await run(server, ['volume', 'list'], { stdout: failing('ENOSPC') })).toMatchObject({
      status: 1,
      stderr: 'error: the output could not be written (ENOSPC)\n',
    });
  });
});

describe('what is asked', () => {
  test('create sends what was given and prints the name, or the id with --quiet', async () => {
    const made = volume('images', 'db') as { id: string };
    await using server = await scriptedServer({ 'POST /v1/volumes': [201, made] });
    const argv = [
      'volume',
      'create',
      'db',
      '--store',
      'images',
      '--size',
      '1.5G',
      '--block',
      '--label',
      'a=b',
      '--label',
      'c=d=e',
    ];
    expect(await run(server, argv)).toEqual({ status: 0, stdout: 'images/db\n', stderr: '' });
    expect(server.seen[0]?.body).toEqual({
      name: 'db',
      store: 'images',
      bytes: '1610612736',
      access: 'block',
      labels: { a: 'b', c: 'd=e' },
    });
    expect(server.seen[0]?.headers['prefer']).toBeUndefined();
    expect((await run(server, [...argv, '--quiet'])).stdout).toBe(`${made.id}\n`);
    expect((await run(server, ['volume', 'create', 'images/db'])).stdout).toBe('images/db\n');
    expect(server.seen.at(-1)?.body).toEqual({ name: 'db', store: 'images' });
    const keys = server.seen.map((seen) => seen.headers['idempotency-key']);
    expect(new Set(keys).size).toBe(3);
    for (const key of keys) expect(key).toMatch(/^[0-9a-f-]{36}$/);
  });

  test('store/name becomes store..name, an id stays an id, and the revision goes along', async () => {
    const answer = [200, volume('local', 'new', { bytes: '2147483648' })] as const;
    await using server = await scriptedServer({
      'POST /v1/volumes/local..old/rename': answer,
      'POST /v1/volumes/new/expand': answer,
      'PATCH /v1/volumes/sv1-00000000-0000-4000-8000-000000000001': answer,
    });
    expect(await run(server, ['volume', 'rename', 'local/old', 'new'])).toMatchObject({
      status: 0,
      stdout: 'renamed local/new (was local/old)\n',
    });
    expect((await run(server, ['volume', 'expand', 'new', '2G', '--if-revision', '7'])).stdout).toBe(
      'expanded local/new to 2GiB\n',
    );
    const id = 'sv1-00000000-0000-4000-8000-000000000001';
    expect((await run(server, ['volume', 'label', id, 'team=blue', 'stage-'])).stdout).toBe('labelled local/new\n');
    expect(server.seen.map(({ body }) => body)).toEqual([
      { name: 'new' },
      { bytes: '2147483648' },
      { labels: { team: 'blue', stage: null } },
    ]);
    expect(server.seen.map(({ headers }) => headers['if-match'])).toEqual([undefined, '"7"', undefined]);
  });

  test.each([
    [['volume', 'create', 'x', '--size', '1X'], "error: '1X' is not a size"],
    [['volume', 'show', 'a/b/c'], "error: 'a/b/c' names no volume"],
    [['volume', 'show', 'a/..'], "error: 'a/..' names no volume"],
    [['store', 'show', '..'], "error: '..' names no store"],
    [['volume', 'label', 'x', 'nonsense'], "error: 'nonsense' is not a label"],
    [['volume', 'create', 'a/x', '--store', 'b'], 'error: two stores were given: a and b'],
    [['volume', 'delete', 'a', 'b', '--if-revision', '1'], 'error: a revision was given for several volumes'],
    [['mount', 'x', ''], 'error: the path is empty'],
    [['mount', 'x', '', '--url', 'http://127.0.0.1:1'], 'error: the path is empty'],
    [['unmount', ''], 'error: the path is empty'],
    [['unmount', 'x', ''], 'error: the path is empty'],
    [['unmount', '', '/mnt/x'], "error: '' names no volume"],
    [['operations', '--limit', '1001'], "error: '1001' is not a number that --limit takes"],
    [['operations', '--limit', '0'], "error: '0' is not a number that --limit takes"],
    [['status', '--timeout', 'soon'], "error: 'soon' is not a duration"],
    [['status', '--url', 'ftp://x'], 'error: the address of the server is not an http or https URL'],
    [['status', '--url', 'http://u:p@x'], 'error: the address of the server contains a user name or password'],
    [
      ['mount', 'x', 'relative', '--url', 'http://127.0.0.1:1'],
      'error: the path relative is relative, and the server has another working folder',
    ],
  ])('%j is refused before anything is asked', async (argv, line) => {
    await using server = await scriptedServer({});
    const { status, stdout, stderr } = await run(
      undefined,
      argv,
      argv.includes('--url') ? {} : { env: { STOWAGE_SOCKET: server.socket } },
    );
    expect(stderr.split('\n')[0]).toBe(line);
    expect(stderr.split('\n')[1]).toMatch(/^action: .+/);
    expect({ status, stdout, asked: server.seen }).toEqual({ status: 2, stdout: '', asked: [] });
  });

  test('mount and unmount by path, and unmount by volume and path', async () => {
    const mounted = {
      volume: 'sv1-00000000-0000-4000-8000-000000000001',
      name: 'local/demo',
      target: '/mnt/demo',
      readOnly: true,
      user: { kind: 'path', name: '/mnt/demo', node: 'here' },
      since: new Date().toISOString(),
      mounted: true,
    };
    await using server = await scriptedServer({
      'POST /v1/volumes/demo/mount': [200, mounted],
      'GET /v1/mounts': page(mounted),
      'POST /v1/volumes/sv1-00000000-0000-4000-8000-000000000001/unmount': [204],
      'POST /v1/volumes/local..demo/unmount': [204],
    });
    expect((await run(server, ['mount', 'demo', '/mnt/../mnt/demo', '--read-only'])).stdout).toBe(
      'mounted local/demo at /mnt/demo, read-only\n',
    );
    expect(server.seen[0]?.body).toEqual({ target: '/mnt/demo', readOnly: true });
    expect((await run(server, ['unmount', '/mnt/demo'])).stdout).toBe('unmounted /mnt/demo\n');
    expect((await run(server, ['unmount', 'local/demo', '/mnt/demo'])).stdout).toBe('unmounted /mnt/demo\n');
    expect(await run(server, ['unmount', '/mnt/other'])).toMatchObject({
      status: 4,
      stderr: 'error: no volume is mounted at /mnt/other\naction: See what is mounted with: stowage mounts\n',
    });
    expect((await run(server, ['mounts'])).stdout.split('\n')[1]).toMatch(
      /^local\/demo {2}\/mnt\/demo {2}ro {4}mounted {2}here {2}\d+s$/,
    );
  });

  test('up gets its options, and the socket from where clients look for it', async () => {
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

  test('doctor asks the server, and looks for itself when there is none; what is missing is status 1', async () => {
    await using server = await scriptedServer({
      'GET /v1/doctor': [200, { items: [{ check: 'fuse', ok: 'yes', detail: 'there', fix: null }] }],
    });
    expect(await run(server, ['doctor'])).toEqual({ status: 0, stdout: 'ok       fuse: there\n', stderr: '' });
    expect(await run({ socket: '/nonexistent/s.sock' }, ['doctor'])).toEqual({
      status: 1,
      stdout: 'missing  fuse: /dev/fuse is missing\n         fix: modprobe fuse\n',
      stderr: 'no Stowage server answers at /nonexistent/s.sock (ENOENT); looking at this machine without it\n',
    });
  });

  test('the secret of a token stands alone on standard output', async () => {
    const made = {
      id: 't1',
      name: 'ci',
      role: 'user',
      stores: ['data'],
      createdAt: '',
      expiresAt: null,
      secret: 's3cret',
    };
    await using server = await scriptedServer({ 'POST /v1/tokens': [201, made] });
    expect(
      await run(server, ['token', 'create', 'ci', '--role', 'user', '--store', 'data', '--expires', '30d']),
    ).toEqual({
      status: 0,
      stdout: 's3cret\n',
      stderr: 'token t1 (ci, user); the secret above is shown only this once\n',
    });
    expect(server.seen[0]?.body).toEqual({ name: 'ci', role: 'user', stores: ['data'], expiresIn: '30d' });
  });
});

describe('stores and operations', () => {
  test('a store is shown with its policy, its limits and what is wrong with it', async () => {
    const problem = { message: 'the folder is gone', action: 'Make it again.' };
    await using server = await scriptedServer({
      'GET /v1/stores/data': [
        200,
        store('data', {
          state: 'unavailable',
          problem,
          onDelete: 'archive',
          maxVolumes: 5,
          maxBytes: '10737418240',
          bytes: '1610612736',
        }),
      ],
    });
    const { stdout } = await run(server, ['store', 'show', 'data']);
    expect(stdout.split('\n')).toEqual([
      'name            data (default)',
      'uri             local:///srv/data',
      'kind            local',
      'comes from      stowage store add',
      'state           unavailable: the folder is gone',
      '                action: Make it again.',
      'read-only       no',
      'enforces sizes  no',
      'access          filesystem',
      'on delete       archive, kept for 7d',
      'volumes         2 of at most 5',
      'size in all     1.5GiB of at most 10GiB',
      'default size    -',
      '',
    ]);
  });

  test('a check that fails says what to do, and is status 1', async () => {
    const steps = [
      { step: 'reachable', ok: true, detail: 'yes', action: null },
      { step: 'writable', ok: false, detail: 'permission denied', action: 'chown it' },
    ];
    await using server = await scriptedServer({
      'POST /v1/stores/data/check': [
        200,
        { store: 'data', ok: false, steps, totalBytes: '2147483648', freeBytes: '1073741824' },
      ],
    });
    expect(await run(server, ['store', 'check', 'data'])).toEqual({
      status: 1,
      stderr: '',
      stdout:
        'ok       reachable: yes\nfailed   writable: permission denied\n         action: chown it\nroom     1GiB free of 2GiB\n',
    });
    expect((await run(server, ['store', 'check', 'data', '--json'])).status).toBe(1);
  });

  test('adopt says what it took in and what it left', async () => {
    const adopted = [
      { name: 'a', id: 'sv1-1', how: 'record' },
      { name: 'b', id: null, how: 'data' },
    ];
    await using server = await scriptedServer({
      'POST /v1/stores/data/adopt': [200, { adopted, skipped: [{ name: 'c d', reason: 'it has a space' }] }],
    });
    expect(await run(server, ['store', 'adopt', 'data', '--dry-run', '--records-only'])).toEqual({
      status: 0,
      stdout: 'would adopt a (has a record)\nwould adopt b (data without a record)\nskipped c d: it has a space\n',
      stderr: 'would adopt 2 volumes, skipped 1\n',
    });
    expect(server.seen[0]?.body).toEqual({ dryRun: true, directories: false });
  });

  test('operations are listed, shown with their error, and cancelled', async () => {
    const error = { code: 'in-use', reason: 'x', message: 'it is in use', action: 'Stop it.' };
    const failed = operation('failed', { error });
    await using server = await scriptedServer({
      'GET /v1/operations?limit=5': page(failed),
      'GET /v1/operations/op1-x': [200, failed],
      'POST /v1/operations/op1-x/cancel': [202, operation('running')],
    });
    expect((await run(server, ['operations', '--limit', '5'])).stdout).toBe(
      'ID     KIND           SUBJECT     STATE   STARTED  DETAIL\n' +
        'op1-x  volume.delete  local/demo  failed  0s ago   it is in use\n',
    );
    expect((await run(server, ['operations', 'show', 'op1-x'])).stdout).toMatch(
      /error {4}it is in use\naction {3}Stop it\.\n$/,
    );
    expect((await run(server, ['operations', 'cancel', 'op1-x'])).stdout).toBe('op1-x was told to stop\n');
    expect((await run(server, ['operations', '--limit', '5000'])).stderr).toContain('from 1 to 1000');
  });
});

describe('deleting', () => {
  test.each([
    ['deleted', null, 'deleted local/demo\n'],
    ['retained', null, 'forgot local/demo; its data are retained on the store\n'],
    ['archived', '2026-01-09T03:04:05Z', 'moved local/demo to the trash until 2026-01-09 03:04 UTC\n'],
  ])('says what became of the volume: %s', async (outcome, expiresAt, said) => {
    const demo = volume('local', 'demo') as { id: string };
    await using server = await scriptedServer({
      'GET /v1/volumes/demo': [200, demo],
      [`DELETE /v1/volumes/${demo.id}`]: [200, { outcome, expiresAt }],
    });
    const { status, stdout } = await run(server, ['volume', 'delete', 'demo']);
    expect(stdout).toBe(said);
    expect(status).toBe(0);
  });

  test('of several, the others go even if one cannot; the first failure is the status', async () => {
    const b = volume('local', 'b') as { id: string };
    await using server = await scriptedServer({
      'GET /v1/volumes/a': problem('not-found', 'there is no volume a', 'List them.', 404),
      'GET /v1/volumes/b': [200, b],
      [`DELETE /v1/volumes/${b.id}`]: [200, { outcome: 'deleted', expiresAt: null }],
      'GET /v1/volumes/c': problem('in-use', 'c is in use', 'Stop it.', 409),
    });
    expect(await run(server, ['volume', 'delete', 'a', 'b', 'c'])).toEqual({
      status: 4,
      stdout: 'deleted local/b\n',
      stderr: 'error: there is no volume a\naction: List them.\nerror: c is in use\naction: Stop it.\n',
    });
  });

  test('restore finds the volume by the name it had, and refuses to guess between two', async () => {
    const trashed = (id: string, name: string): object => ({
      ...volume('local', name),
      id,
      deletedAt: '2026-01-02T03:04:05Z',
      expiresAt: '2026-01-09T03:04:05Z',
    });
    await using server = await scriptedServer({
      'GET /v1/trash': page(trashed('sv1-1', 'one'), trashed('sv1-2', 'two'), trashed('sv1-3', 'two')),
      'POST /v1/trash/sv1-1/restore': [200, volume('local', 'back')],
    });
    expect(await run(server, ['volume', 'restore', 'local/one', '--name', 'back'])).toMatchObject({
      status: 0,
      stdout: 'restored local/back\n',
    });
    expect(server.seen.at(-1)?.body).toEqual({ name: 'back' });
    expect(await run(server, ['volume', 'restore', 'two'])).toMatchObject({
      status: 5,
      stderr:
        'error: 2 volumes called two are in the trash\n' +
        'action: Name one by its id: sv1-2 (local/two, deleted 2026-01-02 03:04 UTC), sv1-3 (local/two, deleted 2026-01-02 03:04 UTC)\n',
    });
    expect((await run(server, ['volume', 'restore', 'none'])).status).toBe(4);
  });

  test('while a store does not answer, nothing is called missing from the trash, nor a name the only one', async () => {
    const one = { ...volume('local', 'one'), deletedAt: '2026-01-02T03:04:05Z', expiresAt: '2026-01-09T03:04:05Z' };
    const { id } = one as unknown as { id: string };
    await using server = await scriptedServer({
      'GET /v1/trash': [200, { items: [one], next: null, unanswered: ['data'] }],
      'GET /v1/trash?store=local': [200, { items: [one], next: null, unanswered: [] }],
      [`DELETE /v1/trash/${id}`]: [204],
    });
    const refused = (ref: string, action: string): object => ({
      status: 10,
      stderr: `error: the trash cannot be searched for ${ref}: store data does not answer\naction: ${action}\n`,
    });
    const later = 'Try again when it is back: stowage store check data';
    const unknown = 'sv1-00000000-0000-4000-8000-ffffffffffff';
    expect(await run(server, ['volume', 'trash', 'purge', 'none'])).toMatchObject(refused('none', later));
    expect(await run(server, ['volume', 'restore', unknown])).toMatchObject(refused(unknown, later));
    expect(await run(server, ['volume', 'trash', 'purge', 'one'])).toMatchObject(
      refused('one', 'Say that you mean this one: local/one'),
    );
    expect(server.seen.map(({ method }) => method)).toEqual(['GET', 'GET', 'GET']);
    expect((await run(server, ['volume', 'trash', 'purge', 'local/one'])).status).toBe(0);
    // What cannot be known of one keeps nobody from the others.
    expect(await run(server, ['volume', 'trash', 'purge', 'none', 'local/one'])).toMatchObject({
      status: 10,
      stdout: 'deleted local/one for good\n',
    });
    expect((await run(server, ['volume', 'trash', 'purge', id])).status).toBe(0);
  });
});

describe('errors', () => {
  test.each([
    ['not-found', 404, 4],
    ['in-use', 409, 6],
    ['exhausted', 507, 9],
    ['from-the-future', 418, 1],
  ])('%s is told with its action and gives its exit status', async (code, http, exit) => {
    await using server = await scriptedServer({ 'GET /v1/status': problem(code, 'it is so', 'Do this.', http) });
    expect(await run(server, ['status'])).toEqual({
      status: exit,
      stdout: '',
      stderr: 'error: it is so\naction: Do this.\n',
    });
    const { stderr } = await run(server, ['status', '--json']);
    expect(JSON.parse(stderr)).toMatchObject({ code, detail: 'it is so', action: 'Do this.', requestId: 'r1' });
  });

  test('an unknown command or option is status 2, with a suggestion', async () => {
    expect(await run(undefined, ['volum', 'list'])).toEqual({
      status: 2,
      stdout: '',
      stderr: "error: unknown command 'volum'\naction: Did you mean volume? See: stowage --help\n",
    });
    expect(await run(undefined, ['volume', 'list', '--stor', 'x'])).toMatchObject({
      status: 2,
      stderr: "error: unknown option '--stor'\naction: Did you mean --store? See: stowage volume list --help\n",
    });
    const { stderr } = await run(undefined, ['volume', 'show', '--json']);
    expect(JSON.parse(stderr)).toMatchObject({ code: 'invalid', detail: "missing required argument 'volume'" });
  });

  test('no server: says so, and how to start one', async () => {
    expect(await run({ socket: '/nonexistent/s.sock' }, ['status'])).toEqual({
      status: 10,
      stdout: '',
      stderr:
        'error: no Stowage server answers at /nonexistent/s.sock (ENOENT)\n' +
        'action: Start one with: stowage up. If it runs elsewhere, say where with --socket or STOWAGE_SOCKET.\n',
    });
  });

  test('a server that does not answer is waited for no longer than --timeout', async () => {
    await using server = await scriptedServer({ 'GET /v1/status': () => undefined });
    const { status, stderr } = await run(server, ['status', '--timeout', '100ms']);
    expect(stderr).toContain(`error: ${server.socket} gave no answer within 0.1 s\n`);
    expect(status).toBe(10);
  });

  test('an answer that is not one of ours is an error, not a crash', async () => {
    await using server = await scriptedServer({
      'GET /v1/status': (_seen, answer) => void answer.end('<html>') as undefined,
      'GET /v1/volumes': [200, { hello: 1 }],
      'GET /v1/stores': [302],
    });
    for (const argv of [['status'], ['volume', 'list'], ['store', 'list']]) {
      const { status, stderr } = await run(server, argv);
      expect(stderr).toContain(`error: the answer from ${server.socket} is not one of a Stowage server`);
      expect(status).toBe(1);
    }
  });

  test('an answer without end is cut off', async () => {
    await using server = await scriptedServer({
      'GET /v1/status': (_seen, answer) => {
        const chunk = Buffer.alloc(1 << 20, 32);
        const more = (): void => {
          while (!answer.destroyed && answer.write(chunk));
          answer.once('drain', more);
        };
        more();
        return undefined;
      },
    });
    const { status, stderr } = await run(server, ['status']);
    expect(stderr).toContain('(the answer is larger than 67108864 bytes)');
    expect(status).toBe(1);
  });
});

describe('a connection that breaks', () => {
  test('is tried again with the same Idempotency-Key, through a restart of the server', async () => {
    let broken = 0;
    const restarted: Promise<void>[] = [];
    await using server = await scriptedServer({
      'POST /v1/volumes': (_seen, answer) => {
        if (broken++ > 0) return [201, volume('local', 'demo')];
        answer.destroy();
        restarted.push(server.stop().then(() => server.listen()));
        return undefined;
      },
    });
    expect(await run(server, ['volume', 'create', 'demo'])).toEqual({ status: 0, stdout: 'local/demo\n', stderr: '' });
    await Promise.all(restarted);
    const keys = server.seen.map(({ headers }) => headers['idempotency-key']);
    expect(keys).toHaveLength(2);
    expect(keys[1]).toBe(keys[0]);
    expect(server.seen[1]?.body).toEqual({ name: 'demo' });
  });

  test('in the middle of the answer counts too, and our own first request at work is waited for', async () => {
    let asked = 0;
    await using server = await scriptedServer({
      'POST /v1/volumes': (_seen, answer) => {
        asked++;
        if (asked === 2) return problem('busy', 'the same request is at work', 'Wait.', 409);
        if (asked === 3) return [201, volume('local', 'demo')];
        answer.writeHead(201, { 'content-length': '1000' });
        answer.write('{', () => answer.destroy());
        return undefined;
      },
    });
    expect(await run(server, ['volume', 'create', 'demo'])).toMatchObject({ status: 0, stdout: 'local/demo\n' });
    expect(new Set(server.seen.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
  });

  test('a server that says it is stopping is waited for, and tried again with the same key', async () => {
    let asked = 0;
    await using server = await scriptedServer({
      'POST /v1/volumes': () => {
        const [status, body] = problem('unavailable', 'Stowage is stopping', 'Try again.', 503);
        return asked++ > 0 ? [201, volume('local', 'demo')] : [status, { ...(body as object), reason: 'stopping' }];
      },
    });
    expect(await run(server, ['volume', 'create', 'demo'])).toEqual({ status: 0, stdout: 'local/demo\n', stderr: '' });
    expect(new Set(server.seen.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
  });

  test('busy without a break before it is an answer like any other', async () => {
    await using server = await scriptedServer({ 'POST /v1/volumes': problem('busy', 'busy', 'Wait.', 409) });
    expect((await run(server, ['volume', 'create', 'demo'])).status).toBe(8);
    expect(server.seen).toHaveLength(1);
  });
});

describe('long work', () => {
  const demo = volume('local', 'demo') as { id: string };
  const before = { 'GET /v1/volumes/demo': [200, demo], 'GET /v1/stores/local': [200, store('local')] } as const;
  const running = (done: number): readonly [number, object] => [
    200,
    operation('running', { progress: { done, total: 1000, unit: 'files' } }),
  ];

  test('on a terminal runs in the background with a bar, which is gone in the end', async () => {
    const begun = Date.now();
    await using server = await scriptedServer({
      ...before,
      [`DELETE /v1/volumes/${demo.id}`]: [202, operation('running')],
      'GET /v1/operations/op1-x': () => (Date.now() - begun < 1000 ? running(250) : [200, operation('done')]),
    });
    const { status, stdout, stderr } = await run(server, ['volume', 'delete', 'demo'], { isTTY: true });
    expect(server.seen.find(({ method }) => method === 'DELETE')?.headers['prefer']).toBe('respond-async');
    expect(stderr).toMatch(/volume\.delete local\/demo {2}\[#{6}-{18}\] {3}25% {2}250\/1000 files {2}0s/);
    expect(stderr.endsWith('\r\x1b[2K')).toBe(true);
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'deleted local/demo\n' });
  });

  test.each([
    [{ isTTY: false }, []],
    [{ isTTY: true }, ['--quiet']],
    [{ isTTY: true }, ['--json']],
  ])('is one plain request without a bar for %j %j', async (how, more) => {
    await using server = await scriptedServer({
      ...before,
      [`DELETE /v1/volumes/${demo.id}`]: [200, { outcome: 'deleted', expiresAt: null }],
    });
    expect(await run(server, ['volume', 'delete', 'demo', ...more], how)).toMatchObject({ status: 0, stderr: '' });
    expect(server.seen.find(({ method }) => method === 'DELETE')?.headers['prefer']).toBeUndefined();
  });

  test('gives what the request would have answered, or asks for it when the server has forgotten', async () => {
    const made = volume('local', 'demo');
    for (const result of [made, null]) {
      await using server = await scriptedServer({
        'POST /v1/volumes': [202, operation('running')],
        'GET /v1/operations/op1-x': [200, operation('done', { result })],
        'GET /v1/volumes/demo': [200, made],
      });
      expect(await run(server, ['volume', 'create', 'demo'], { isTTY: true })).toMatchObject({
        status: 0,
        stdout: 'local/demo\n',
      });
    }
  });

  test('that fails is told as if it had been one request', async () => {
    const error = { code: 'exhausted', reason: 'disk-full', message: 'no room on local', action: 'Make some.' };
    await using server = await scriptedServer({
      'POST /v1/volumes': [202, operation('running')],
      'GET /v1/operations/op1-x': [200, operation('failed', { error })],
    });
    expect(
      await run(server, ['volume', 'create', 'demo'], {
        isTTY: true,
        env: { STOWAGE_SOCKET: server.socket, NO_COLOR: '1' },
      }),
    ).toEqual({
      status: 9,
      stdout: '',
      stderr: 'error: no room on local\naction: Make some.\n',
    });
  });

  test('is followed through a restart of the server', async () => {
    let polls = 0;
    const restarted: Promise<void>[] = [];
    await using server = await scriptedServer({
      'POST /v1/volumes': [202, operation('running')],
      'GET /v1/operations/op1-x': () => {
        if (++polls === 2) {
          restarted.push(server.stop().then(() => server.listen()));
          return undefined;
        }
        return [200, operation(polls < 4 ? 'running' : 'done', { result: volume('local', 'demo') })];
      },
    });
    expect(await run(server, ['volume', 'create', 'demo'], { isTTY: true })).toMatchObject({
      status: 0,
      stdout: 'local/demo\n',
    });
    await Promise.all(restarted);
  });

  test('is cancelled by Ctrl-C, which says so', async () => {
    const interrupt = new AbortController();
    let canceled = false;
    await using server = await scriptedServer({
      ...before,
      [`DELETE /v1/volumes/${demo.id}`]: [202, operation('running')],
      'GET /v1/operations/op1-x': () => {
        if (canceled) return [200, operation('canceled')];
        interrupt.abort();
        return running(1);
      },
      'POST /v1/operations/op1-x/cancel': () => {
        canceled = true;
        return [200, operation('running')];
      },
    });
    const env = { STOWAGE_SOCKET: server.socket, NO_COLOR: '1' };
    expect(
      await run(server, ['volume', 'delete', 'demo', 'other'], { isTTY: true, env, signal: interrupt.signal }),
    ).toEqual({
      status: 130,
      stdout: '',
      stderr:
        'cancelling: volume.delete local/demo\n' +
        'error: volume.delete of local/demo was cancelled\n' +
        'action: Repeat the command when you want it done; repeating is safe.\n',
    });
  });

  test('that was done before the Ctrl-C arrived is a success', async () => {
    const interrupt = new AbortController();
    let polls = 0;
    await using server = await scriptedServer({
      ...before,
      [`DELETE /v1/volumes/${demo.id}`]: [202, operation('running')],
      'GET /v1/operations/op1-x': () => {
        interrupt.abort();
        return polls++ === 0 ? running(1) : [200, operation('done')];
      },
      'POST /v1/operations/op1-x/cancel': problem('conflict', 'it is not running', '', 409),
    });
    expect(await run(server, ['volume', 'delete', 'demo'], { isTTY: true, signal: interrupt.signal })).toEqual({
      status: 0,
      stdout: 'deleted local/demo\n',
      stderr: 'cancelling: volume.delete local/demo\ntoo late to cancel: volume.delete local/demo is done\n',
    });
  });

  test('Ctrl-C during a plain request ends it with status 130', async () => {
    const interrupt = new AbortController();
    await using server = await scriptedServer({
      'POST /v1/volumes': () => void interrupt.abort() as undefined,
      'GET /v1/status': () => void interrupt.abort() as undefined,
    });
    expect(await run(server, ['volume', 'create', 'x'], { signal: interrupt.signal })).toEqual({
      status: 130,
      stdout: '',
      stderr: 'error: interrupted\naction: The server may have done the work all the same; see: stowage operations\n',
    });
  });
});

describe('following', () => {
  const stream =
    (text: string) =>
    (_seen: unknown, answer: ServerResponse): undefined => {
      answer.writeHead(200, { 'content-type': 'text/event-stream' });
      answer.write(text);
    };
  const event = (id: number, type: string, data: object): string =>
    `id: ${id}\nevent: ${type}\ndata: ${JSON.stringify(data)}\n\n`;

  test('events are lines, and go on after a break from where they were', async () => {
    const interrupt = new AbortController();
    const at = '2026-01-02T03:04:05.000Z';
    let connections = 0;
    await using server = await scriptedServer({
      'GET /v1/events': (seen, answer) => {
        if (++connections === 1) {
          stream(
            `: hello\n\n${event(1, 'volume.created', { type: 'volume.created', at, subject: 'local/a', data: {} })}`,
          )(seen, answer);
          setTimeout(() => answer.destroy(), 50);
        } else {
          stream(
            `event: reset\ndata: {}\n\n${event(2, 'volume.deleted', { type: 'volume.deleted', at, subject: 'sv1-b', data: { store: 'local', name: 'b' } })}`,
          )(seen, answer);
          setTimeout(() => interrupt.abort(), 50);
        }
        return undefined;
      },
    });
    expect(await run(server, ['events'], { signal: interrupt.signal })).toEqual({
      status: 130,
      stdout: `${at}  volume.created        local/a\n${at}  volume.deleted        local/b\n`,
      stderr: 'warning: some events were missed\n',
    });
    expect(server.seen.map(({ headers }) => headers['last-event-id'])).toEqual([undefined, '1']);
  });

  test('operations --watch shows what was, then what begins and ends', async () => {
    const interrupt = new AbortController();
    const done = operation('done');
    await using server = await scriptedServer({
      'GET /v1/operations': page(operation('running')),
      'GET /v1/events': (seen, answer) => {
        const wrapped = (type: string): string =>
          event(1, type, { type, at: '2026-01-02T03:04:05Z', subject: 'op1-x', data: done });
        stream(wrapped('operation.progress') + event(2, 'volume.created', { id: 'x' }) + wrapped('operation.ended'))(
          seen,
          answer,
        );
        setTimeout(() => interrupt.abort(), 50);
        return undefined;
      },
    });
    const { status, stdout } = await run(server, ['operations', '--watch'], { signal: interrupt.signal });
    expect(stdout.split('\n').map((line) => line.slice(7))).toEqual([
      'running   volume.delete local/demo  op1-x',
      'done      volume.delete local/demo  op1-x',
      '',
    ]);
    expect(status).toBe(130);
  });

  test('stops when nobody reads any more', async () => {
    await using server = await scriptedServer({ 'GET /v1/events': stream(event(1, 'x', { subject: 'y' })) });
    const stdout = new Writable({
      write: (_chunk, _encoding, done) => done(Object.assign(new Error('EPIPE'), { code: 'EPIPE' })),
    });
    expect(await run(server, ['events'], { stdout })).toMatchObject({ status: 0, stderr: '' });
  });

  test('no server at all is an error at once', async () => {
    expect(await run({ socket: '/nonexistent/s.sock' }, ['events'])).toMatchObject({
      status: 10,
      stderr: expect.stringContaining('error: no Stowage server answers at /nonexistent/s.sock (ENOENT)'),
    });
  });
});

describe('the token', () => {
  test('comes from a file, with a warning when everyone can read it, and is never sent over the socket', async () => {
    await using server = await scriptedServer({ 'GET /v1/stores': page() });
    const folder = await mkdtemp(join(tmpdir(), 'stowage-cli-'));
    const file = join(folder, 'token');
    try {
      await writeFile(file, 's3cret\n');
      await chmod(file, 0o644);
      const seen: (string | undefined)[] = [];
      const tcp = createServer((request, answer) => {
        seen.push(request.headers.authorization);
        answer.end('{"items":[],"next":null}');
      });
      const { promise, resolve } = Promise.withResolvers<void>();
      tcp.listen(0, '127.0.0.1', resolve);
      await promise;
      const address = tcp.address();
      const url = `http://127.0.0.1:${typeof address === 'object' ? address?.port : 0}`;
      const open = await run(undefined, ['store', 'list', '-q', '--url', url, '--token-file', file]);
      expect(open).toEqual({
        status: 0,
        stdout: '',
        stderr: `warning: everyone on this machine can read ${file}; run: chmod 600 ${file}\n`,
      });
      await chmod(file, 0o600);
      expect(
        (await run(undefined, ['store', 'list', '-q', '--token-file', file], { env: { STOWAGE_URL: url } })).stderr,
      ).toBe('');
      expect(
        (await run(undefined, ['store', 'list', '-q'], { env: { STOWAGE_URL: url, STOWAGE_TOKEN: 'other' } })).status,
      ).toBe(0);
      expect(seen).toEqual(['Bearer s3cret', 'Bearer s3cret', 'Bearer other']);
      tcp.close();
      tcp.closeAllConnections();
      await run(server, ['store', 'list'], { env: { STOWAGE_SOCKET: server.socket, STOWAGE_TOKEN: 'x' } });
      expect(server.seen[0]?.headers.authorization).toBeUndefined();
      expect(await run(undefined, ['store', 'list', '--url', url, '--token-file', `${file}.none`])).toMatchObject({
        status: 2,
      });
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});
