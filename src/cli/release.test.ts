import { describe, expect, test } from 'vitest';
import { problem, run, scriptedServer, volume } from './scripted-server.ts';

const use = (host: string, more: object = {}): object => ({
  host,
  node: `node-${host}`,
  users: [{ kind: 'pod', name: 'web-0' }],
  writer: false,
  renewedAt: '2026-11-15T08:30:00.000Z',
  stale: false,
  ...more,
});
const detail = (uses: readonly object[] | null): { readonly id: string } =>
  volume('silver', 'photos', { condition: 'ok', detail: null, users: [], mounts: [], uses }) as { id: string };

describe('volume show', () => {
  const hostsOf = async (uses: readonly object[] | null): Promise<readonly string[]> => {
    await using server = await scriptedServer({ 'GET /v1/volumes/silver..photos': [200, detail(uses)] });
    const { status, stdout } = await run(server, ['volume', 'show', 'silver/photos']);
    expect(status).toBe(0);
    const lines = stdout.trimEnd().split('\n');
    return lines.slice(lines.findIndex((line) => line.startsWith('users')) + 1);
  };

  test('names the hosts that use the volume, their users, the writer, and when stale records were renewed', async () => {
    const pods = Array.from({ length: 7 }, (_, i) => ({ kind: 'pod', name: `web-${i}` }));
    const silent = use('h2', { users: [], writer: true, stale: true });
    expect(await hostsOf([use('h1'), silent, use('h3', { users: pods })])).toEqual([
      'hosts      node-h1 (h1): pod web-0; renewed 2026-11-15 08:30 UTC',
      '           node-h2 (h2): no recorded user; writer; not renewed since 2026-11-15 08:30 UTC',
      '           node-h3 (h3): pod web-0, pod web-1, pod web-2, pod web-3, pod web-4 and 2 more; renewed 2026-11-15 08:30 UTC',
    ]);
  });

  test('shows that no host uses the volume, and nothing for a store without use records', async () => {
    expect(await hostsOf([])).toEqual(['hosts      -']);
    expect(await hostsOf(null)).toEqual([]);
  });
});

describe('volume release', () => {
  const argv = ['volume', 'release', 'silver/photos', '--host', 'h1'];
  const script = (uses: readonly object[]) => ({
    'GET /v1/volumes/silver..photos': [200, detail(uses)] as const,
    [`DELETE /v1/volumes/${detail(uses).id}/uses/h1`]: [204] as const,
  });

  test('prints what it would break, and breaks nothing without --yes', async () => {
    await using server = await scriptedServer(script([use('h1')]));
    expect(await run(server, argv)).toEqual({
      status: 2,
      stdout: '',
      stderr:
        'error: this would break the use record of node-h1 (h1): pod web-0; renewed 2026-11-15 08:30 UTC\n' +
        'action: A running host would continue to write. If the host is permanently gone: stowage volume release silver/photos --host h1 --yes\n',
    });
    expect(server.seen.map(({ method }) => method)).toEqual(['GET']);
  });

  test.each([
    [[use('h1')], 'no host uses it'],
    [[use('h1'), use('h2')], '1 other host still uses it'],
    [[use('h1'), use('h2'), use('h3')], '2 other hosts still use it'],
  ])('with --yes it does, and says who is left', async (uses, left) => {
    await using server = await scriptedServer(script(uses));
    expect(await run(server, [...argv, '--yes'])).toEqual({
      status: 0,
      stderr: '',
      stdout: `broke the use record of host h1 on silver/photos; ${left}\n`,
    });
    expect(server.seen.at(-1)).toMatchObject({
      method: 'DELETE',
      headers: { 'idempotency-key': expect.stringMatching(/./) },
    });
    const { stdout } = await run(server, [...argv, '--yes', '--json']);
    expect(JSON.parse(stdout)).toEqual({ id: detail([]).id, store: 'silver', name: 'photos', host: 'h1' });
    expect((await run(server, [...argv, '--yes', '--quiet'])).stdout).toBe('');
  });

  test('a host without a record is refused, by the server with --yes and by the client without', async () => {
    await using server = await scriptedServer({
      ...script([use('h2')]),
      [`DELETE /v1/volumes/${detail([]).id}/uses/h1`]: problem(
        'not-found',
        "host 'h1' has no use record",
        'Look.',
        404,
      ),
    });
    const refused = { status: 4, stderr: expect.stringMatching(/^error: host 'h1' has no use record/) };
    expect(await run(server, argv)).toMatchObject(refused);
    expect(server.seen.map(({ method }) => method)).toEqual(['GET']);
    expect(await run(server, [...argv, '--yes'])).toMatchObject(refused);
  });

  test('--host is required', async () => {
    const { status, stderr } = await run(undefined, ['volume', 'release', 'silver/photos', '--yes']);
    expect(status).toBe(2);
    expect(stderr).toContain('--host');
  });
});
