import { expect, test } from 'vitest';
import { run, scriptedServer, volume } from './scripted-server.ts';

test('create sends the given options and prints the name, or the id with --quiet', async () => {
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
    '--enforce',
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
    enforce: true,
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

test('requests have store..name for store/name, ids unchanged, and the revision as If-Match', async () => {
  const answer = [200, volume('local', 'new', { bytes: '2147483648' })] as const;
  await using server = await scriptedServer({
    'POST /v1/volumes/local..old/rename': answer,
    'POST /v1/volumes/new/expand': answer,
    'PATCH /v1/volumes/sv1-00000000-0000-4000-8000-000000000001': answer,
    'PATCH /v1/volumes/local..new': answer,
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
  expect((await run(server, ['volume', 'enforce', 'local/new'])).stdout).toBe('enforced local/new: at most 2GiB\n');
  expect(server.seen.map(({ body }) => body)).toEqual([
    { name: 'new' },
    { bytes: '2147483648' },
    { labels: { team: 'blue', stage: null } },
    { enforce: true },
  ]);
  expect(server.seen.map(({ headers }) => headers['if-match'])).toEqual([undefined, '"7"', undefined, undefined]);
});
