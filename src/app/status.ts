import { silentLog } from '#base/log.ts';
import type { KeeperStatus } from '#clients/data-path/keepers.ts';
import type { Core } from '#core/core.ts';
import { isForAllStores, maySee, type Principal } from '#front/rest/principal.ts';
import type { DataPathJson, StatusJson } from '#front/rest/schemas.ts';
import { type EngineSocket, isListening } from './engines.ts';
import type { Plugins } from './plugins.ts';
import { version } from './version.ts';

interface StatusSources {
  readonly core: Core;
  readonly startedAt: number;
  readonly ready: boolean;
  readonly addresses: readonly string[];
  readonly plugins: Pick<Plugins, 'sockets'>;
  readonly sockets: readonly EngineSocket[];
  readonly state: string;
  readonly config: string | undefined;
}

/** For a token with a scope: only what is in that scope, and nothing internal to the machine. */
export async function statusOf(about: StatusSources, principal: Principal): Promise<StatusJson> {
  const { core } = about;
  const everywhere = isForAllStores(principal);
  const visible = (store: string | undefined): boolean => maySee(principal, store);
  const stores = core.stores.list().filter(({ config }) => visible(config.name));
  const scope = { signal: AbortSignal.timeout(10_000), log: silentLog() };
  const [mounts, engines, silent] = await Promise.all([
    core.mounts.list(scope),
    enginesJson(everywhere ? about.sockets : []),
    core.liveness.findSilent(
      stores.map(({ config }) => config.name),
      scope,
    ),
  ]);
  const { unable } = core.mounter;
  const { defaultName } = core.stores;
  return {
    version,
    instance: core.instance,
    node: core.node,
    pid: everywhere ? process.pid : null,
    startedAt: new Date(about.startedAt).toISOString(),
    ready: about.ready,
    defaultStore: defaultName !== undefined && visible(defaultName) ? defaultName : null,
    listen: about.addresses.filter((address) => everywhere || !address.startsWith('unix:')),
    state: everywhere ? about.state : null,
    config: everywhere ? (about.config ?? null) : null,
    mounting: { able: unable === undefined, why: unable?.why ?? null, action: unable?.action ?? null },
    plugins: everywhere ? [...about.plugins.sockets] : [],
    engines: [...engines],
    stores: stores.length,
    storesInTrouble: stores
      .filter(({ store, config: { name } }) => store === undefined || silent.has(name) || core.liveness.denialOf(name))
      .map(({ config }) => config.name),
    volumes: stores.reduce((sum, { config }) => sum + core.catalogue.totals(config.name).volumes, 0),
    mounts: mounts.filter(({ volumeId }) => visible(core.catalogue.findRecorded(volumeId)?.store)).length,
    operations: core.operations.runningIn(visible),
    rssBytes: process.memoryUsage.rss(),
  };
}

const enginesJson = (sockets: readonly EngineSocket[]): Promise<StatusJson['engines']> =>
  Promise.all(sockets.map(async ({ kind, socket }) => ({ kind, socket, reachable: await isListening(socket) })));

export function dataPathJson({ name, state }: KeeperStatus): DataPathJson {
  return {
    name,
    state: state?.doing ?? 'not answering',
    mounts: state?.mounts ?? 0,
    pid: state?.active?.pid ?? null,
    version: state?.active?.version ?? null,
    standby: state?.standby != null,
    takeovers: state?.takeovers ?? 0,
    deaths: state?.deaths ?? 0,
    report: state?.report ?? '',
  };
}
