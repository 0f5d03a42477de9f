import { mkdirSync, readdirSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { rightsOf, rightsOfRole, roleWithout, titleOf } from './chart-rights.ts';
import {
  type KubectlStowageFixture,
  namespace,
  roleBinding,
  startKubectlStowageFixture,
} from './kubectl-stowage-fixture.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 200, timeout: 60_000 };

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha'))(
  'the API of a controller in a real cluster',
  () => {
    let fixture: KubectlStowageFixture;
    let alice: string;
    let stranger: string;

    beforeAll(async () => {
      fixture = await startKubectlStowageFixture(signal);
      const { cluster, filer } = fixture;
      const uri = new URL(filer.uri);
      const options = Object.fromEntries(uri.searchParams);
      uri.search = '';
      await cluster.apply(
        ...['alice', 'stranger', 'maker'].map((name) => ({
          apiVersion: 'v1',
          kind: 'ServiceAccount',
          metadata: { name, namespace: 'default' },
        })),
        {
          apiVersion: 'rbac.authorization.k8s.io/v1',
          kind: 'RoleBinding',
          metadata: { name: 'alice', namespace },
          roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'stowage-viewers' },
          subjects: [{ kind: 'ServiceAccount', name: 'alice', namespace: 'default' }],
        },
        {
          apiVersion: 'rbac.authorization.k8s.io/v1',
          kind: 'ClusterRole',
          metadata: { name: 'maker' },
          rules: [{ apiGroups: ['stowage.dev'], resources: ['volumes'], verbs: ['create'] }],
        },
        roleBinding('maker', 'maker', 'default'),
        { apiVersion: 'stowage.dev/v1', kind: 'Store', metadata: { name: 'silver' }, spec: { uri: `${uri}`, options } },
      );
      [alice, stranger] = await Promise.all([fixture.kubeconfigOf('alice'), fixture.kubeconfigOf('stranger')]);
    }, 200_000);
    afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

    const bearer = async (account: string, audience?: string) => ({
      authorization: `Bearer ${await fixture.token(account, audience)}`,
    });

    test('lets a user with the right to create volumes do that with their own token, and nothing else', async () => {
      const headers = await bearer('maker', 'stowage.dev');
      const create = () =>
        fixture.callController('POST', '/v1/volumes', headers, {
          name: 'photos',
          store: 'silver',
          bytes: '1073741824',
        });
      await expect.poll(create, pollOptions).toMatchObject({ status: 201, body: { store: 'silver', name: 'photos' } });
      expect(readdirSync(fixture.filer.exported)).toContain('photos');
      expect(await fixture.callController('DELETE', '/v1/volumes/silver..photos', headers)).toMatchObject({
        status: 403,
        body: {
          reason: 'rule-missing',
          detail: "system:serviceaccount:default:maker may not delete volumes.stowage.dev 'silver..photos'",
          action: expect.stringContaining('{apiGroups: ["stowage.dev"], resources: ["volumes"], verbs: ["delete"]}'),
        },
      });
    });

    test('refuses a token for the API server, a token for another audience, and no token', async () => {
      const refused = { status: 401, body: { code: 'unauthenticated', reason: 'token-refused' } };
      expect(await fixture.callController('GET', '/v1/volumes', await bearer('maker'))).toMatchObject(refused);
      const agents = await bearer('maker', 'stowage.dev/controller');
      expect(await fixture.callController('GET', '/v1/volumes', agents)).toMatchObject(refused);
      expect(await fixture.callController('GET', '/v1/volumes', { authorization: 'Bearer nonsense' })).toMatchObject(
        refused,
      );
      expect(await fixture.callController('GET', '/v1/volumes', {})).toMatchObject({
        status: 401,
        body: { reason: 'token-missing' },
      });
      const twoTokens = { ...(await bearer('maker', 'stowage.dev')), 'stowage-authorization': 'Bearer x' };
      expect(await fixture.callController('POST', '/v1/volumes', twoTokens)).toMatchObject({
        status: 401,
        body: { reason: 'token-ambiguous' },
      });
    });

    test('honours a new right soon, for the named volume only', async () => {
      const headers = await bearer('stranger', 'stowage.dev');
      const get = (name: string) => fixture.callController('GET', `/v1/volumes/silver..${name}`, headers);
      expect(await get('photos')).toMatchObject({ status: 403 });
      await fixture.cluster.apply(
        {
          apiVersion: 'rbac.authorization.k8s.io/v1',
          kind: 'ClusterRole',
          metadata: { name: 'one' },
          rules: [
            { apiGroups: ['stowage.dev'], resources: ['volumes'], verbs: ['get'], resourceNames: ['silver..photos'] },
          ],
        },
        roleBinding('one', 'stranger', 'default'),
      );
      await expect.poll(() => get('photos'), pollOptions).toMatchObject({ status: 200, body: { name: 'photos' } });
      expect(await get('other')).toMatchObject({ status: 403 });
      await fixture.cluster.kubectl('delete', 'clusterrole', 'one');
      await expect.poll(async () => (await get('photos')).status, pollOptions).toBe(403);
    });

    test('shows everything to users who may request a token of the viewer', async () => {
      const volumes = await fixture.stowage(alice, 'volume', 'list');
      expect(volumes).toMatchObject({
        status: 0,
        stdout: expect.stringMatching(/^VOLUME +SIZE.*\nsilver\/photos +1GiB/),
      });
      // No agent is connected yet.
      expect(volumes.stderr).toContain('note: cannot reach node node-1; its node-local volumes are missing');
      const stores = await fixture.stowage(alice, 'store', 'list');
      expect(stores.stdout).toMatch(/silver +yes +nfs +open +1 /);
      expect((await fixture.stowage(alice, 'status')).stdout).toMatch(/nodes +0 of 1 have a connected agent/);
      expect(await fixture.stowage(alice, 'mounts')).toMatchObject({ status: 0, stdout: '' });
    });

    test('refuses changes to users who may request a token of the viewer', async () => {
      const change = (kubeconfig: string) => fixture.stowage(kubeconfig, 'volume', 'delete', 'silver/photos');
      expect(await change(alice)).toMatchObject({
        status: 3,
        stderr: expect.stringContaining('cannot delete resource "services/proxy"'),
      });
      // kubectl stowage uses a token of the viewer, also for a cluster administrator.
      const { status, stderr } = await change(fixture.cluster.kubeconfig);
      expect({ status, stderr }).toMatchObject({
        status: 3,
        stderr: expect.stringContaining('system:serviceaccount:stowage-system:stowage-viewer may not'),
      });
      expect(stderr).toContain('verbs: ["delete"]');
    });

    test('tells other users which right they lack', async () => {
      const { status, stderr } = await fixture.stowage(stranger, 'volume', 'list');
      expect(status).toBe(3);
      expect(stderr).toContain(
        'error: you are not allowed to request a token for the service account stowage-system/stowage-viewer',
      );
      expect(stderr).toContain('bind you to the Role stowage-viewers in stowage-system');
      const otherNamespace = await fixture.stowage(
        fixture.cluster.kubeconfig,
        '--namespace',
        'default',
        'volume',
        'list',
      );
      expect(otherNamespace).toMatchObject({
        status: 4,
        stderr: expect.stringContaining('Stowage is not installed in namespace default'),
      });
    });

    test('collects the objects of nodes from their agents', async () => {
      const { cluster, filer } = fixture;
      const localFolder = `${filer.exported}-local`;
      mkdirSync(localFolder);
      await cluster.apply({
        apiVersion: 'stowage.dev/v1',
        kind: 'Store',
        metadata: { name: 'disks' },
        spec: { uri: `local://${localFolder}` },
      });
      const agent = await fixture.startAgent();
      const createScratch = (): Promise<number> =>
        agent.stowage('volume', 'create', 'disks/scratch').then(({ status }) => status);
      await expect.poll(createScratch, pollOptions).toBe(0);
      const list = await fixture.stowage(alice, 'volume', 'list');
      expect(list.stdout).toMatch(/^VOLUME +NODE .*\nsilver\/photos +- .*\ndisks\/scratch +node-1 /);
      const shown = await fixture.stowage(alice, 'volume', 'show', 'disks/scratch');
      expect(shown.stdout).toMatch(/node +node-1\n/);
      expect((await fixture.stowage(alice, 'store', 'list')).stdout).toMatch(/disks +- +local +open +1 +1 /);
      expect((await fixture.stowage(alice, 'doctor')).stdout).toContain('node-1: ');
    }, 150_000);

    /** The requests that need each right of an account. `{id}` stands for the id of an operation. */
    const requestsFor: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
      'stowage-viewer': {
        'get status': ['status'],
        'get doctor': ['doctor'],
        'list stores': ['store', 'list'],
        'get stores': ['store', 'show', 'silver'],
        'list volumes': ['volume', 'list'],
        'get volumes': ['volume', 'show', 'silver/photos'],
        'list mounts': ['mounts'],
        'list clients': ['client', 'status'],
        'list operations': ['operations'],
        'get operations': ['operations', 'show', '{id}'],
        'list trash': ['volume', 'trash', 'list'],
        'watch events': ['events'],
      },
      'stowage-adopter': {
        'create stores/adopt': ['store', 'adopt', 'silver', '--dry-run'],
        'list volumes': ['--account', 'stowage-adopter', 'volume', 'list'],
        'get stores': ['--account', 'stowage-adopter', 'store', 'show', 'silver'],
        'get operations': ['--account', 'stowage-adopter', 'operations', 'show', '{id}'],
        'update operations': ['--account', 'stowage-adopter', 'operations', 'cancel', '{id}'],
      },
    };
    // The event stream doesn't end by itself, and no operation is left to cancel.
    const endless = ['watch events', 'update operations'];

    test.each(Object.entries(requestsFor))(
      'needs every right of the account %s, and no other right',
      async (account, all) => {
        const rights = rightsOf(account);
        expect(rights.map(titleOf).sort()).toEqual(Object.keys(all).sort());
        const [id = ''] = (await fixture.stowage(alice, 'operations', '--quiet')).stdout.split('\n');
        const run = (words: readonly string[]) =>
          fixture.stowage(
            account === 'stowage-viewer' ? alice : fixture.cluster.kubeconfig,
            ...words.map((word) => (word === '{id}' ? id : word)),
          );
        for (const [title, words] of Object.entries(all))
          if (!endless.includes(title)) expect([title, await run(words)]).toMatchObject([title, { status: 0 }]);
        await using _taken = await roleWithout(fixture.cluster, rights);
        for (const [title, words] of Object.entries(all)) {
          const [verb, resource = ''] = title.split(' ');
          const what = resource.replace(/^[^/]*/, '$&.stowage.dev');
          const refusal = `${account} may not ${verb} ${what}`;
          const refused = { status: 3, stderr: expect.stringContaining(refusal) };
          await expect.poll(() => run(words), pollOptions).toMatchObject(refused);
        }
      },
      200_000,
    );

    test.each([
      ['create serviceaccounts/token stowage-viewer', 'you are not allowed to request a token for the service account'],
      ['get services/proxy https:stowage:443', 'bind you to the Role stowage-viewers'],
    ])('cannot be read without the right %s', async (title, why) => {
      const all = rightsOfRole('stowage-viewers');
      expect(all.length).toBe(2);
      const listStores = () => fixture.stowage(alice, 'store', 'list');
      await expect.poll(listStores, pollOptions).toMatchObject({ status: 0 });
      await using _taken = await roleWithout(
        fixture.cluster,
        all.filter((right) => titleOf(right) === title),
      );
      await expect.poll(listStores, pollOptions).toMatchObject({ status: 3, stderr: expect.stringContaining(why) });
    });

    test('lets users who may view the cluster see its stores by the aggregated role, which is complete and minimal', async () => {
      const { cluster } = fixture;
      await cluster.apply(roleBinding('view', 'stranger', 'default'));
      const as = '--as=system:serviceaccount:default:stranger';
      const kubectlAsStranger = (...words: readonly string[]): Promise<string> =>
        cluster.kubectl(as, ...words).catch(String);
      const watched = '/apis/stowage.dev/v1/stores?watch=true&timeoutSeconds=1';
      const requests: readonly (readonly [title: string, words: readonly string[]])[] = [
        ['get stores', ['get', 'store', 'silver', '--output=name']],
        ['list stores', ['get', 'stores', '--output=name']],
        ['watch stores', ['get', '--raw', watched]],
      ];
      const rights = rightsOfRole('stowage-stores-view');
      expect(rights.map(titleOf).sort()).toEqual(requests.map(([title]) => title).sort());
      for (const [, words] of requests)
        await expect.poll(() => kubectlAsStranger(...words), pollOptions).toMatch(/silver/);
      await using _taken = await roleWithout(cluster, rights);
      for (const [title, words] of requests)
        await expect
          .poll(() => kubectlAsStranger(...words), pollOptions)
          .toContain(`cannot ${title.split(' ')[0]} resource "stores"`);
    }, 200_000);

    test('returns a clear error when there is no leader', async () => {
      await fixture.stopController();
      expect(await fixture.stowage(alice, 'status')).toMatchObject({
        status: 10,
        stderr: expect.stringContaining('error: cannot reach a Stowage controller in namespace stowage-system'),
      });
    });
  },
);
