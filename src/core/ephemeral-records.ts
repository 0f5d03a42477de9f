import type { StoreName, Volume } from './model.ts';
import type { Records } from './ports.ts';

/** An ephemeral volume, from before its creation until after its destruction. */
export interface EphemeralRecord {
  readonly key: string;
  readonly store: StoreName;
  readonly target: string;
  /** The volume was unpublished and must be destroyed. */
  readonly over: boolean;
  /** The original request. Undefined: an older version did not record it. */
  readonly asked?: RequestedSize | undefined;
}

export interface RequestedSize {
  readonly bytes: string | null;
  readonly enforce: boolean;
}

export interface EphemeralRecords {
  list(): readonly EphemeralRecord[];
  get(key: string): EphemeralRecord | undefined;
  /** The record is durable when this returns. */
  save(record: EphemeralRecord): void;
  forget(key: string): void;
  /** The record of the volume that the request for this key created. */
  volumeOf(record: Pick<EphemeralRecord, 'key' | 'store'>): Volume | undefined;
}

const settingKey = 'ephemeral.volumes';

/** The request id of the create. */
export const requestIdOf = (key: string): string => `ephemeral:${key}`;

export function createEphemeralRecords({ settings, volumes }: Pick<Records, 'settings' | 'volumes'>): EphemeralRecords {
  const list = (): readonly EphemeralRecord[] => JSON.parse(settings.get(settingKey) ?? '[]');
  const saveAll = (all: readonly EphemeralRecord[]): void => settings.set(settingKey, JSON.stringify(all));
  return {
    list,
    get: (key) => list().find((record) => record.key === key),
    save: (one) => saveAll([...list().filter(({ key }) => key !== one.key), one]),
    forget: (key) => saveAll(list().filter((one) => one.key !== key)),
    volumeOf: ({ key, store }) => volumes.byRequest(store, requestIdOf(key)),
  };
}
