import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { createKeepers } from '#clients/data-path/keepers.ts';
import { createDirectoryClient } from '#clients/kinds/directory.ts';
import { createLoopClient } from '#clients/kinds/loop.ts';
import { createNfsClient } from '#clients/kinds/nfs.ts';
import { readMountTable } from '#clients/mounter/mountinfo.ts';
import { createPathAccess } from '#clients/mounter/path-access.ts';
import { createRunProgram } from '#clients/mounter/run-program.ts';
import { createUnableMounter } from '#clients/mounter/unable-mounter.ts';
import { openRecords } from '#records/sqlite.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClients } from '#testing/fakes/clients.ts';
import { createFakeMounts } from '#testing/fakes/mounts.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { type Core, createCore } from './core.ts';
import type { NodeName } from './model.ts';

/** Core with a mounter that cannot mount, as when an ordinary user runs Stowage. */
function unprivileged(): { readonly core: Core; readonly folder: (name: string) => string } {
  const parent = mkdtempSync(join(tmpdir(), 'stowage-unable-'));
  const folder = (name: string): string => mkdtempSync(join(parent, name));
  const clock = systemClock();
  const mounter = createUnableMounter({ why: 'no right to', action: 'Run it as root.' }, async () => []);
  const kinds = [createLocalStoreKind(), createNfsStoreKind(clock, connectToDisk(folder('exported')))];
  const core = createCore({
    records: openRecords(':memory:'),
    kinds: new Map(kinds.map((kind) => [kind.scheme, kind])),
    mounter,
    clients: {
      ...createFakeClients(createFakeMounts()),
      directory: createDirectoryClient({ mounter }),
      loop: createLoopClient({ mounter, run: createRunProgram(clock, undefined, parent), clock }),
      nfs: createNfsClient({
        mounter,
        clock,
        run: createRunProgram(clock, undefined, parent),
        accessPath: createPathAccess(clock),
        readTable: readMountTable,
        instance: 'here',
        keepers: createKeepers({
          clock,
          log: silentLog(),
          folder: folder('keepers'),
          version: 'v',
          onMountsLost: () => undefined,
          onAbandoned: () => undefined,
        }),
      }),
    },
    mountsFolder: folder('mounts'),
    publishedFolder: folder('published'),
    engines: [],
    instance: 'i',
    epoch: 'e',
    boot: undefined,
    node: 'n' as NodeName,
    clock,
    log: silentLog(),
  });
  onTestFinished(async () => {
    await core.close();
    rmSync(parent, { recursive: true });
  });
  return { core, folder };
}

test('reports a source that nobody can mount before missing privileges of this process', async () => {
  const { core, folder } = unprivileged();
  await core.stores.add('silver', 'nfs://nowhere/export?sourceport=700', aCall());
  await core.stores.add('here', `local://${folder('here')}`, aCall());
  const mount = async (store: string): Promise<unknown> => {
    const want = { store, name: 'v', bytes: undefined, access: undefined, labels: {} };
    const { id } = await core.volumes.create(want, aCall());
    return await core.mounts.publish(id, folder('target'), { readOnly: false, user: undefined }, aCall());
  };
  await expect(mount('silver')).rejects.toMatchObject({ code: 'unsupported', reason: 'source-port-taken' });
  await expect(mount('here')).rejects.toMatchObject({ code: 'unsupported', reason: 'mount-unable' });
});
