import { describe, expect, test } from 'vitest';
import { operation, problem, run, scriptedServer, store, volume } from './scripted-server.ts';

describe('long work', () => {
  const demo = volume('local', 'demo') as { id: string };
  const before = { 'GET /v1/volumes/demo': [200, demo], 'GET /v1/stores/local': [200, store('local')] } as const;
  const running = (done: number): readonly [number, object] => [
    200,
    operation('running', { progress: { done, total: 1000, unit: 'files' } }),
  ];

  test('on a terminal runs in the background with a progress bar, which is erased in the end', async () => {
    const startedAt = Date.now();
    await using server = await scriptedServer({
      ...before,
      [`DELETE /v1/volumes/${demo.id}`]: [202, operation('running')],
      'GET /v1/operations/op1-x': () => (Date.now() - startedAt < 1000 ? running(250) : [200, operation('done')]),
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

  test('returns the result of the operation, or requests the object if the server no longer knows the result', async () => {
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

  test('that fails prints the same error as a single request', async () => {
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

  test('is followed across a restart of the server', async () => {
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

  test('is cancelled by Ctrl-C, with a message', async () => {
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
        'action: Repeat the command to run it again; this is safe.\n',
    });
  });

  test('that was done before Ctrl-C arrived is a success', async () => {
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
      stderr: 'error: interrupted\naction: The server may have completed the request; check: stowage operations\n',
    });
  });
});
