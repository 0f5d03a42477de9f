import { describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { startServer } from '#testing/server.ts';
import { isInContainer, refuseHostClient } from './host-client.ts';

const id = 'ab'.repeat(32);
const nowhere = { mountinfo: '', cgroup: '', hostname: '0123456789ab' };

describe('detects whether Stowage runs in a container:', () => {
  test.each([
    ['in a pod', { KUBERNETES_SERVICE_HOST: '10.96.0.1' }, undefined, nowhere, true],
    ['with keepers in pods', {}, 'pod', nowhere, true],
    ['with keepers in containers', {}, 'container', nowhere, true],
    [
      'in a container of Docker',
      {},
      undefined,
      { ...nowhere, mountinfo: `1 2 0:3 /var/lib/docker/containers/${id}/hosts /etc/hosts rw - ext4 x rw` },
      true,
    ],
    ['on a machine whose name looks like a container id', {}, undefined, nowhere, false],
  ] as const)('%s', async (_, env, keepers, around, expected) => {
    expect(await isInContainer(env, keepers, async () => around)).toBe(expected);
  });
});

test('in a container, refuses to add a store with client=host and says why; accepts others', async () => {
  const server = await startServer({ kinds: [createLocalStoreKind(), refuseHostClient(createNfsStoreKind())] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const own = await startOwnServer({ path: '/export' });
  const { port } = own.server;
  const uri = `nfs://127.0.0.1/export?port=${port}&mountport=${port}`;
  const { status, body } = await server.admin.post('/v1/stores', { name: 'silver', uri: `${uri}&client=host` });
  expect(status).toBe(422);
  expect(body).toMatchObject({
    code: 'unsupported',
    reason: 'host-client-in-container',
    detail:
      "store 'silver' has client=host, but the machine's NFS client cannot be used from the container in which Stowage runs",
    action: 'Remove the option client=host: the built-in client works in containers.',
  });
  expect((await server.admin.get('/v1/stores')).body.items).toHaveLength(1);
  expect((await server.admin.post('/v1/stores', { name: 'silver', uri })).status).toBe(201);
});
