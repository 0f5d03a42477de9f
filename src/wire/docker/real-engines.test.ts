import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { busyboxImage, loadBusybox } from '#testbed/busybox.ts';
import { startDockerd } from '#testbed/dockerd.ts';
import type { TestEngine } from '#testbed/engine-machine.ts';
import { lacks } from '#testbed/lacks.ts';
import { startPodman } from '#testbed/podman.ts';
import { createDockerClient, type DockerClient } from './client.ts';

const { signal } = new AbortController();
const kinds = [
  { kind: 'docker', start: startDockerd, component: 'Engine' },
  { kind: 'podman', start: startPodman, component: 'Podman Engine' },
] as const;

describe.each(kinds)('the API of a real $kind', ({ kind, start, component }) => {
  describe.skipIf(lacks('root', 'mount', 'firewall', kind, 'busybox'))('through the client', () => {
    let engine: TestEngine;
    let client: DockerClient;
    const resources = new AsyncDisposableStack();

    beforeAll(async () => {
      engine = resources.use(await start(signal, { bridges: true }));
      client = resources.use(createDockerClient({ socket: engine.socket, clock: systemClock() }));
    });
    afterAll(() => resources.disposeAsync());

    test('returns its version and security options', async () => {
      await client.ping(signal);
      expect((await client.version(signal)).components).toContain(component);
      expect((await client.info(signal)).securityOptions).toContain('name=seccomp,profile=default');
    });

    test('loads images from a tar', async () => {
      await expect(client.image(busyboxImage, signal)).rejects.toMatchObject({ failure: 'refused', status: 404 });
      // The engine's own program loads and saves the image first; then the client loads the same tar.
      await loadBusybox(engine, signal);
      const id = await client.image(busyboxImage, signal);
      await engine.run('save', '--output', `${engine.plugins}/image.tar`, busyboxImage);
      await engine.run('rmi', busyboxImage);
      async function* tar(): AsyncGenerator<Uint8Array> {
        yield readFileSync(`${engine.plugins}/image.tar`);
      }
      const [name] = await client.loadImage(tar(), signal);
      expect(name).toMatch(/busybox:testbed$/);
      expect(await client.image(busyboxImage, signal)).toBe(id);
    });

    test('creates and removes networks', async () => {
      await expect(client.network('silver', signal)).rejects.toMatchObject({ status: 404 });
      const spec = { name: 'silver', subnet: '10.77.0.0/24', internal: true, labels: { is: 'ours' } };
      const id = await client.createNetwork(spec, signal);
      expect(await client.network('silver', signal)).toEqual({
        id,
        name: 'silver',
        driver: 'bridge',
        internal: true,
        labels: { is: 'ours' },
        subnets: ['10.77.0.0/24'],
      });
      await client.removeNetwork('silver', signal);
      await expect(client.network('silver', signal)).rejects.toMatchObject({ status: 404 });
    });

    test('creates, starts, stops and removes containers', async () => {
      await client.createNetwork({ name: 'gold', subnet: '10.78.0.0/24' }, signal);
      const id = await client.createContainer(
        'worker',
        {
          image: busyboxImage,
          command: ['sleep', '1000'],
          env: ['A=b'],
          user: '1000',
          labels: { is: 'ours' },
          host: {
            binds: ['/etc:/there:ro'],
            network: 'gold',
            capDrop: ['ALL'],
            readOnly: true,
            restart: 'unless-stopped',
          },
        },
        signal,
      );
      const listed = await client.containers(signal);
      expect(listed).toMatchObject([{ id, names: ['worker'], state: 'created', labels: { is: 'ours' } }]);
      expect(listed[0]?.mounts).toMatchObject([{ type: 'bind', source: '/etc', destination: '/there' }]);
      await client.startContainer(id, signal);
      await client.startContainer(id, signal);
      const started = await client.container('worker', signal);
      expect(started).toMatchObject({ id, name: 'worker', state: { status: 'running', running: true, exitCode: 0 } });
      expect(started.state.pid).toBeGreaterThan(0);
      expect(started.networks['gold']?.address).toMatch(/^10\.78\.0\./);
      expect(started.sandbox).toMatch(/netns/);
      expect(started.labels).toMatchObject({ is: 'ours' });
      expect(await engine.run('exec', 'worker', 'id', '-u')).toBe('1000');
      await client.stopContainer(id, 0, signal);
      await client.stopContainer(id, 0, signal);
      expect((await client.container(id, signal)).state).toMatchObject({ status: 'exited', running: false });
      await client.removeContainer(id, signal);
      await expect(client.container(id, signal)).rejects.toMatchObject({ failure: 'refused', status: 404 });
      await expect(client.startContainer(id, signal)).rejects.toMatchObject({ failure: 'refused', status: 404 });
      await client.removeNetwork('gold', signal);
    });

    test('connects a container to a second network', async () => {
      for (const name of ['north', 'south']) await client.createNetwork({ name }, signal);
      const id = await client.createContainer(
        'both',
        { image: busyboxImage, command: ['sleep', '1000'], host: { network: 'north' } },
        signal,
      );
      await client.startContainer(id, signal);
      await client.connect('south', id, signal);
      expect(Object.keys((await client.container(id, signal)).networks).sort()).toEqual(['north', 'south']);
      // The container is still running.
      await client.removeContainer(id, signal);
      for (const name of ['north', 'south']) await client.removeNetwork(name, signal);
    });

    test('streams events from the requested time', async () => {
      const since = Date.now();
      const id = await client.createContainer('', { image: busyboxImage, command: ['true'] }, signal);
      const caller = new AbortController();
      const events = await client.events({ types: ['container'], since }, caller.signal);
      expect((await events.next()).value).toMatchObject({ type: 'container', action: 'create', id });
      await client.removeContainer(id, signal);
      expect((await events.next()).value).toMatchObject({ action: kind === 'docker' ? 'destroy' : 'remove', id });
      caller.abort();
      await expect(events.next()).rejects.toMatchObject({ failure: 'canceled' });
    });
  });
});
