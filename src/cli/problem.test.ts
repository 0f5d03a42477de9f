import { describe, expect, test } from 'vitest';
import { problem, run, scriptedServer } from './scripted-server.ts';

describe('error output', () => {
  test.each([
    ['not-found', 404, 4],
    ['in-use', 409, 6],
    ['exhausted', 507, 9],
    ['from-the-future', 418, 1],
  ])('%s is printed with its action, and sets the exit status', async (code, http, exit) => {
    await using server = await scriptedServer({ 'GET /v1/status': problem(code, 'it is so', 'Do this.', http) });
    expect(await run(server, ['status'])).toEqual({
      status: exit,
      stdout: '',
      stderr: 'error: it is so\naction: Do this.\n',
    });
    const { stderr } = await run(server, ['status', '--json']);
    expect(JSON.parse(stderr)).toMatchObject({ code, detail: 'it is so', action: 'Do this.', requestId: 'r1' });
  });

  test('an unknown command or option exits with 2 and a suggestion', async () => {
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

  test('without a server, the error says how to start one', async () => {
    expect(await run({ socket: '/nonexistent/s.sock' }, ['status'])).toEqual({
      status: 10,
      stdout: '',
      stderr:
        'error: cannot connect to a Stowage server at /nonexistent/s.sock (ENOENT)\n' +
        'action: Start the server with: stowage up. If it listens elsewhere, set --socket or STOWAGE_SOCKET.\n',
    });
  });

  test('a server that does not answer is an error after --timeout', async () => {
    await using server = await scriptedServer({ 'GET /v1/status': () => undefined });
    const { status, stderr } = await run(server, ['status', '--timeout', '100ms']);
    expect(stderr).toContain(`error: no response from ${server.socket} within 0.1 s\n`);
    expect(status).toBe(10);
  });

  test("an answer that is not Stowage's is an error, not a crash", async () => {
    await using server = await scriptedServer({
      'GET /v1/status': (_seen, answer) => void answer.end('<html>') as undefined,
      'GET /v1/volumes': [200, { hello: 1 }],
      'GET /v1/stores': [302],
    });
    for (const argv of [['status'], ['volume', 'list'], ['store', 'list']]) {
      const { status, stderr } = await run(server, argv);
      expect(stderr).toContain(`error: the response from ${server.socket} is not a valid Stowage response`);
      expect(status).toBe(1);
    }
  });

  test('an endless answer is cut off', async () => {
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

test.each([
  [['volume', 'create', 'x', '--size', '1X'], "error: '1X' is not a size"],
  [['volume', 'show', 'a/b/c'], "error: 'a/b/c' is not a valid volume reference"],
  [['volume', 'show', 'a/..'], "error: 'a/..' is not a valid volume reference"],
  [['store', 'show', '..'], "error: '..' is not a valid store reference"],
  [['volume', 'label', 'x', 'nonsense'], "error: 'nonsense' is not a label"],
  [['volume', 'create', 'a/x', '--store', 'b'], 'error: two different stores: a and b'],
  [['volume', 'delete', 'a', 'b', '--if-revision', '1'], 'error: --if-revision applies to a single volume'],
  [['mount', 'x', ''], 'error: the path is empty'],
  [['mount', 'x', '', '--url', 'http://127.0.0.1:1'], 'error: the path is empty'],
  [['unmount', ''], 'error: the path is empty'],
  [['unmount', 'x', ''], 'error: the path is empty'],
  [['unmount', '', '/mnt/x'], "error: '' is not a valid volume reference"],
  [['operations', '--limit', '1001'], "error: '1001' is not a valid number for --limit"],
  [['operations', '--limit', '0'], "error: '0' is not a valid number for --limit"],
  [['status', '--timeout', 'soon'], "error: 'soon' is not a duration"],
  [['status', '--url', 'ftp://x'], 'error: the address of the server is not an http or https URL'],
  [['status', '--url', 'http://u:p@x'], 'error: the address of the server contains a user name or password'],
  [
    ['mount', 'x', 'relative', '--url', 'http://127.0.0.1:1'],
    'error: the path relative is relative, but the server has another working directory',
  ],
])('%j is refused without a request to the server', async (argv, line) => {
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
