import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openRecords } from '#records/sqlite.ts';
import { defaultPolicy as policy } from '#testing/default-policy.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { StoreConfig, StoreName, VolumeId, VolumeName } from './model.ts';
import type { Records, Store } from './ports.ts';
import { createStoreIdentities, type StoreIdentities } from './store-identity.ts';

const name = 'silver' as StoreName;
const id = 'sv1-1' as VolumeId;
const configAt = (uri: string): StoreConfig => ({ name, uri, origin: 'file', policy, options: {} });

let folder: string;
let records: Records;
let identities: StoreIdentities;

/** Records the identity of the store at that location, as when it is opened. */
function rememberStore(uri: string): void {
  identities.forgetOtherLocation(configAt(uri));
  identities.remember(configAt(uri), { identity: 'it' } as Store);
}

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-identity-'));
  records = openRecords(':memory:');
  identities = createStoreIdentities({ records, clock: createFakeClock() });
  rememberStore('nfs://10.0.0.1,filer:2050/export/a');
  const volume = { id, name: 'v' as VolumeName, store: name, bytes: 1n, access: 'filesystem', labels: {} } as const;
  records.volumes.put({ ...volume, requestId: 'r', createdAt: 1, revision: 1, instance: 'here', enforce: false });
});
afterEach(() => {
  records.close();
  rmSync(folder, { recursive: true });
});

test.each([
  'nfs://10.0.0.1,filer:2050/export/a?timeout=5s',
  'nfs://10.0.0.1,filer,10.0.0.3:2050/export/a',
  'nfs://10.0.0.3,10.0.0.1:2050/export/a',
  'nfs://Filer:2050/export/a',
])('the same server with URI %s is the same location', (uri) => {
  expect(identities.identityOf(configAt(uri))).toBe('it');
  rememberStore(uri);
  expect(records.volumes.byId(id)).toMatchObject({ name: 'v' });
});

test('addresses can be replaced one by one', () => {
  for (const hosts of ['filer,10.0.0.3', '10.0.0.3', '10.0.0.3,[fd00::1]', '[fd00::1]']) {
    const uri = `nfs://${hosts}:2050/export/a`;
    expect(identities.identityOf(configAt(uri))).toBe('it');
    rememberStore(uri);
  }
  expect(records.volumes.byId(id)).toMatchObject({ name: 'v' });
  expect(identities.identityOf(configAt('nfs://10.0.0.1:2050/export/a'))).toBeUndefined();
});

test.each([
  'nfs://10.0.0.2:2050/export/a',
  'nfs://10.0.0.1:2050/export/b',
  'nfs://10.0.0.1:2049/export/a',
  'nfs://10.0.0.1/export/a',
  'local:///export/a',
])('%s is another location', (uri) => {
  expect(identities.identityOf(configAt(uri))).toBeUndefined();
  identities.forgetOtherLocation(configAt(uri));
  expect(records.volumes.byId(id)).toBeUndefined();
});

test('without a host, only the same path is the same location', () => {
  rememberStore('local:///srv/a');
  expect(identities.identityOf(configAt('local:///srv/a?onDelete=retain'))).toBe('it');
  expect(identities.identityOf(configAt('local:///srv/b'))).toBeUndefined();
});
