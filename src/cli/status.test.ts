import { expect, test } from 'vitest';
import { run, scriptedServer } from './scripted-server.ts';

test('doctor asks the server, or checks the machine itself without one, and exits with 1 if something is missing', async () => {
  await using server = await scriptedServer({
    'GET /v1/doctor': [200, { items: [{ check: 'fuse', ok: 'yes', detail: 'there', fix: null }] }],
  });
  expect(await run(server, ['doctor'])).toEqual({ status: 0, stdout: 'ok       fuse: there\n', stderr: '' });
  expect(await run({ socket: '/nonexistent/s.sock' }, ['doctor'])).toEqual({
    status: 1,
    stdout: 'missing  fuse: /dev/fuse is missing\n         fix: modprobe fuse\n',
    stderr: 'cannot connect to a Stowage server at /nonexistent/s.sock (ENOENT); checking this host without a server\n',
  });
});

test('status lists the engines, and which of them do not answer', async () => {
  const status = {
    version: '1',
    instance: 'i',
    node: 'n',
    pid: 1,
    startedAt: new Date().toISOString(),
    ready: true,
    defaultStore: null,
    listen: [],
    state: '/s',
    config: null,
    stores: 0,
    volumes: 0,
    mounts: 0,
    operations: 0,
    mounting: { able: true, why: null, action: null },
    rssBytes: 1,
    storesInTrouble: [],
  };
  const plugins = ['/run/docker/plugins/stowage.sock', '/run/docker/plugins/stowage-local.sock'];
  const engines = [
    { kind: 'docker', socket: '/run/docker.sock', reachable: true },
    { kind: 'podman', socket: '/run/podman/podman.sock', reachable: false },
  ];
  await using server = await scriptedServer({ 'GET /v1/status': [200, { ...status, plugins, engines }] });
  const { stdout } = await run(server, ['status']);
  expect(stdout).toMatch(
    /plugins +\/run\/docker\/plugins\/stowage\.sock\n +\/run\/docker\/plugins\/stowage-local\.sock/,
  );
  expect(stdout).toMatch(
    /engines +docker at \/run\/docker\.sock\n +podman at \/run\/podman\/podman\.sock does not respond/,
  );
  await using older = await scriptedServer({ 'GET /v1/status': [200, status] });
  expect((await run(older, ['status'])).stdout).not.toMatch(/plugins|engines/);
});
