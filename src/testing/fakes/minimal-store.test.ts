import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { NodeName, StoreConfig } from '#core/model.ts';
import { storeName } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import { type StoreUnderTest, scope, storeContract } from '../contracts/store.ts';
import { defaultPolicy as policy } from '../default-policy.ts';
import { createMinimalStoreKind } from './minimal-store.ts';

async function minimalStore(): Promise<StoreUnderTest> {
  const root = await mkdtemp(join(tmpdir(), 'stowage-minimal-'));
  const kind = createMinimalStoreKind();
  const config: StoreConfig = { name: storeName('test'), uri: `minimal://${root}`, origin: 'api', policy, options: {} };
  const instance = 'instance-1';
  const open = async (readOnly: boolean): Promise<Store> =>
    await kind.open(config, { ...policy, readOnly }, { instance, node: 'node-1' as NodeName }, scope);
  return {
    store: await open(false),
    instance,
    reopen: () => open(false),
    reopenReadOnly: () => open(true),
    plant: (name) => mkdir(join(root, name)),
    lose: ({ id }) => rm(join(root, id), { recursive: true }),
    mark: ({ id }, text) => writeFile(join(root, id, 'mark'), text),
    readMark: async ({ id }) => {
      const path = join(root, id, 'mark');
      return existsSync(path) ? await readFile(path, 'utf8') : undefined;
    },
    count: async () => (await readdir(root)).length + kind.volumesAt(root).size,
    [Symbol.asyncDispose]: () => rm(root, { recursive: true, force: true }),
  };
}

storeContract('a store with the required members only', minimalStore, []);
