import { expect, test } from 'vitest';
import { page, run, scriptedServer, store } from './scripted-server.ts';

const storage = store('silver', {
  kind: 'nfs',
  uri: 'nfs://10.10.2.4/export?network=netns:storage',
  network: 'netns:storage',
});
const lines = (text: string): readonly string[] => text.trimEnd().split('\n');

test('list shows the networks of stores if any store has one', async () => {
  await using plain = await scriptedServer({ 'GET /v1/stores': page(store('local')) });
  expect((await run(plain, ['store', 'list'])).stdout).not.toContain('NETWORK');
  await using server = await scriptedServer({ 'GET /v1/stores': page(store('local'), storage) });
  const [head = '', local = '', silver = ''] = lines((await run(server, ['store', 'list'])).stdout);
  const at = head.indexOf('NETWORK');
  expect([local, silver].map((line) => line.slice(at).split(/\s/)[0])).toEqual(['-', 'netns:storage']);
  expect(head.slice(at)).toMatch(/^NETWORK +URI$/);
});

test('list shows the free space if it is known', async () => {
  const silent = store('silver', { state: 'not-answering', totalBytes: null, freeBytes: null });
  await using server = await scriptedServer({
    'GET /v1/stores': page(store('local'), silent),
    'GET /v1/stores/silver': [200, silent],
  });
  const [head = '', ...rest] = lines((await run(server, ['store', 'list'])).stdout);
  const at = head.indexOf('FREE');
  expect(rest.map((line) => line.slice(at).split(/\s/)[0])).toEqual(['1GiB', '-']);
  expect((await run(server, ['store', 'show', 'silver'])).stdout).toMatch(/^free +unknown$/m);
});

test('show prints the network of a store', async () => {
  await using server = await scriptedServer({
    'GET /v1/stores/local': [200, store('local')],
    'GET /v1/stores/silver': [200, storage],
  });
  expect((await run(server, ['store', 'show', 'local'])).stdout).not.toMatch(/^network/m);
  expect((await run(server, ['store', 'show', 'silver'])).stdout).toMatch(/^network +netns:storage$/m);
});

test('show prints the policy, the limits and the problem of a store', async () => {
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
    'origin          stowage store add',
    'state           unavailable: the folder is gone',
    '                action: Make it again.',
    'read-only       no',
    'enforces sizes  no',
    'access          filesystem',
    'on delete       archive, kept for 7d',
    'volumes         2 of at most 5',
    'total size      1.5GiB of at most 10GiB',
    'default size    -',
    'free            1GiB of 2GiB',
    '',
  ]);
});

test('a failed check prints the action, and exits with 1', async () => {
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

test('adopt prints what it adopted and skipped', async () => {
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
