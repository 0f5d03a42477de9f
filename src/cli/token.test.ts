import { expect, test } from 'vitest';
import { run, scriptedServer } from './scripted-server.ts';

test('create prints only the secret on standard output', async () => {
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
  expect(await run(server, ['token', 'create', 'ci', '--role', 'user', '--store', 'data', '--expires', '30d'])).toEqual(
    {
      status: 0,
      stdout: 's3cret\n',
      stderr: 'token t1 (ci, user); the secret above is not shown again\n',
    },
  );
  expect(server.seen[0]?.body).toEqual({ name: 'ci', role: 'user', stores: ['data'], expiresIn: '30d' });
});
