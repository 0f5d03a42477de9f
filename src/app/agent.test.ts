import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import type { UpOptions } from '#cli/io.ts';
import { openRecords } from '#records/sqlite.ts';
import { lacks } from '#testbed/lacks.ts';
import { eventually, paths } from '#testing/controller-fixture.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createApi } from '#testing/server.ts';
import { runAgent } from './agent.ts';

let api: FakeKubeApi;
let folder: string;
let said: string;
let ending: AbortController;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-agent-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  ending = new AbortController();
  onTestFinished(() => ending.abort());
  said = '';
  for (const stream of [process.stdout, process.stderr]) {
    const heard = vi.spyOn(stream, 'write').mockImplementation((text) => {
      said += String(text);
      return true;
    });
    onTestFinished(() => heard.mockRestore());
  }
});

const socket = (): string => join(folder, 's');

function run(more: UpOptions = {}): Promise<number> {
  const kubeconfig = join(folder, 'kubeconfig');
  const cluster = { server: `http://127.0.0.1:${api.port}` };
  const config = {
    'current-context': 'it',
    contexts: [{ name: 'it', context: { cluster: 'it', namespace: 'storage' } }],
    clusters: [{ name: 'it', cluster }],
  };
  writeFileSync(kubeconfig, JSON.stringify(config));
  const kubelet = join(folder, 'kubelet');
  mkdirSync(join(kubelet, 'plugins_registry'), { recursive: true });
  const folders = { state: join(folder, 'state'), run: folder, config: folder, socket: socket() };
  const options = { kubernetes: true, kubeconfig, kubelet, logLevel: 'silent', ...more };
  return runAgent(options, folders, 'stowage', ending.signal);
}

describe('the agent of a node', () => {
  test("serves its kubelet with the stores of the cluster under its node's name, without a configuration file", async () => {
    mkdirSync(join(folder, 'disks'));
    writeFileSync(join(folder, 'stowage.yaml'), 'this is not read');
    api.put(paths.stores, { metadata: { name: 'disks' }, spec: { uri: `local://${join(folder, 'disks')}` } });
    vi.stubEnv('NODE_NAME', 'worker-1');
    onTestFinished(() => void vi.unstubAllEnvs());
    const over = run();
    await eventually(() => said).toMatch(/stowage ready/);
    const admin = createApi({ socketPath: socket() });
    expect((await admin.get('/v1/status')).body).toMatchObject({
      node: 'worker-1',
      stores: 1,
      plugins: [],
      engines: [],
    });
    expect((await admin.get('/v1/stores')).body.items).toMatchObject([{ name: 'disks', origin: 'cluster' }]);
    for (const one of ['plugins/stowage.dev/local.sock', 'plugins_registry/local.stowage.dev-reg.sock'])
      expect(existsSync(join(folder, 'kubelet', one))).toBe(true);
    // The agent looks up the controller.
    await eventually(() => api.requests.join()).toMatch(/namespaces\/storage\/configmaps/);
    expect(api.requests.filter((one) => !one.startsWith('GET'))).toEqual([]);
    ending.abort();
    expect(await over).toBe(0);
    expect(existsSync(socket())).toBe(false);
  });

  test('refuses a store whose directory is in its own container, and names the chart value to set', async () => {
    const uri = 'local:///stowage-is-not-here/fast';
    api.put(paths.stores, { metadata: { name: 'fast' }, spec: { uri } });
    vi.stubEnv('STOWAGE_KEEPERS', 'pod');
    onTestFinished(() => void vi.unstubAllEnvs());
    const over = run({ nodeName: 'worker-1' });
    await eventually(() => said).toMatch(/stowage ready/);
    const { items } = (await createApi({ socketPath: socket() }).get('/v1/stores')).body;
    expect(items).toMatchObject([
      {
        name: 'fast',
        problem: {
          message:
            "the store's directory /stowage-is-not-here/fast is not on the node, but in the container of its agent",
          action: expect.stringContaining('agent.hostPaths'),
        },
      },
    ]);
    ending.abort();
    expect(await over).toBe(0);
  });

  test('refuses a store with client=host in a pod, and says why', async () => {
    const spec = { uri: 'nfs://127.0.0.1/export', options: { client: 'host' } };
    api.put(paths.stores, { metadata: { name: 'silver' }, spec });
    vi.stubEnv('STOWAGE_KEEPERS', 'pod');
    onTestFinished(() => void vi.unstubAllEnvs());
    const over = run({ nodeName: 'worker-1' });
    await eventually(() => said).toMatch(/stowage ready/);
    const { items } = (await createApi({ socketPath: socket() }).get('/v1/stores')).body;
    expect(items).toMatchObject([
      {
        name: 'silver',
        problem: {
          message:
            "store 'silver' has client=host, but the machine's NFS client cannot be used from the container in which Stowage runs",
          action: 'Remove the option client=host: the built-in client works in containers.',
        },
      },
    ]);
    ending.abort();
    expect(await over).toBe(0);
  });

  describe("on a machine cloned from another node's disk image", () => {
    const served = async (nodeName: string): Promise<string> => {
      [said, ending] = ['', new AbortController()];
      const over = run({ nodeName });
      await eventually(() => said).toMatch(/stowage ready/);
      const { instance } = (await createApi({ socketPath: socket() }).get('/v1/status')).body;
      ending.abort();
      expect(await over).toBe(0);
      return instance;
    };
    const state = () => join(folder, 'state');
    const database = () => join(state(), 'state.db');

    test("starts with an empty database, and does not touch the other node's mounts", async () => {
      const first = await served('worker-1');
      expect(await served('worker-1')).toBe(first);
      const records = openRecords(database());
      records.settings.set('ephemeral.volumes', '[{"key":"csi-1","store":"silver","target":"/t","over":true}]');
      records.close();
      const second = await served('worker-2');
      expect(second).not.toBe(first);
      expect(await served('worker-2')).toBe(second);
      const after = openRecords(database());
      onTestFinished(() => after.close());
      expect(after.settings.get('ephemeral.volumes')).toBeUndefined();
      // Stowage keeps the old database: an administrator may have renamed the node.
      expect(existsSync(`${database()}.worker-1`)).toBe(true);
    });

    test('keeps a database that names no node yet', async () => {
      const first = await served('worker-1');
      const db = new DatabaseSync(database());
      db.exec("DELETE FROM settings WHERE key = 'instance.node'");
      db.close();
      expect(await served('worker-2')).toBe(first);
    });

    test.skipIf(lacks('mount'))('refuses to start while volumes are mounted, which a clone never has', async () => {
      const first = await served('worker-1');
      const at = join(state(), 'mounts', 'sv1-x');
      mkdirSync(at);
      execFileSync('mount', ['-t', 'tmpfs', 'none', at]);
      try {
        await expect(run({ nodeName: 'worker-2' })).rejects.toMatchObject({
          code: 'conflict',
          reason: 'node-name-changed',
          message: expect.stringContaining(at),
          action: expect.stringContaining('node back to worker-1'),
        });
        expect(await served('worker-1')).toBe(first);
      } finally {
        execFileSync('umount', [at]);
      }
    });
  });

  test("says which setting is missing if its node's name is unknown", async () => {
    vi.stubEnv('NODE_NAME', '');
    onTestFinished(() => void vi.unstubAllEnvs());
    await expect(run()).rejects.toMatchObject({ code: 'invalid', reason: 'node-name-required' });
  });
});
