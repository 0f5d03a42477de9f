import { expect, test } from 'vitest';
import { operation, run, scriptedServer } from './scripted-server.ts';

test('Ctrl-C does not wait for work that reacts to it late', async () => {
  const interrupt = new AbortController();
  await using server = await scriptedServer({
    'POST /v1/volumes': [202, operation('running')],
    'GET /v1/operations/op1-x': () => {
      interrupt.abort();
      return [200, operation('running')];
    },
    'POST /v1/operations/op1-x/cancel': [200, operation('running')],
  });
  const env = { STOWAGE_SOCKET: server.socket, NO_COLOR: '1' };
  const how = { isTTY: true, env, signal: interrupt.signal };
  expect(await run(server, ['volume', 'create', 'demo'], how)).toEqual({
    status: 130,
    stdout: '',
    stderr:
      'cancelling: volume.delete local/demo\n' +
      'error: cancelled volume.delete of local/demo, but it has not stopped yet\n' +
      'action: Check its state with: stowage operations show op1-x\n',
  });
  expect(server.seen.some(({ url }) => url === '/v1/operations/op1-x/cancel')).toBe(true);
}, 5_000);
