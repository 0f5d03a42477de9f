import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chmod, mkdir, mkdtempDisposable, readFile, symlink, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { DeadlineExceeded, systemClock } from '#base/clock.ts';
import { findNamedNamespace } from '#base/linux/network.ts';
import { silentLog } from '#base/log.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { onPath } from '#testbed/component.ts';
import { lacks } from '#testbed/lacks.ts';
import { defaultPolicy } from '#testing/default-policy.ts';
import { localAddresses, withPodNetworks } from './pod-network.ts';

const { signal } = new AbortController();
const ip = (...words: readonly string[]) => promisify(execFile)('ip', words, { timeout: 10_000 });

test("reads the local addresses from the kernel's tables", () => {
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

test('a pod in the network of its node has the network of the agent', async () => {
  expect(await withPodNetworks(findNamedNamespace, '/nonexistent')('pod-address:host', signal)).toBe(
    '/proc/self/ns/net',
  );
});

test('passes other networks to the next finder', async () => {
  expect(await withPodNetworks(async (network) => `/${network}`, '/nonexistent')('docker:apps', signal)).toBe(
    '/docker:apps',
  );
});

test('refuses an invalid address', async () => {
  await expect(withPodNetworks(findNamedNamespace)('pod-address:..', signal)).rejects.toMatchObject({
    reason: 'pod-address-invalid',
  });
});

test('names the chart value that gives agents access to the network namespaces', async () => {
  await expect(
    withPodNetworks(findNamedNamespace, '/nonexistent')('pod-address:192.0.2.7', signal),
  ).rejects.toMatchObject({
    code: 'unsupported',
    reason: 'pod-networks-hidden',
    action: "Ask the administrator to set the chart's value agent.networkNamespaces to true (the default).",
  });
});

test('a store check fails at its first step if agents cannot see the network namespaces', async () => {
  const clock = systemClock();
  const connect = () => createConnect(clock, withPodNetworks(findNamedNamespace, '/nonexistent'));
  const kind = createNfsStoreKind(clock, connect(), connect);
  const config = parseStoreConfig('silver', 'nfs://192.0.2.1/export', 'file', new Map([[kind.scheme, kind]]));
  const scope = { signal, log: silentLog() };
  expect(await kind.probe?.(config, defaultPolicy, scope, 'pod-address:192.0.2.7')).toMatchObject({
    ok: false,
    steps: [{ step: 'network', ok: false, reason: 'pod-networks-hidden' }],
  });
});

describe.skipIf(lacks('root', 'netns', 'ipv6'))('among the network namespaces of a node', () => {
  const id = randomBytes(4).toString('hex');
  const names = [1, 2, 3].map((index) => `stowage-pod-${id}-${index}`);
  const namespaces = names.map((name) => `/run/netns/${name}`);
  let folder: Awaited<ReturnType<typeof mkdtempDisposable>>;
  const find = (address: string, until = signal) =>
    withPodNetworks(findNamedNamespace, folder.path)(`pod-address:${address}`, until);
  /** Replaces nsenter by a script, in which REAL stands for the real nsenter and LOG for a file. */
  let replaceNsenter: (script: string) => Promise<void>;
  /** What the script wrote to LOG. */
  let scriptOutput: () => Promise<string>;

  beforeAll(async () => {
    folder = await mkdtempDisposable(join(tmpdir(), 'stowage-pods-'));
    for (const [index, name] of names.entries()) {
      await ip('netns', 'add', name);
      await ip('-n', name, 'link', 'set', 'lo', 'up');
      await ip('-n', name, 'address', 'add', `198.18.7.${index + 1}/24`, 'dev', 'lo');
      await ip('-n', name, 'address', 'add', `fd00:5::${index + 1}/64`, 'dev', 'lo', 'nodad');
      // Two namespaces that have one address in common.
      if (index > 0) await ip('-n', name, 'address', 'add', '198.18.8.1/24', 'dev', 'lo');
      await symlink(namespaces[index] ?? '', join(folder.path, name));
    }
    // The file that remains while a namespace is being removed.
    await writeFile(join(folder.path, 'gone'), '');
    await mkdir(join(folder.path, 'folder'));
  }, 60_000);
  beforeEach(async () => {
    const binFolder = await mkdtempDisposable(join(tmpdir(), 'stowage-nsenter-'));
    onTestFinished(() => binFolder[Symbol.asyncDispose]());
    onTestFinished(() => void vi.unstubAllEnvs());
    const [program, log] = [join(binFolder.path, 'nsenter'), join(binFolder.path, 'log')];
    scriptOutput = () => readFile(log, 'utf8').catch(() => '');
    replaceNsenter = async (script) => {
      const text = script.replaceAll('REAL', onPath('nsenter') ?? 'nsenter').replaceAll('LOG', log);
      await writeFile(program, `#!/bin/sh\n${text}\n`);
      await chmod(program, 0o755);
      vi.stubEnv('PATH', `${binFolder.path}:${process.env['PATH']}`);
    };
  });
  afterAll(async () => {
    for (const name of names) await ip('netns', 'delete', name);
    await folder?.[Symbol.asyncDispose]();
  }, 60_000);

  test.each([
    ['198.18.7.2', 1],
    ['fd00:5::3', 2],
    ['fd00:5:0:0:0:0:0:1', 0],
  ] as const)('finds the namespace with the address %s', async (address, index) => {
    expect(await find(address)).toBe(join(folder.path, names[index] ?? ''));
  });

  test('does not match broadcast addresses or unused addresses of the pod subnet', async () => {
    await expect(find('198.18.7.255')).rejects.toMatchObject({ code: 'not-found', reason: 'pod-network-unknown' });
    await expect(find('198.18.7.99')).rejects.toMatchObject({ code: 'not-found', reason: 'pod-network-unknown' });
  });

  test('refuses to choose between two namespaces with the address, and says how that happens', async () => {
    await expect(find('198.18.8.1')).rejects.toMatchObject({
      code: 'conflict',
      reason: 'pod-network-ambiguous',
      action: expect.stringContaining('which pod took the address of another one'),
    });
  });

  test('treats two names of one namespace as one', async () => {
    const second = join(folder.path, 'second-name');
    await symlink(namespaces[0] ?? '', second);
    onTestFinished(() => unlink(second));
    expect([second, join(folder.path, names[0] ?? '')]).toContain(await find('198.18.7.1'));
  });

  test('searches once for a check, and then reads only the namespace that has the address', async () => {
    await replaceNsenter('echo "$1" >>LOG; exec REAL "$@"');
    const findNamespace = withPodNetworks(findNamedNamespace, folder.path);
    for (const _ of [1, 2, 3]) expect(await findNamespace('pod-address:198.18.7.2', signal)).toContain(names[1]);
    const searched = names.length;
    expect((await scriptOutput()).trim().split('\n')).toHaveLength(searched + 2);
  });

  test('searches again if the address has moved', async () => {
    const [first = '', , third = ''] = names;
    const findNamespace = withPodNetworks(findNamedNamespace, folder.path);
    await ip('-n', first, 'address', 'add', '198.18.9.1/24', 'dev', 'lo');
    expect(await findNamespace('pod-address:198.18.9.1', signal)).toContain(first);
    await ip('-n', first, 'address', 'delete', '198.18.9.1/24', 'dev', 'lo');
    await ip('-n', third, 'address', 'add', '198.18.9.1/24', 'dev', 'lo');
    expect(await findNamespace('pod-address:198.18.9.1', signal)).toContain(third);
  });

  test('reports a namespace that cannot be read, instead of an unknown address', async () => {
    await replaceNsenter(`case "$1" in *-2) echo 'nsenter: not permitted' >&2; exit 1;; esac; exec REAL "$@"`);
    await expect(find('198.18.7.2')).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'pod-network-unreadable',
      message: `the addresses in the network namespace ${join(folder.path, names[1] ?? '')} cannot be read`,
      action: expect.stringContaining('nsenter --net='),
      cause: expect.objectContaining({ message: expect.stringContaining('not permitted') }),
    });
    expect(await find('198.18.7.1')).toContain(names[0]);
  });

  test('reads the addresses of a namespace without IPv6', async () => {
    await replaceNsenter('exec REAL "$1" "$2" "$3" "$4" /proc/self/net/no-such-table');
    expect(await find('198.18.7.1')).toContain(names[0]);
  });

  test.each([
    ['the caller aborts', new Error('no longer'), { message: 'no longer' }],
    ['the deadline expires', new DeadlineExceeded(8_000), { code: 'deadline', reason: 'pod-network-slow' }],
  ])('ends without leaving a process when %s', async (_, reason, thrown) => {
    await replaceNsenter('echo $$ >>LOG; exec sleep 1000');
    const caller = new AbortController();
    const rejection = expect(find('198.18.7.1', caller.signal)).rejects.toMatchObject(thrown);
    await expect.poll(async () => (await scriptOutput()).split('\n').length).toBeGreaterThan(names.length);
    caller.abort(reason);
    await rejection;
    for (const pid of (await scriptOutput()).trim().split('\n'))
      await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
  });
});
