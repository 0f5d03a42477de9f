import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { beforeEach, onTestFinished } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Core } from '#core/core.ts';
import { fileDriver, localDriver } from '#core/csi-drivers.ts';
import type { FilesystemSpace } from '#front/csi/driver-context.ts';
import { createCsiServer } from '#front/csi/server.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { VolumeCapability_AccessMode_Mode as Mode, type VolumeCapabilitySchema } from '#wire/csi/generated/csi.ts';
import { aCall, collectingLog } from './core-calls.ts';
import { type GatedKind, gated } from './fakes/gated-store.ts';
import { connectToDisk } from './fakes/nfs-on-disk.ts';
import { type GrpcClient, grpcClient } from './grpc-client.ts';
import { startServer, type TestServer } from './server.ts';

type Capability = MessageInitShape<typeof VolumeCapabilitySchema>;

/** A single-node file system volume, unless options say otherwise. */
export const mounted = (
  mode: keyof typeof Mode = 'SINGLE_NODE_WRITER',
  mountFlags: string[] = [],
  fsType = '',
): Capability => ({
  accessType: { case: 'mount', value: { mountFlags, fsType } },
  accessMode: { mode: Mode[mode] },
});

export const blockDevice = (mode: keyof typeof Mode = 'SINGLE_NODE_WRITER'): Capability => ({
  accessType: { case: 'block', value: {} },
  accessMode: { mode: Mode[mode] },
});

/** A new server for each test, with stores of both drivers: `local` is local and the default, `silver` is shared. */
export interface Csi {
  server: TestServer;
  nfs: GatedKind;
  local: GatedKind;
  log: ReturnType<typeof collectingLog>;
  /** The folder of target paths. */
  folder: string;
  /** The file system usage that the driver reports for any path. */
  space: FilesystemSpace | undefined;
  /** The user namespace mode that the driver finds for every pod. Undefined: the mode is unknown. */
  users: 'own' | 'host' | undefined;
  /** Starts the driver; `instead` replaces parts of core. */
  start(driver: 'file' | 'local', instead?: Partial<Core>): Promise<GrpcClient>;
}

export function servedCsi(): Csi {
  const clock = systemClock();
  const start: Csi['start'] = async (which, instead) => {
    const at = join(it.folder, `${which}${instead === undefined ? '' : '-other'}.sock`);
    const driver = which === 'file' ? fileDriver : localDriver;
    const core = { ...it.server.core, ...instead };
    const podUsers = async (): Promise<Csi['users']> => it.users;
    const spaceOf = async (): Promise<FilesystemSpace | undefined> => it.space;
    const served = createCsiServer({ core, driver, clock, log: it.log, version: '1.2.3', spaceOf, podUsers });
    await new Promise<void>((resolve) => served.server.listen(at, resolve));
    const client = grpcClient(at);
    onTestFinished(async () => {
      client.session.destroy();
      await served.close(0);
    });
    return client;
  };
  const it = { start } as Csi;
  beforeEach(async () => {
    it.folder = mkdtempSync(join(tmpdir(), 'stowage-csi-'));
    onTestFinished(() => rmSync(it.folder, { recursive: true, force: true }));
    it.users = undefined;
    it.space = { totalBytes: 1000n, freeBytes: 600n, files: 100n, freeFiles: 90n };
    it.nfs = gated(createNfsStoreKind(clock, connectToDisk(it.folder)));
    it.local = gated(createLocalStoreKind());
    it.log = collectingLog();
    it.server = await startServer({ listen: 'none', kinds: [it.local, it.nfs], log: it.log });
    // A test may start another server in the same folder, so this fixture removes the folder.
    const { folder } = it.server;
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    onTestFinished(() => it.server[Symbol.asyncDispose]());
    const silver = mkdtempSync(join(it.folder, 'silver-'));
    await it.server.core.stores.add('silver', `nfs://server${silver}`, aCall());
  });
  return it;
}
