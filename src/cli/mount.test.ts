import { expect, test } from 'vitest';
import { page, run, scriptedServer } from './scripted-server.ts';

test('a volume can be mounted, and unmounted by path or by volume and path', async () => {
  const mounted = {
    volume: 'sv1-00000000-0000-4000-8000-000000000001',
    name: 'local/demo',
    target: '/mnt/demo',
    readOnly: true,
    user: { kind: 'path', name: '/mnt/demo', node: 'here' },
    since: new Date().toISOString(),
    mounted: true,
  };
  await using server = await scriptedServer({
    'POST /v1/volumes/demo/mount': [200, mounted],
    'GET /v1/mounts': page(mounted),
    'POST /v1/volumes/sv1-00000000-0000-4000-8000-000000000001/unmount': [204],
    'POST /v1/volumes/local..demo/unmount': [204],
  });
  expect((await run(server, ['mount', 'demo', '/mnt/../mnt/demo', '--read-only'])).stdout).toBe(
    'mounted local/demo at /mnt/demo, read-only\n',
  );
  expect(server.seen[0]?.body).toEqual({ target: '/mnt/demo', readOnly: true });
  expect((await run(server, ['unmount', '/mnt/demo'])).stdout).toBe('unmounted /mnt/demo\n');
  expect((await run(server, ['unmount', 'local/demo', '/mnt/demo'])).stdout).toBe('unmounted /mnt/demo\n');
  expect(await run(server, ['unmount', '/mnt/other'])).toMatchObject({
    status: 4,
    stderr: 'error: no volume is mounted at /mnt/other\naction: List the mounts: stowage mounts\n',
  });
  expect((await run(server, ['mounts'])).stdout.split('\n')[1]).toMatch(
    /^local\/demo {2}\/mnt\/demo {2}ro {4}mounted {2}here {2}\d+s$/,
  );
});
