import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type MetricsText, serveHealth, serveMetrics } from './health.ts';

const contentType = 'text/plain; version=0.0.4';

/** Metrics that count how often they are collected. */
function counted() {
  const it = { count: 0, until: Promise.resolve() };
  const figures: MetricsText = {
    contentType,
    text: async () => {
      it.count++;
      await it.until;
      return `stowage_counted ${it.count}\n`;
    },
  };
  return Object.assign(it, { figures });
}

async function asked(address: string, path: string): Promise<readonly [number, string]> {
  const answer = await fetch(`${address}${path}`);
  return [answer.status, await answer.text()];
}

function served(listen: string | undefined, figures: () => MetricsText | undefined, clock = createFakeClock()) {
  const said: string[] = [];
  const log = { ...silentLog(), warn: (message: string) => void said.push(message) };
  const metrics = serveMetrics(listen, figures, { clock, log });
  onTestFinished(() => metrics[Symbol.asyncDispose]());
  return { metrics, said, clock };
}

describe('the metrics server', () => {
  test('serves only /metrics', async () => {
    const { figures } = counted();
    const address = await served('127.0.0.1:0', () => figures).metrics.address;
    expect(await asked(address, '/metrics')).toEqual([200, 'stowage_counted 1\n']);
    expect((await fetch(`${address}/metrics?x`)).headers.get('content-type')).toBe(contentType);
    for (const path of ['/', '/healthz', '/readyz', '/v1/stores', '/metrics/'])
      expect(await asked(address, path)).toEqual([404, 'not here\n']);
  });

  test.skipIf(lacks('ipv6'))("listens on IPv4 and IPv6 at the chart's address", async () => {
    const { figures } = counted();
    for (const listen of ['[127.0.0.1]:0', '[::1]:0']) {
      const address = await served(listen, () => figures).metrics.address;
      expect((await asked(address, '/metrics'))[0]).toBe(200);
    }
  });

  test('serves metrics as soon as there are any', async () => {
    let figures: MetricsText | undefined;
    const address = await served('127.0.0.1:0', () => figures).metrics.address;
    expect(await asked(address, '/metrics')).toEqual([503, 'there are no metrics yet\n']);
    figures = counted().figures;
    expect(await asked(address, '/metrics')).toEqual([200, 'stowage_counted 1\n']);
  });

  test('collects the metrics once for concurrent requests', async () => {
    const it = counted();
    const { promise, resolve } = Promise.withResolvers<void>();
    it.until = promise;
    let requests = 0;
    const figures = (): MetricsText => {
      requests++;
      return it.figures;
    };
    const address = await served('127.0.0.1:0', figures).metrics.address;
    const asking = Array.from({ length: 5 }, () => asked(address, '/metrics'));
    await expect.poll(() => requests).toBe(5);
    resolve();
    for (const [status] of await Promise.all(asking)) expect(status).toBe(200);
    expect(it.count).toBe(1);
    await asked(address, '/metrics');
    expect(it.count).toBe(2);
  });

  test('waits for its port without blocking the process, and serves when the port is free', async () => {
    const other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
    const { port } = other.address() as AddressInfo;
    const { metrics, said, clock } = served(`127.0.0.1:${port}`, () => counted().figures);
    await expect.poll(() => said).toEqual(['cannot serve metrics on this address yet']);
    clock.advance(10_000);
    await other[Symbol.asyncDispose]();
    let address: string | undefined;
    void metrics.address.then((where) => {
      address = where;
    });
    await expect
      .poll(() => {
        clock.advance(10_000);
        return address;
      })
      .toBe(`http://127.0.0.1:${port}`);
    expect((await asked(`http://127.0.0.1:${port}`, '/metrics'))[0]).toBe(200);
    expect(said).toHaveLength(1);
  });

  test('rejects an invalid address at once', () => {
    expect(() => served('here', () => undefined)).toThrow("'here' is not a valid listen address");
  });

  test('limits the number of connections', async () => {
    const { figures } = counted();
    const address = new URL(await served('127.0.0.1:0', () => figures).metrics.address);
    const sockets = Array.from({ length: 40 }, () => connect(Number(address.port), address.hostname));
    onTestFinished(() => {
      for (const socket of sockets) socket.destroy();
    });
    let ended = 0;
    for (const socket of sockets)
      socket
        .on('error', () => undefined)
        .on('close', () => {
          ended++;
        })
        .resume();
    await expect.poll(() => ended).toBe(8);
  });

  test('does not wait for open connections when it ends', async () => {
    const { figures } = counted();
    const metrics = serveMetrics('127.0.0.1:0', () => figures, { clock: createFakeClock(), log: silentLog() });
    const address = new URL(await metrics.address);
    const socket = connect(Number(address.port), address.hostname);
    await once(socket, 'connect');
    const over = once(socket.resume(), 'close');
    await metrics[Symbol.asyncDispose]();
    await over;
    await expect(asked(address.origin, '/metrics')).rejects.toThrow();
  });
});

test('the health server answers probes, and serves metrics if there are any', async () => {
  let why: string | undefined = 'the agent is starting';
  const { figures } = counted();
  const health = await serveHealth(
    '127.0.0.1:0',
    () => why,
    () => figures,
  );
  onTestFinished(() => health[Symbol.asyncDispose]());
  const address = health.address ?? '';
  expect(await asked(address, '/healthz')).toEqual([200, 'ok\n']);
  expect(await asked(address, '/readyz')).toEqual([503, 'the agent is starting\n']);
  why = undefined;
  expect(await asked(address, '/readyz')).toEqual([200, 'ok\n']);
  expect(await asked(address, '/metrics')).toEqual([200, 'stowage_counted 1\n']);
  expect(await asked(address, '/other')).toEqual([404, 'not here\n']);
});
