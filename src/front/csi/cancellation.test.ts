import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { localDriver } from '#core/csi-drivers.ts';
import { mounted, servedCsi } from '#testing/csi.ts';
import { grpcClient } from '#testing/grpc-client.ts';
import { Controller } from '#wire/csi/generated/csi.ts';
import { createCsiServer } from './server.ts';

const csi = servedCsi();
const wanted = { name: 'pvc-1', volumeCapabilities: [mounted()], capacityRange: { requiredBytes: 1n << 26n } };
const errorsLogged = (): readonly string[] => csi.log.lines.filter((line) => line.startsWith('error'));
const ended = () =>
  csi.server.core.operations
    .page({ limit: 10 })
    .items.map(({ operation: { kind, state, error } }) => [kind, state, error?.code]);

async function start() {
  const path = join(csi.folder, 'ends.sock');
  const { core } = csi.server;
  const served = createCsiServer({
    core,
    driver: localDriver,
    clock: systemClock(),
    log: csi.log,
    version: '1',
    spaceOf: async () => undefined,
  });
  await new Promise<void>((resolve) => served.server.listen(path, resolve));
  const client = grpcClient(path);
  onTestFinished(async () => {
    client.session.destroy();
    await served.close(0);
  });
  return { served, client };
}

test.each([
  ['that reacts to the abort', false],
  ['that ignores the abort', true],
])('a call fails with UNAVAILABLE when Stowage stops, with a store %s', async (_, deaf) => {
  const { served, client } = await start();
  const gate = csi.local.close('create', { deaf });
  const asked = client.call(Controller.method.createVolume, wanted).catch((thrown: unknown) => thrown);
  await gate.reached;
  const closed = served.close(10);
  // Not INTERNAL: to the provisioner, INTERNAL means that the creation of the volume has ended.
  expect(await asked).toMatchObject({ code: 14, message: expect.stringContaining('is stopping') });
  gate.open();
  client.session.destroy();
  await closed;
  expect(errorsLogged()).toEqual([]);
});

test('a call is cancelled when its caller disconnects, and no error is logged', async () => {
  const { client } = await start();
  const gate = csi.local.close('create');
  const asked = client.call(Controller.method.createVolume, wanted).catch(() => undefined);
  await gate.reached;
  client.session.destroy();
  await asked;
  await expect.poll(ended).toEqual([['volume.create', 'canceled', 'canceled']]);
  gate.open();
  expect(errorsLogged()).toEqual([]);
});
