import { expect, onTestFinished, test } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { createMemoryRecords } from '#testing/fakes/records.ts';
import { createCatalogueRefresh } from './catalogue-refresh.ts';
import { relayed } from './errors.ts';
import type { StoreName, Volume, VolumeName } from './model.ts';
import { newVolumeId } from './names.ts';
import type { Store } from './ports.ts';
import type { Stores } from './stores.ts';

const unreadable = relayed('the record is damaged', { code: 'conflict', reason: 'record-damaged', action: 'Look.' });
const instance = 'instance-1';
const silver = 'silver' as StoreName;
const named = (name: string): Volume => ({
  id: newVolumeId(),
  name: name as VolumeName,
  store: silver,
  bytes: undefined,
  enforce: false,
  access: 'filesystem',
  labels: {},
  requestId: `made-${name}`,
  createdAt: 1,
  instance,
  revision: 1,
});

test('a refresh of a store without a list of names keeps records that cannot be read and drops records of volumes that are gone', async () => {
  using kept = createMemoryRecords();
  const records = kept.open();
  onTestFinished(() => records.close());
  const [fine, damaged, gone] = [named('fine'), named('damaged'), named('gone')];
  for (const volume of [fine, damaged, gone]) records.volumes.put(volume);
  const store: Pick<Store, 'name' | 'list' | 'get'> = {
    name: silver,
    list: async function* () {
      yield fine;
    },
    get: async (name) => {
      if (name === damaged.name) throw unreadable;
      return name === fine.name ? { volume: fine, condition: 'ok' } : undefined;
    },
  };
  const stores = { list: () => [{ config: { name: silver }, store }] } as unknown as Stores;
  const refresh = createCatalogueRefresh({ records, stores: () => stores, instance });
  for (let n = 0; n < 2; n++) {
    await refresh.refreshStore(store as Store, aCall());
    expect(records.volumes.names(silver).map(({ name }) => name)).toEqual(['damaged', 'fine']);
    expect([...refresh.unreadableRecords(store as Store).keys()]).toEqual(['damaged']);
  }
});
