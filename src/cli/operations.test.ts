import { expect, test } from 'vitest';
import { operation, page, run, scriptedServer } from './scripted-server.ts';

test('operations can be listed, shown with their errors, and cancelled', async () => {
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
  expect((await run(server, ['operations', 'cancel', 'op1-x'])).stdout).toBe('op1-x is being cancelled\n');
  expect((await run(server, ['operations', '--limit', '5000'])).stderr).toContain('from 1 to 1000');
});
