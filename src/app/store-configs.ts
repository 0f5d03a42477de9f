import type { Log } from '#base/log.ts';
import { makeFolders } from '#base/make-folders.ts';
import { stowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import type { Records, StoreKind } from '#core/ports.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import type { FileConfig } from './config.ts';
import type { EmbeddedNfs } from './embedded-nfs.ts';
import type { StateFolder } from './state-folder.ts';

export interface StoreSources {
  readonly records: Records;
  readonly state: StateFolder;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly log: Log;
  readonly nfs: EmbeddedNfs | undefined;
  /** Without the default local store. */
  readonly bare: boolean;
  /** The stores that Store objects of a cluster define. */
  readonly cluster: ((kinds: ReadonlyMap<string, StoreKind>) => Promise<readonly StoreConfig[]>) | undefined;
}

/** The stores of the file and those added by hand. Without stores in a file: one local store as the default. Also the store of the embedded
 * NFS server, if it runs. */
export async function storeConfigs(file: FileConfig | undefined, about: StoreSources): Promise<readonly StoreConfig[]> {
  const { records, state, kinds, log, nfs, bare, cluster } = about;
  const configs = new Map<string, StoreConfig>();
  if (!bare && (file === undefined || file.stores.length === 0)) {
    await makeFolders(state.defaultStore, 0o755);
    const path = state.defaultStore.split('/').map(encodeURIComponent).join('/');
    configs.set('local', parseStoreConfig('local', `local://${path}`, 'builtin', kinds));
  }
  for (const { name, uri } of records.stores.list()) {
    try {
      configs.set(name, parseStoreConfig(name, uri, 'api', kinds));
    } catch (thrown) {
      log.warn('a store added with store add is no longer valid', { store: name, why: stowageError(thrown).message });
    }
  }
  for (const config of [...(file?.stores ?? []), ...((await cluster?.(kinds)) ?? [])]) {
    if (configs.has(config.name))
      log.warn(`a store of the ${config.origin} hides one that was added with store add`, { store: config.name });
    configs.set(config.name, config);
  }
  if (nfs !== undefined) {
    // Last, so that it is not the default unless configured.
    if (configs.has(nfs.storeName))
      log.warn('a store hides the store of the embedded NFS server', { store: nfs.storeName, uri: nfs.uri });
    else configs.set(nfs.storeName, parseStoreConfig(nfs.storeName, nfs.uri, 'builtin', kinds));
  }
  return [...configs.values()];
}
