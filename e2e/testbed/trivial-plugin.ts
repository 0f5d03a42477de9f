import { once } from 'node:events';
import { mkdir, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { TestEngine } from './engine-machine.ts';

export interface PluginCall {
  /** `Mount`, `Unmount`, `Get` …; `Activate` for Plugin.Activate. */
  readonly method: string;
  /** Empty if the call has none. */
  readonly name: string;
  readonly id: string;
}

/** A minimal volume plugin whose volumes are folders. */
export interface TrivialPlugin extends AsyncDisposable {
  readonly calls: readonly PluginCall[];
}

export async function startTrivialPlugin(
  engine: Pick<TestEngine, 'plugins'>,
  plugin: 'stowage' | 'stowage-local',
): Promise<TrivialPlugin> {
  const socket = join(engine.plugins, `${plugin}.sock`);
  const root = join(engine.plugins, `${plugin}-volumes`);
  const calls: PluginCall[] = [];
  const volumes = new Set<string>();
  const volumeOf = (name: string): object => ({ Name: name, Mountpoint: join(root, name) });

  async function answer(method: string, name: string): Promise<object> {
    switch (method) {
      case 'Activate':
        return { Implements: ['VolumeDriver'] };
      case 'Capabilities':
        return { Capabilities: { Scope: plugin === 'stowage' ? 'global' : 'local' } };
      case 'Create':
        await mkdir(join(root, name), { recursive: true });
        volumes.add(name);
        return {};
      case 'Remove':
        volumes.delete(name);
        return {};
      case 'List':
        return { Volumes: [...volumes].map(volumeOf) };
      case 'Get':
        return volumes.has(name) ? { Volume: volumeOf(name) } : { Err: `no volume ${name}` };
      default:
        return volumeOf(name);
    }
  }

  const server = createServer((request, response) => {
    void (async () => {
      const body = await text(request);
      const { Name: name = '', ID: id = '' } = (body === '' ? {} : JSON.parse(body)) as Record<string, string>;
      const method = (request.url ?? '').replace(/^.*\./, '');
      calls.push({ method, name, id });
      const reply = { Err: '', ...(await answer(method, name)) };
      response.writeHead(reply.Err === '' ? 200 : 500, { 'content-type': 'application/vnd.docker.plugins.v1.1+json' });
      response.end(JSON.stringify(reply));
    })();
  });
  server.listen(socket);
  await once(server, 'listening');
  return {
    calls,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
      await rm(root, { recursive: true, force: true });
    },
  };
}
