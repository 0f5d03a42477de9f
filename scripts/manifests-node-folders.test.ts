import { describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { lacks } from '#testbed/lacks.ts';
import { rendered } from './manifests-helm.ts';

interface Agent {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly template: {
      readonly spec: {
        readonly containers: readonly [{ readonly volumeMounts: readonly Mount[] }];
        readonly volumes: readonly {
          readonly name: string;
          readonly hostPath?: { readonly path: string; readonly type: string };
        }[];
      };
    };
  };
}

interface Mount {
  readonly name: string;
  readonly mountPath: string;
  readonly mountPropagation?: string;
}

async function agentOf(values: Readonly<Record<string, unknown>>): Promise<Agent['spec']['template']['spec']> {
  const all = parseAllDocuments(await rendered(values)).map((document) => document.toJS() as Agent);
  const agent = all.find(({ kind, metadata }) => `${kind} ${metadata.name}` === 'DaemonSet stowage-agent');
  return agent?.spec.template.spec ?? expect.fail('no agent');
}

/** The node folders that an agent mounts in addition to its own, each at the node's path. */
async function nodeFolders(values: Readonly<Record<string, unknown>>): Promise<readonly string[]> {
  const { containers, volumes } = await agentOf(values);
  return volumes.flatMap(({ name, hostPath }) => {
    if (!name.startsWith('store-')) return [];
    const mount = containers[0].volumeMounts.find((one) => one.name === name);
    expect(mount).toMatchObject({ mountPath: hostPath?.path, mountPropagation: 'HostToContainer' });
    expect(hostPath?.type).toBe('DirectoryOrCreate');
    return mount?.mountPath ?? [];
  });
}

const at = (...places: readonly string[]): Readonly<Record<string, unknown>> => ({
  stores: places.map((place, index) => ({ name: `s${index}`, uri: `local://${place}` })),
});

describe.skipIf(lacks('helm'))('the node folders that agents mount, rendered by Helm,', () => {
  test('contain the stores, but the stores’ own folders are never created, because their disk may not be mounted', async () => {
    expect(await nodeFolders(at('/mnt/disk1/vols'))).toEqual(['/mnt/disk1']);
    expect(await nodeFolders(at('/mnt/disk1/vols/', '/mnt//disk2/my%20vols'))).toEqual(['/mnt/disk1', '/mnt/disk2']);
    expect(await nodeFolders({ 'agent.hostPaths': ['/srv/fast'], 'defaultStore.path': '/data/stowage/local' })).toEqual(
      ['/srv', '/data/stowage'],
    );
  });

  test('include the network namespaces of pods, unless the administrator disables that', async () => {
    const names = async (values: Readonly<Record<string, unknown>>): Promise<readonly (readonly string[])[]> => {
      const { containers, volumes } = await agentOf(values);
      return [volumes, containers[0].volumeMounts].map((all) => all.map(({ name }) => name));
    };
    for (const all of await names({})) expect(all).toContain('netns');
    for (const all of await names({ 'agent.networkNamespaces': false })) expect(all).not.toContain('netns');
  });

  test('are mounted once, and not again inside another node folder', async () => {
    expect(await nodeFolders(at('/mnt/a', '/mnt/b', '/mnt/disk/vols', '/mnt-2/a'))).toEqual(['/mnt', '/mnt-2']);
    expect(await nodeFolders(at('/var/lib/stowage/stores/a', '/var/lib/stowage/b'))).toEqual([]);
    expect(await nodeFolders({})).toEqual([]);
  });

  test('are the stores’ own folders if the parent folder belongs to the container', async () => {
    const own = ['/data', '/var/stowage', '/var/lib/disks', '/opt', '/usr/local/stowage', '/tmp/vols', '/run/vols'];
    expect(await nodeFolders(at(...own))).toEqual(own);
    expect(await nodeFolders({ ...at('/var/lib/k0s/vols'), kubeletDir: '/var/lib/k0s/kubelet' })).toEqual([
      '/var/lib/k0s/vols',
    ]);
  });
});
