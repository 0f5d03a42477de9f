import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import type { UpOptions } from '#cli/io.ts';
import { eventually, paths } from '#testing/controlled.ts';
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
    ...{ 'current-context': 'it', contexts: [{ name: 'it', context: { cluster: 'it', namespace: 'storage' } }] },
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
  test('serves its kubelet with the stores of the cluster, by the name of its node, without any file', async () => {
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
    // How it finds the controller.
    await eventually(() => api.asked.join()).toMatch(/namespaces\/storage\/configmaps/);
    expect(api.asked.filter((one) => !one.startsWith('GET'))).toEqual([]);
    ending.abort();
    expect(await over).toBe(0);
    expect(existsSync(socket())).toBe(false);
  });

  test('says what it misses when it does not know its name', async () => {
    vi.stubEnv('NODE_NAME', '');
    onTestFinished(() => void vi.unstubAllEnvs());
    await expect(run()).rejects.toMatchObject({ code: 'invalid', reason: 'node-name-required' });
  });
});
