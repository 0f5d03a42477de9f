import { silentLog } from '#base/log.ts';
import type { Engine } from '#core/engine.ts';
import type { StatusJson } from '#front/rest/schemas.ts';
import { version } from './version.ts';

export async function statusOf(about: {
  readonly engine: Engine;
  readonly startedAt: number;
  readonly ready: boolean;
  readonly addresses: readonly string[];
  readonly state: string;
  readonly config: string | undefined;
}): Promise<StatusJson> {
  const { engine } = about;
  const stores = engine.stores.list();
  const { unable } = engine.mounter;
  return {
    version,
    instance: engine.instance,
    node: engine.node,
    pid: process.pid,
    startedAt: new Date(about.startedAt).toISOString(),
    ready: about.ready,
    defaultStore: engine.stores.defaultName ?? null,
    listen: [...about.addresses],
    state: about.state,
    config: about.config ?? null,
    mounting: { able: unable === undefined, why: unable?.why ?? null, action: unable?.action ?? null },
    stores: stores.length,
    volumes: stores.reduce((sum, { config }) => sum + engine.records.volumes.totals(config.name).volumes, 0),
    mounts: (await engine.mounts.list({ signal: AbortSignal.timeout(5_000), log: silentLog() })).length,
    operations: engine.operations.running,
    rssBytes: process.memoryUsage.rss(),
  };
}
