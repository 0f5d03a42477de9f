import type { ServerResponse } from 'node:http';
import { expect, test } from 'vitest';
import { childrenOf, commandTree } from './command-tree.ts';
import { createProgram } from './program.ts';
import { page, problem, run, scriptedServer, volume } from './scripted-server.ts';

/**
 * Scripts rely on what `--json` prints: with few exceptions, the object or the list items that the REST API returns, including fields that
 * this version does not know. src/testing/golden/rest-api.txt has the fields of these objects.
 */
const later = { fromALaterServer: 1 };
const one = volume('s', 'v', later) as { readonly id: string };
const operation = {
  id: 'op1-a',
  kind: 'volume.expand',
  subject: 's/v',
  store: 's',
  state: 'done',
  startedAt: '2026-01-01T00:00:00Z',
  endedAt: null,
  progress: null,
  error: null,
  result: null,
  ...later,
};
const store = { name: 's', uri: 'local:///s', ...later };
const mount = { volume: one.id, target: '/mnt/a', ...later };
const token = { id: 'tk1-a', name: 'ci', role: 'user', secret: 'a secret', ...later };
const status = { version: '1', ...later };
const entry = { ...one, deletedAt: '2026-01-01T00:00:00Z', expiresAt: null };
const detail = { ...one, mounts: [], users: [], uses: [] };
const check = { ok: true, steps: [], totalBytes: null, freeBytes: null, ...later };
const adoption = { adopted: [], skipped: [], ...later };
const dataPath = { name: 'd', ...later };
const orphan = { name: 'o', ...later };
const usage = { bytes: '1', ...later };
const deletion = { outcome: 'deleted', expiresAt: null };

type Case = readonly [words: string, script: Parameters<typeof scriptedServer>[0], printed: unknown];
const at = (path: string, body: object): Parameters<typeof scriptedServer>[0] => ({ [path]: [200, body] });
const listed = (path: string, ...items: readonly object[]): Parameters<typeof scriptedServer>[0] => ({
  [path]: page(...items),
});

const cases: readonly Case[] = [
  ['status', at('GET /v1/status', status), status],
  [
    'doctor',
    at('GET /v1/doctor', { items: [{ check: 'fuse', ok: 'yes', ...later }] }),
    [{ check: 'fuse', ok: 'yes', ...later }],
  ],
  ['store list', listed('GET /v1/stores', store), [store]],
  ['store show s', at('GET /v1/stores/s', store), store],
  ['store add s local:///s', { 'POST /v1/stores': [201, store] }, store],
  ['store default s', at('POST /v1/stores/s/default', store), store],
  ['store check s', at('POST /v1/stores/s/check', check), check],
  ['store orphans s', listed('GET /v1/stores/s/orphans', orphan), [orphan]],
  ['store adopt s', at('POST /v1/stores/s/adopt', adoption), adoption],
  ['volume list', listed('GET /v1/volumes', one), [one]],
  ['volume show v', at('GET /v1/volumes/v', detail), detail],
  ['volume usage v', at('GET /v1/volumes/v/usage', usage), usage],
  ['volume create v', { 'POST /v1/volumes': [201, one] }, one],
  ['volume expand v 2G', at('POST /v1/volumes/v/expand', one), one],
  ['volume enforce v', at('PATCH /v1/volumes/v', one), one],
  ['volume rename v w', at('POST /v1/volumes/v/rename', one), one],
  ['volume label v a=b', at('PATCH /v1/volumes/v', one), one],
  ['volume trash list', listed('GET /v1/trash', entry), [entry]],
  ['volume restore s/v', { ...listed('GET /v1/trash', entry), ...at(`POST /v1/trash/${one.id}/restore`, one) }, one],
  [
    'volume trash purge s/v',
    { ...listed('GET /v1/trash', entry), [`DELETE /v1/trash/${one.id}`]: [204] },
    [{ id: one.id, store: 's', name: 'v' }],
  ],
  [
    'volume delete v',
    { ...at('GET /v1/volumes/v', one), ...at(`DELETE /v1/volumes/${one.id}`, { ...deletion, ...later }) },
    [{ id: one.id, store: 's', name: 'v', ...deletion, ...later }],
  ],
  [
    'volume release v --host h --yes',
    { ...at('GET /v1/volumes/v', detail), [`DELETE /v1/volumes/${one.id}/uses/h`]: [204] },
    { id: one.id, store: 's', name: 'v', host: 'h' },
  ],
  ['mount v /mnt/a', { 'POST /v1/volumes/v/mount': [201, mount] }, mount],
  ['mounts', listed('GET /v1/mounts', mount), [mount]],
  ['client status', listed('GET /v1/client', dataPath), [dataPath]],
  ['client upgrade', at('POST /v1/client/upgrade', { items: [dataPath] }), [dataPath]],
  ['operations list', listed('GET /v1/operations', operation), [operation]],
  ['operations show op1-a', at('GET /v1/operations/op1-a', operation), operation],
  ['operations cancel op1-a', at('POST /v1/operations/op1-a/cancel', operation), operation],
  ['token create ci --role user', { 'POST /v1/tokens': [201, token] }, token],
  ['token list', listed('GET /v1/tokens', token), [token]],
];

