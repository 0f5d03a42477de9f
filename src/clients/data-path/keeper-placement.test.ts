import { describe, expect, onTestFinished, test } from 'vitest';
import type { Clock } from '#base/clock.ts';
import { systemClock } from '#base/clock.ts';
import { type Script, startScriptedEngine } from '#testbed/scripted-engine.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createDockerClient } from '#wire/docker/client.ts';
import { createKeeperPlacement, type KeeperPlace } from './keeper-placement.ts';

const id = 'ab12'.repeat(16);
const { signal } = new AbortController();
const containerEvidence = async () => ({ mountinfo: '', cgroup: `0::/docker/${id}`, hostname: '' });
const ownContainer = {
  Id: id,
  Name: '/stowage',
  Image: 'sha256:1',
  Mounts: [{ Type: 'bind', Source: '/run/stowage', Destination: '/run/stowage' }],
  State: { Status: 'running', Running: true, Pid: 1, ExitCode: 0 },
  NetworkSettings: { Networks: { host: {} } },
};
const respondWith =
  (answer: object, status = 200): Script =>
  (_path, _request, response) =>
    void response.writeHead(status).end(JSON.stringify(answer));

async function createPlacement(script: Script, requestedPlace?: KeeperPlace, clock: Clock = systemClock()) {
  const engine = await startScriptedEngine(script);
  const client = createDockerClient({ socket: engine.socket, clock });
  onTestFinished(async () => {
    client[Symbol.dispose]();
    await engine[Symbol.asyncDispose]();
  });
  const messages: string[] = [];
  const placement = createKeeperPlacement(
    { engines: new Map([['docker', client]]), instance: 'test', requestedPlace },
    { folder: '/run/stowage/keepers', clock, logOnce: (message) => void messages.push(message) },
    containerEvidence,
  );
  return { engine, placement, told: messages };
}

describe('keepers run in containers of their own', () => {
  test('if an engine knows the container of this process', async () => {
    const { placement, told } = await createPlacement(respondWith(ownContainer));
    expect(await placement.choosePlace(signal)).toMatchObject({ id });
    expect(told).toEqual([]);
  });

  test('but not if configured otherwise', async () => {
    const { engine, placement } = await createPlacement(respondWith(ownContainer), 'process');
    expect(await placement.choosePlace(signal)).toBe('here');
    expect(engine.requests).toEqual([]);
  });

  test.each([
    ['no container engine', respondWith({ message: 'No such container' }, 404)],
    ['is not in a folder mounted from the host', respondWith({ ...ownContainer, Mounts: [] })],
    ['has another network', respondWith({ ...ownContainer, NetworkSettings: { Networks: { bridge: {} } } })],
  ])('but not if that is impossible: %s', async (why, script) => {
    const { placement, told } = await createPlacement(script);
    expect(await placement.choosePlace(signal)).toBe('here');
    expect(told).toEqual(['data paths end when this container ends']);
    const requested = await createPlacement(script, 'container');
    await expect(requested.placement.choosePlace(signal)).rejects.toMatchObject({
      reason: 'keeper-container-impossible',
      message: expect.stringContaining(why),
    });
  });

  test('as soon as the engine answers; while it starts, it waits for us', async () => {
    const clock = createFakeClock();
    const reached = Promise.withResolvers<void>();
    const { engine, placement, told } = await createPlacement(() => reached.resolve(), undefined, clock);
    const first = placement.choosePlace(signal);
    await reached.promise;
    clock.advance(1_000);
    expect(await first).toBe('later');
    expect(told).toEqual(['data paths start in this container until its engine answers']);
    engine.script = respondWith(ownContainer);
    expect(await placement.choosePlace(signal)).toMatchObject({ id });
    // Searched once, and pinged each time.
    await engine.stop();
    expect(await placement.choosePlace(signal)).toBe('later');
  });
});
