import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { PluginName } from '#core/containers.ts';
import type { Volume } from '#core/model.ts';
import { createPluginServer, type PluginOptions, type PluginServer } from '#front/docker-plugin/server.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall, collectingLog } from './core-calls.ts';
import { type GatedKind, gated } from './fakes/gated-store.ts';
import { connectToDisk } from './fakes/nfs-on-disk.ts';
import { type Answer, createApi, startServer, type TestServer } from './server.ts';

/** The content type of Stowage's answers to engines. */
export const pluginType = 'application/vnd.docker.plugins.v1.2+json';

/** The answer to a call that returns nothing. */
export const emptyResult = { Err: '' };

export interface Plugin {
  /** Makes a call and returns the answer. The answer includes the HTTP status if it is not 200. */
  (method: string, message?: object): Promise<Record<string, unknown>>;
  raw(method: string, path: string, raw?: string | Buffer, headers?: Record<string, string>): Promise<Answer>;
  readonly at: string;
  readonly served: PluginServer;
  connections(): Promise<number>;
}

/** A new server for each test, with stores of both scopes: `local` is local and the default, `silver` is shared. */
export interface Plugins {
  server: TestServer;
  /** A folder for NFS stores. */
  parent: string;
  nfs: GatedKind;
  local: GatedKind;
  log: ReturnType<typeof collectingLog>;
  /** Serves the plugin to engines until the end of the test. */
  start(name?: PluginName, more?: Partial<PluginOptions>): Promise<Plugin>;
  make(store: string, name: string, more?: object): Promise<Volume>;
}

export function servedPlugins(): Plugins {
  const clock = systemClock();
  const start: Plugins['start'] = async (name = 'stowage-local', more = {}) => {
    const at = join(it.server.folder, name);
    const { core } = it.server;
    const storeOptions = new Set(['squash', 'layout']);
    const served = createPluginServer({ core, plugin: name, storeOptions, clock, log: it.log, ...more });
    await new Promise<void>((resolve) => served.server.listen(at, resolve));
    onTestFinished(() => served.close(0));
    return calling(served, at);
  };
  const make: Plugins['make'] = (store, name, more = {}) => {
    const spec = { store, name, bytes: undefined, access: undefined, labels: {}, ...more };
    return it.server.core.volumes.create(spec, aCall());
  };
  const it = { start, make } as Plugins;
  beforeEach(async () => {
    const parent = mkdtempSync(join(tmpdir(), 'stowage-plugin-'));
    onTestFinished(() => rmSync(parent, { recursive: true, force: true }));
    it.parent = parent;
    it.nfs = gated(createNfsStoreKind(clock, connectToDisk(parent)));
    it.local = gated(createLocalStoreKind());
    it.log = collectingLog();
    it.server = await startServer({ listen: 'none', kinds: [it.local, it.nfs] });
    onTestFinished(() => it.server[Symbol.asyncDispose]());
    const silver = mkdtempSync(join(parent, 'silver-'));
    await it.server.core.stores.add('silver', `nfs://server${silver}`, aCall());
  });
  return it;
}

function calling(served: PluginServer, at: string): Plugin {
  const api = createApi({ socketPath: at });
  const call = async (method: string, message?: object): Promise<Record<string, unknown>> => {
    const raw = message === undefined ? '' : JSON.stringify(message);
    const { status, text, headers } = await api.call('POST', `/${method}`, { raw });
    expect(headers['content-type']).toBe(pluginType);
    const body = JSON.parse(text);
    return status === 200 ? body : { status, ...body };
  };
  const raw: Plugin['raw'] = (method, path, content, headers = {}) =>
    api.call(method, path, { headers, ...(content === undefined ? {} : { raw: content }) });
  const connections = (): Promise<number> =>
    new Promise((resolve) => served.server.getConnections((_error, count) => resolve(count)));
  return Object.assign(call, { raw, at, served, connections });
}