test.each(cases)('%s --json prints the answer of the server', async (words, script, printed) => {
  await using server = await scriptedServer(script);
  const { stdout, stderr, status: exit } = await run(server, [...words.split(' '), '--json']);
  expect({ exit, stderr }).toEqual({ exit: 0, stderr: '' });
  expect(JSON.parse(stdout)).toEqual(printed);
});

const silent = [
  ['unmount /mnt/a', { ...listed('GET /v1/mounts', mount), [`POST /v1/volumes/${one.id}/unmount`]: [204] }],
  ['store remove s', { 'DELETE /v1/stores/s': [204] }],
  ['token revoke tk1-a', { 'DELETE /v1/tokens/tk1-a': [204] }],
] as const;

test.each(silent)('%s --json prints nothing', async (words, script) => {
  await using server = await scriptedServer(script);
  expect(await run(server, [...words.split(' '), '--json'])).toEqual({ status: 0, stdout: '', stderr: '' });
});

test("an error is the server's problem as one line of JSON on standard error", async () => {
  const [status, body] = problem('not-found', 'there is no volume v', 'See the list.', 404);
  await using server = await scriptedServer({ 'GET /v1/volumes/v': [status, body] });
  const { stdout, stderr, status: exit } = await run(server, ['volume', 'show', 'v', '--json']);
  expect([stdout, exit]).toEqual(['', 4]);
  expect(stderr.split('\n')).toHaveLength(2);
  expect(JSON.parse(stderr)).toEqual(body);
});

test('an error of the command line itself has the same fields', async () => {
  const { stderr, status } = await run(undefined, ['volume', 'expand', 'v', 'large', '--json']);
  expect(status).toBe(2);
  const printed = JSON.parse(stderr) as Record<string, unknown>;
  expect(Object.keys(printed).toSorted()).toEqual(['action', 'code', 'detail', 'reason', 'status', 'title']);
  expect(printed).toMatchObject({ code: 'invalid', status: 400 });
});

test('each event is one line of JSON', async () => {
  const sent = { type: 'volume.created', at: '2026-01-01T00:00:00Z', subject: one.id, data: one };
  const ending = new AbortController();
  let asked = 0;
  const follow = (_: unknown, answer: ServerResponse): undefined => {
    // The client reconnects after it has read the first stream.
    if (asked++ > 0) ending.abort();
    answer.writeHead(200, { 'content-type': 'text/event-stream' });
    answer.end(`id: 1\nevent: ${sent.type}\ndata: ${JSON.stringify(sent)}\n\n`);
    return undefined;
  };
  await using server = await scriptedServer({ 'GET /v1/events': follow });
  const { stdout } = await run(server, ['events', '--json'], { signal: ending.signal });
  expect(JSON.parse(stdout.split('\n')[0] ?? '')).toEqual(sent);
});

test('this file covers every command except servers, streams and help', () => {
  const noAct = () => async () => undefined;
  const leaves = commandTree(createProgram({ version: '', program: 'stowage' }, noAct)).filter(
    ({ command }) => childrenOf(command).length === 0,
  );
  const here = [...cases, ...silent].map(([words]) => words);
  const missing = leaves
    .map(({ path }) => path.join(' '))
    .filter((path) => !here.some((words) => `${words} `.startsWith(`${path} `)));
  expect(missing).toEqual(['up', 'node', 'controller', 'nfs serve', 'keeper', 'events', 'completion', 'help']);
});
