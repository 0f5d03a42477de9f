import { Writable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { operation, page, run, scriptedServer, store, volume } from './scripted-server.ts';

const demo = volume('local', 'demo', { condition: 'ok', detail: null, users: [], mounts: [] }) as { id: string };
const status = {
  version: '1',
  instance: 'i',
  node: 'n',
  pid: 1,
  startedAt: new Date().toISOString(),
  ready: true,
  defaultStore: 'local',
  listen: [],
  state: '/s',
  config: null,
  mounting: { able: true, why: null, action: null },
  stores: 1,
  volumes: 1,
  mounts: 0,
  operations: 0,
  rssBytes: 1,
};
const usage = { bytes: '4096', files: '1', complete: true, measuredAt: '' };

describe('--quiet', () => {
  test.each([
    [['status'], ''],
    [['volume', 'usage', 'demo'], ''],
    [['volume', 'show', 'demo'], `${demo.id}\n`],
    [['store', 'show', 'local'], 'local\n'],
    [['store', 'orphans', 'local'], 'stray\n'],
    [['operations', 'show', 'op1-x'], 'op1-x\n'],
    [['operations'], 'op1-x\n'],
    [['doctor'], ''],
  ])('%j prints only ids or names, or nothing', async (argv, stdout) => {
    await using server = await scriptedServer({
      'GET /v1/status': [200, status],
      'GET /v1/doctor': page({ check: 'fuse', ok: 'yes', detail: 'there', fix: null }),
      'GET /v1/volumes/demo': [200, demo],
      'GET /v1/volumes/demo/usage': [200, usage],
      'GET /v1/stores/local': [200, store('local')],
      'GET /v1/stores/local/orphans': page({ store: 'local', kind: 'leftover', name: 'stray', detail: '', action: '' }),
      'GET /v1/operations': page(operation('done')),
      'GET /v1/operations/op1-x': [200, operation('done')],
    });
    expect(await run(server, [...argv, '--quiet'])).toEqual({ status: 0, stdout, stderr: '' });
    expect((await run(server, argv)).stdout.length).toBeGreaterThan(stdout.length);
  });

  test('events are the ids of the changed objects', async () => {
    const event = { type: 'volume.created', at: '2026-01-02T03:04:05Z', subject: demo.id, data: demo };
    await using server = await scriptedServer({
      'GET /v1/events': (_seen, answer) => {
        answer.writeHead(200, { 'content-type': 'text/event-stream' });
        answer.write(`id: 1\nevent: volume.created\ndata: ${JSON.stringify(event)}\n\n`);
        return undefined;
      },
    });
    const enough = new AbortController();
    let text = '';
    const stdout = new Writable({
      write: (chunk, _encoding, done) => {
        text += String(chunk);
        enough.abort();
        done();
      },
    });
    await run(server, ['events', '-q'], { stdout, signal: enough.signal });
    expect(text).toBe(`${demo.id}\n`);
  });
});

describe('an empty list', () => {
  test.each([
    [['volume', 'list'], 'no volumes; create one with: stowage volume create NAME\n'],
    [['volume', 'list', '--contains', 'zzz'], 'no volume matches; see all with: stowage volume list\n'],
    [['volume', 'list', '--label', 'a=b'], 'no volume matches; see all with: stowage volume list\n'],
    [['volume', 'list', '--store', 'local'], 'no volume matches; see all with: stowage volume list\n'],
    [['volume', 'trash', 'list'], 'the trash is empty\n'],
    [['volume', 'trash', 'list', '--store', 'local'], 'no volume of local is in the trash\n'],
  ])('%j says whether there is nothing at all', async (argv, stderr) => {
    await using server = await scriptedServer({ 'GET /v1/volumes': page(), 'GET /v1/trash': page() });
    expect(await run(server, argv)).toEqual({ status: 0, stdout: '', stderr });
  });
});

test('status leaves out fields that the server does not send', async () => {
  await using server = await scriptedServer({ 'GET /v1/status': [200, { ...status, pid: null, state: null }] });
  const { stdout } = await run(server, ['status']);
  expect(stdout).toMatch(/^server +stowage 1, up \d+s\n/);
  expect(stdout).not.toMatch(/null|state folder|configuration/);
});

test('usage prints the singular for one file', async () => {
  const files = async (count: string): Promise<string> => {
    await using server = await scriptedServer({ 'GET /v1/volumes/demo/usage': [200, { ...usage, files: count }] });
    return (await run(server, ['volume', 'usage', 'demo'])).stdout;
  };
  expect(await files('1')).toBe('4KiB in 1 file\n');
  expect(await files('2')).toBe('4KiB in 2 files\n');
});
