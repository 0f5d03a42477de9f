import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { createMetrics } from '#front/rest/metrics.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { grpcClient } from '#testing/grpc-client.ts';
import { startServer } from '#testing/server.ts';
import { Identity, Node } from '#wire/csi/generated/csi.ts';
import { Registration } from '#wire/csi/generated/registration.ts';
import { createSpaceLookup, csiSettings, startCsi } from './csi.ts';

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-app-csi-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

function client(path: string) {
  const made = grpcClient(path);
  onTestFinished(() => made.session.destroy());
  return made;
}

test('each driver has a socket that only its owner can open, and is registered with the kubelet', async () => {
  const server = await startServer({ listen: 'none' });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const log = collectingLog();
  const parts = { core: server.core, clock: systemClock(), log, version: '1' };
  const csi = await startCsi({ folder: join(folder, 'csi'), registry: folder, maxVolumes: 7 }, parts);
  onTestFinished(() => csi.close(0));
  expect(csi.sockets).toEqual([join(folder, 'csi', 'file.sock'), join(folder, 'csi', 'local.sock')]);
  for (const kind of ['file', 'local']) {
    const endpoint = join(folder, 'csi', `${kind}.sock`);
    expect(statSync(endpoint).mode & 0o777).toBe(0o600);
    const name = `${kind}.stowage.dev`;
    expect(await client(endpoint).call(Identity.method.getPluginInfo, {})).toMatchObject({ name });
    expect(await client(endpoint).call(Node.method.nodeGetInfo, {})).toMatchObject({ maxVolumesPerNode: 7n });
    const kubelet = client(join(folder, `${name}-reg.sock`));
    expect(await kubelet.call(Registration.method.getInfo, {})).toMatchObject({
      type: 'CSIPlugin',
      name,
      endpoint,
      supportedVersions: ['1.0.0'],
    });
    await kubelet.call(Registration.method.notifyRegistrationStatus, { pluginRegistered: true });
    await kubelet.call(Registration.method.notifyRegistrationStatus, { pluginRegistered: false, error: 'no' });
    expect(log.lines).toContain(`info the kubelet registered the driver {"driver":"${name}"}`);
    expect(log.lines).toContain(`error the kubelet rejected the driver {"driver":"${name}","why":"no"}`);
  }
  await expect(startCsi({ folder: join(folder, 'csi'), registry: undefined }, parts)).rejects.toMatchObject({
    reason: 'socket-in-use',
  });
});

test('the metrics count calls by method and code', async () => {
  await using server = await startServer({ listen: 'none' });
  const { core } = server;
  const dataPath = { name: 'host', state: 'serving', mounts: 3, pid: 1, version: '1', standby: true } as const;
  const dataPaths = async () => [{ ...dataPath, takeovers: 2, deaths: 0, report: '' }];
  const metrics = createMetrics({ core, version: '1', dataPaths });
  const parts = { core, clock: systemClock(), log: silentLog(), version: '1', observed: metrics.csiCall };
  const csi = await startCsi({ folder: join(folder, 'csi'), registry: undefined }, parts);
  onTestFinished(() => csi.close(0));
  const file = client(join(folder, 'csi', 'file.sock'));
  await file.call(Node.method.nodeGetInfo, {});
  await expect(file.call(Node.method.nodeStageVolume, {})).rejects.toThrow();
  const text = await metrics.text(() => true, { signal: AbortSignal.timeout(10_000), log: silentLog() });
  for (const line of [
    'stowage_csi_calls_total{driver="file.stowage.dev",method="NodeGetInfo",code="ok"} 1',
    'stowage_csi_calls_total{driver="file.stowage.dev",method="NodeStageVolume",code="invalid"} 1',
    'stowage_csi_call_seconds_count{driver="file.stowage.dev",method="NodeGetInfo"} 1',
    'stowage_mounts{store="local",condition="ok"} 0',
    'stowage_data_path_state{name="host",state="serving"} 1',
    'stowage_data_path_mounts{name="host"} 3',
    'stowage_data_path_takeovers{name="host"} 2',
  ])
    expect(text.split('\n')).toContain(line);
});

test('serves nothing unless configured', async () => {
  expect(csiSettings({})).toBeUndefined();
  expect(csiSettings({ csi: '/a/b/', csiRegistry: '/c' })).toEqual({ folder: '/a/b', registry: '/c' });
  expect(csiSettings({ kubelet: '/k' })).toEqual({ folder: '/k/plugins/stowage.dev', registry: '/k/plugins_registry' });
  expect(csiSettings({ kubelet: '/k', csi: '/a' })).toEqual({ folder: '/a', registry: '/k/plugins_registry' });
  expect(csiSettings({ kubelet: '/k', csi: '/a', maxVolumes: 3 })).toMatchObject({ maxVolumes: 3 });
  expect(() => csiSettings({ csiRegistry: '/c' })).toThrow(
    '--csi-registry needs --csi: without it there are no drivers to register',
  );
});

describe('the space at a path', () => {
  test('is what the kernel reports', async () => {
    const space = await createSpaceLookup(systemClock())(folder);
    expect(space?.totalBytes).toBeGreaterThan(0n);
    expect(await createSpaceLookup(systemClock())(join(folder, 'missing'))).toBeUndefined();
  });

  test('is asked for once at a time and for a few paths at a time, with a timeout', async () => {
    let asked = 0;
    const hanging = (() => {
      asked++;
      return new Promise(() => undefined);
    }) as unknown as Parameters<typeof createSpaceLookup>[1];
    const clock = { ...systemClock(), after: (_ms: number, fire: () => void) => systemClock().after(0, fire) };
    const spaceOf = createSpaceLookup(clock, hanging);
    for (const path of ['/a', '/a', '/b', '/c', '/d', '/e']) expect(await spaceOf(path)).toBeUndefined();
    expect(asked).toBe(4);
  });
});

test('a server without drivers can be closed', async () => {
  const server = await startServer({ listen: 'none', log: silentLog() });
  onTestFinished(() => server[Symbol.asyncDispose]());
  expect(server.running.csi.sockets).toEqual([]);
});
