import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtempDisposable, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createPodNetwork, localAddresses } from './pod-network.ts';

const { signal } = new AbortController();
const ip = (...words: readonly string[]) => promisify(execFile)('ip', words, { timeout: 10_000 });

test('reads the local addresses from the tables of the kernel', () => {
  const tables = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.244.1.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.244.1.5
        /32 host LOCAL
     |-- 10.244.1.255
        /32 link BROADCAST
     |-- 127.0.0.0
        /8 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
fd00000000000000000000000000000a 02 40 00 80     eth0
`;
  expect(localAddresses(tables)).toEqual(['10.244.1.5', '127.0.0.1', 'fd00:0000:0000:0000:0000:0000:0000:000a']);
});

test("finds a pod with the node's address in the network of the agent itself", async () => {
  const find = createPodNetwork({ folder: '/nonexistent', ownAddresses: () => ['192.0.2.7', 'fd00:0:0:0::7'] });
  expect(await find('pod-address:192.0.2.7', signal)).toBe('/proc/self/ns/net');
  expect(await find('pod-address:fd00::7', signal)).toBe('/proc/self/ns/net');
});

test('refuses what is not an address', async () => {
  await expect(createPodNetwork()('pod-address:..', signal)).rejects.toMatchObject({ reason: 'pod-address-invalid' });
});

test('names the chart value that gives agents access to the network namespaces', async () => {
  const find = createPodNetwork({ folder: '/nonexistent', ownAddresses: () => [] });
  await expect(find('pod-address:192.0.2.7', signal)).rejects.toMatchObject({
    ...{ code: 'unsupported', reason: 'pod-networks-hidden' },
    action: expect.stringContaining('agent.networkNamespaces'),
  });
});

describe.skipIf(needs('root', 'netns', 'ipv6'))('among the network namespaces of a node', () => {
  const id = randomBytes(4).toString('hex');
  const names = [1, 2, 3].map((at) => `stowage-pod-${id}-${at}`);
  const namespaces = names.map((name) => `/run/netns/${name}`);
  let folder: Awaited<ReturnType<typeof mkdtempDisposable>>;
  const find = (address: string) =>
    createPodNetwork({ folder: folder.path, ownAddresses: () => ['192.0.2.1'] })(`pod-address:${address}`, signal);

  beforeAll(async () => {
    folder = await mkdtempDisposable(join(tmpdir(), 'stowage-pods-'));
    for (const [at, name] of names.entries()) {
      await ip('netns', 'add', name);
      await ip('-n', name, 'link', 'set', 'lo', 'up');
      await ip('-n', name, 'address', 'add', `198.18.7.${at + 1}/24`, 'dev', 'lo');
      await ip('-n', name, 'address', 'add', `fd00:5::${at + 1}/64`, 'dev', 'lo', 'nodad');
      // Two that have one in common.
      if (at > 0) await ip('-n', name, 'address', 'add', '198.18.8.1/24', 'dev', 'lo');
      await symlink(namespaces[at] ?? '', join(folder.path, name));
    }
    // As a namespace leaves it that is being removed.
    await writeFile(join(folder.path, 'gone'), '');
    await mkdir(join(folder.path, 'folder'));
  }, 60_000);
  afterAll(async () => {
    for (const name of names) await ip('netns', 'delete', name);
    await folder?.[Symbol.asyncDispose]();
  }, 60_000);

  test.each([
    ['198.18.7.2', 1],
    ['fd00:5::3', 2],
    ['fd00:5:0:0:0:0:0:1', 0],
  ] as const)('finds the one with the address %s', async (address, at) => {
    expect(await find(address)).toBe(join(folder.path, names[at] ?? ''));
  });

  test('does not match broadcast addresses or unused addresses of the pod subnet', async () => {
    await expect(find('198.18.7.255')).rejects.toMatchObject({ code: 'not-found', reason: 'pod-network-unknown' });
    await expect(find('198.18.7.99')).rejects.toMatchObject({ code: 'not-found', reason: 'pod-network-unknown' });
  });

  test('refuses to choose among two that have the address', async () => {
    await expect(find('198.18.8.1')).rejects.toMatchObject({ code: 'conflict', reason: 'pod-network-ambiguous' });
  });

  test('ends with its caller', async () => {
    const limit = AbortSignal.abort(new Error('no longer'));
    const one = createPodNetwork({ folder: folder.path, ownAddresses: () => [] });
    await expect(one('pod-address:198.18.7.1', limit)).rejects.toThrow('no longer');
  });
});
