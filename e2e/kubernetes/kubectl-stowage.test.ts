import { mkdirSync, readdirSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { bound, type Ground, namespace, startGround } from './kubectl-stowage-ground.ts';

const { signal } = new AbortController();
const wait = { interval: 200, timeout: 60_000 };

describe.skipIf(needs('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha'))(
  'the API of a real cluster',
  () => {
    let ground: Ground;
    let alice: string;
    let stranger: string;

    beforeAll(async () => {
      ground = await startGround(signal);
      const { cluster, filer } = ground;
      const uri = new URL(filer.uri);
      const options = Object.fromEntries(uri.searchParams);
      uri.search = '';
      await cluster.apply(
        ...['alice', 'stranger', 'maker'].map((name) => ({
          ...{ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name, namespace: 'default' } },
        })),
        {
          ...{
            apiVersion: 'rbac.authorization.k8s.io/v1',
            kind: 'RoleBinding',
            metadata: { name: 'alice', namespace },
          },
          roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'stowage-viewers' },
          subjects: [{ kind: 'ServiceAccount', name: 'alice', namespace: 'default' }],
        },
        {
          ...{ apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'ClusterRole', metadata: { name: 'maker' } },
          rules: [{ apiGroups: ['stowage.dev'], resources: ['volumes'], verbs: ['create'] }],
        },
        bound('maker', 'maker', 'default'),
        { apiVersion: 'stowage.dev/v1', kind: 'Store', metadata: { name: 'silver' }, spec: { uri: `${uri}`, options } },
      );
      [alice, stranger] = await Promise.all([ground.kubeconfigOf('alice'), ground.kubeconfigOf('stranger')]);
    }, 200_000);
    afterAll(() => ground?.[Symbol.asyncDispose](), 60_000);

    const bearer = async (account: string, audience?: string) => ({
      authorization: `Bearer ${await ground.token(account, audience)}`,
    });

    test('who may create volumes does so with a token of their own, and nothing else', async () => {
      const headers = await bearer('maker', 'stowage.dev');
      const create = () =>
        ground.door('POST', '/v1/volumes', headers, { name: 'photos', store: 'silver', bytes: '1073741824' });
      await expect.poll(create, wait).toMatchObject({ status: 201, body: { store: 'silver', name: 'photos' } });
      expect(readdirSync(ground.filer.exported)).toContain('photos');
      expect(await ground.door('DELETE', '/v1/volumes/silver..photos', headers)).toMatchObject({
        status: 403,
        body: {
          reason: 'rule-missing',
          detail: "system:serviceaccount:default:maker may not delete volumes.stowage.dev 'silver..photos'",
          action: expect.stringContaining('{apiGroups: ["stowage.dev"], resources: ["volumes"], verbs: ["delete"]}'),
        },
      });
    });

    test('a token for the API server, for another audience, and none are refused', async () => {
      const refused = { status: 401, body: { code: 'unauthenticated', reason: 'token-refused' } };
      expect(await ground.door('GET', '/v1/volumes', await bearer('maker'))).toMatchObject(refused);
      const agents = await bearer('maker', 'stowage.dev/controller');
      expect(await ground.door('GET', '/v1/volumes', agents)).toMatchObject(refused);
      expect(await ground.door('GET', '/v1/volumes', { authorization: 'Bearer nonsense' })).toMatchObject(refused);
      expect(await ground.door('GET', '/v1/volumes', {})).toMatchObject({
        status: 401,
        body: { reason: 'token-missing' },
      });
      const both = { ...(await bearer('maker', 'stowage.dev')), 'stowage-authorization': 'Bearer x' };
      expect(await ground.door('POST', '/v1/volumes', both)).toMatchObject({
        status: 401,
        body: { reason: 'token-ambiguous' },
      });
    });

    test('a right that is given counts soon, and for the named volume only', async () => {
      const headers = await bearer('stranger', 'stowage.dev');
      const get = (name: string) => ground.door('GET', `/v1/volumes/silver..${name}`, headers);
      expect(await get('photos')).toMatchObject({ status: 403 });
      await ground.cluster.apply(
        {
          ...{ apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'ClusterRole', metadata: { name: 'one' } },
          rules: [
            { apiGroups: ['stowage.dev'], resources: ['volumes'], verbs: ['get'], resourceNames: ['silver..photos'] },
          ],
        },
        bound('one', 'stranger', 'default'),
      );
      await expect.poll(() => get('photos'), wait).toMatchObject({ status: 200, body: { name: 'photos' } });
      expect(await get('other')).toMatchObject({ status: 403 });
      await ground.cluster.kubectl('delete', 'clusterrole', 'one');
      await expect.poll(async () => (await get('photos')).status, wait).toBe(403);
    });

    test('kubectl stowage shows what there is to who may ask for the token of the viewer', async () => {
      const volumes = await ground.stowage(alice, 'volume', 'list');
      expect(volumes).toMatchObject({
        status: 0,
        stdout: expect.stringMatching(/^VOLUME +SIZE.*\nsilver\/photos +1GiB/),
      });
      // No agent is connected yet.
      expect(volumes.stderr).toContain('note: node node-1 could not be asked, its own volumes are missing');
      const stores = await ground.stowage(alice, 'store', 'list');
      expect(stores.stdout).toMatch(/silver +yes +nfs +open +1 /);
      expect((await ground.stowage(alice, 'status')).stdout).toMatch(/nodes +0 of 1 have an agent that is connected/);
      expect(await ground.stowage(alice, 'mounts')).toMatchObject({ status: 0, stdout: '' });
    });

    test('and does not let them change anything', async () => {
      const { status, stderr } = await ground.stowage(alice, 'volume', 'delete', 'silver/photos');
      expect({ status, stderr }).toMatchObject({
        status: 3,
        stderr: expect.stringContaining('system:serviceaccount:stowage-system:stowage-viewer may not'),
      });
      expect(stderr).toContain('verbs: ["delete"]');
    });

    test('who may not ask for it is told what is missing', async () => {
      const { status, stderr } = await ground.stowage(stranger, 'volume', 'list');
      expect(status).toBe(3);
      expect(stderr).toContain(
        'error: you may not ask for a token of the service account stowage-system/stowage-viewer',
      );
      expect(stderr).toContain('bind you to the Role stowage-viewers in stowage-system');
      const elsewhere = await ground.stowage(ground.cluster.kubeconfig, '--namespace', 'default', 'volume', 'list');
      expect(elsewhere).toMatchObject({
        status: 4,
        stderr: expect.stringContaining('Stowage is not installed in the namespace default'),
      });
    });

    test('what nodes have is asked of their agents', async () => {
      const { cluster, filer } = ground;
      const place = `${filer.exported}-local`;
      mkdirSync(place);
      await cluster.apply({
        ...{ apiVersion: 'stowage.dev/v1', kind: 'Store', metadata: { name: 'disks' } },
        spec: { uri: `local://${place}` },
      });
      const agent = await ground.startAgent();
      const made = (): Promise<number> =>
        agent.stowage('volume', 'create', 'disks/scratch').then(({ status }) => status);
      await expect.poll(made, wait).toBe(0);
      const list = await ground.stowage(alice, 'volume', 'list');
      expect(list.stdout).toMatch(/^VOLUME +NODE .*\nsilver\/photos +- .*\ndisks\/scratch +node-1 /);
      const shown = await ground.stowage(alice, 'volume', 'show', 'disks/scratch');
      expect(shown.stdout).toMatch(/node +node-1\n/);
      expect((await ground.stowage(alice, 'store', 'list')).stdout).toMatch(/disks +- +local +open +1 +1 /);
      expect((await ground.stowage(alice, 'doctor')).stdout).toContain('node-1: ');
    }, 150_000);

    test('without a leader it says so', async () => {
      await ground.stopController();
      expect(await ground.stowage(alice, 'status')).toMatchObject({
        status: 10,
        stderr: expect.stringContaining(
          'error: no controller of Stowage can be reached in the namespace stowage-system',
        ),
      });
    });
  },
);
