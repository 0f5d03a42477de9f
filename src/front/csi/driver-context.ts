import { randomUUID } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import { type CsiDriver, driverFor } from '#core/csi-drivers.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreName } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import { nodeTopologyKey, topologyOfNode } from '#core/node-topology.ts';
import type { Call } from '#core/operations.ts';
import type { StoreView } from '#core/store-view.ts';
import type { GrpcCall } from '#wire/csi/grpc.ts';
import type { RunExclusive } from './run-exclusive.ts';
import type { UsageCounter } from './usage-counter.ts';

/** statfs(2) of a mounted file system. */
export interface FilesystemSpace {
  readonly totalBytes: bigint;
  readonly freeBytes: bigint;
  readonly files: bigint;
  readonly freeFiles: bigint;
}

/** `own`: the pod has a user namespace of its own. `host`: it uses the host's. Undefined: not known. */
export type PodUserNamespaceLookup = (
  pod: { readonly namespace: string; readonly name: string; readonly uid: string },
  signal: AbortSignal,
) => Promise<'own' | 'host' | undefined>;

/** What all methods of one driver share. */
export interface DriverContext {
  readonly core: Core;
  readonly driver: CsiDriver;
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly runExclusive: RunExclusive;
  readonly usageCounter: UsageCounter;
  /** Undefined: statfs did not answer in time. */
  readonly spaceOf: (path: string) => Promise<FilesystemSpace | undefined>;
  /** Left out if this process cannot look up pods. */
  readonly podUsers?: PodUserNamespaceLookup | undefined;
  /** How many volumes this node may have mounted; undefined: the default. */
  readonly maxVolumes?: number | undefined;
}

export const callFrom = ({ log }: DriverContext, { signal }: GrpcCall): Call => ({
  signal,
  log,
  requestId: `csi:${randomUUID()}`,
});

/** Each driver sees only the stores of its own placement. */
export const storesOf = ({ core, driver }: Pick<DriverContext, 'core' | 'driver'>): readonly StoreView[] =>
  core.stores.list().filter((view) => driverFor(view.placement) === driver);

export const isStoreOfDriver =
  (ctx: Pick<DriverContext, 'core' | 'driver'>) =>
  (store: string): boolean =>
    storesOf(ctx).some(({ config }) => config.name === store);

/** The store that the request names, else the default store, else the only store. Undefined: none of these exists. */
export function chooseStore(
  ctx: Pick<DriverContext, 'core' | 'driver'>,
  wanted: string | undefined,
): StoreView | undefined {
  const all = storesOf(ctx);
  if (wanted === undefined) return all.find((view) => view.default) ?? (all.length === 1 ? all[0] : undefined);
  const found = all.find(({ config }) => config.name === wanted);
  if (found !== undefined) return found;
  const [driver, stores] = [ctx.driver.name, storeNamesText(all)];
  throw new StowageError(`driver ${driver} has no store ${quoted(wanted)}`, {
    code: 'invalid',
    reason: 'csi-store-unknown',
    action: `Set the parameter store to one of the stores of the driver: ${stores}`,
  });
}

export function storeRequired(ctx: Pick<DriverContext, 'core' | 'driver'>): StowageError {
  const [driver, stores] = [ctx.driver.name, storeNamesText(storesOf(ctx))];
  return new StowageError(`the request has no parameter store, and driver ${driver} has no default store`, {
    code: 'invalid',
    reason: 'csi-store-required',
    action: `Set the parameter store to one of the stores of the driver: ${stores}`,
  });
}

const storeNamesText = (views: readonly StoreView[]): string =>
  views.length === 0 ? 'none is configured' : views.map(({ config }): StoreName => config.name).join(', ');

export const topologyOf = ({ core }: Pick<DriverContext, 'core'>): Readonly<Record<string, string>> => ({
  [nodeTopologyKey]: topologyOfNode(core.node),
});
