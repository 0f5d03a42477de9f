import { describe, expect, test } from 'vitest';
import { problem, run, scriptedServer, volume } from './scripted-server.ts';

describe('a connection that breaks', () => {
  test('is retried with the same Idempotency-Key, also after a restart of the server', async () => {
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

  test('is retried also if it broke during the answer, and waits while the first request is busy', async () => {
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

  test('a request to a stopping server is retried with the same key', async () => {
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

  test('a busy answer is not retried without a broken connection before', async () => {
    await using server = await scriptedServer({ 'POST /v1/volumes': problem('busy', 'busy', 'Wait.', 409) });
    expect((await run(server, ['volume', 'create', 'demo'])).status).toBe(8);
    expect(server.seen).toHaveLength(1);
  });
});
