import type { ServerResponse } from 'node:http';
import { Writable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { operation, page, run, scriptedServer } from './scripted-server.ts';

describe('following events', () => {
  const stream =
    (text: string) =>
    (_seen: unknown, answer: ServerResponse): undefined => {
      answer.writeHead(200, { 'content-type': 'text/event-stream' });
      answer.write(text);
    };
  const event = (id: number, type: string, data: object): string =>
    `id: ${id}\nevent: ${type}\ndata: ${JSON.stringify(data)}\n\n`;

  test('prints a line for each event, and resumes after a broken connection', async () => {
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

  test('operations --watch prints past operations, then those that start and end', async () => {
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

  test('stops when the output is closed', async () => {
    await using server = await scriptedServer({ 'GET /v1/events': stream(event(1, 'x', { subject: 'y' })) });
    const stdout = new Writable({
      write: (_chunk, _encoding, done) => done(Object.assign(new Error('EPIPE'), { code: 'EPIPE' })),
    });
    expect(await run(server, ['events'], { stdout })).toMatchObject({ status: 0, stderr: '' });
  });

  test('fails at once without a server', async () => {
    expect(await run({ socket: '/nonexistent/s.sock' }, ['events'])).toMatchObject({
      status: 10,
      stderr: expect.stringContaining('error: cannot connect to a Stowage server at /nonexistent/s.sock (ENOENT)'),
    });
  });
});
