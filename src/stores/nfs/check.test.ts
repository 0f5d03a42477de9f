import { chmodSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { silentLog } from '#base/log.ts';
import type { StoreCheck } from '#core/model.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { startGaneshaWithRpcbind } from '#testbed/rpcbind.ts';
import { aCall, waitForOptions } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { connectScripted, refusing } from '#testing/fakes/scripted-nfs.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { startServer, type TestServer } from '#testing/server.ts';
import type { NfsClient } from '#wire/nfs3/index.ts';
import { checkNfs } from './check.ts';
import { createNfsStoreKind } from './kind.ts';
import { parseOptions } from './options.ts';

/** The steps as text, such as `resolve ✓, connect ✗`. */
const summaryOf = ({ steps }: StoreCheck): string =>
  steps.map(({ step, ok }) => `${step} ${ok ? '✓' : '✗'}`).join(', ');

function expectFailed(check: StoreCheck, steps: string, detail: RegExp, action: RegExp): void {
  expect(summaryOf(check)).toBe(steps);
  expect(check.ok).toBe(false);
  expect(check.steps.at(-1)?.detail).toMatch(detail);
  expect(check.steps.at(-1)?.action).toMatch(action);
}

const kind = createNfsStoreKind();
const kinds = [createLocalStoreKind(), kind];

/** A Stowage with a store that is configured, whether it can be opened or not. */
async function stowageWith(uri: string): Promise<TestServer> {
  const server = await startServer({ listen: 'none', kinds });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const config = parseStoreConfig('silver', uri, 'file', new Map(kinds.map((one) => [one.scheme, one])));
  await server.core.stores.configure([config], undefined, aCall());
  return server;
}
const check = (server: TestServer): Promise<StoreCheck> => server.core.stores.check('silver', aCall());
const checkNewStore = async (uri: string): Promise<StoreCheck> => check(await stowageWith(uri));

const healthySummary = 'resolve ✓, connect ✓, mount ✓, write ✓, fsync ✓, delete ✓, round-trip ✓, room ✓';

describe.skipIf(lacks('ganesha', 'mount'))('nfs-ganesha', () => {
  let scratch: ScratchFolder;
  let ganesha: NfsServer;
  const pathIn = (...names: readonly string[]): string => join(scratch.folder, ...names);
  const uri = (path: string, more = ''): string =>
    `nfs://${ganesha.host}:${ganesha.nfsPort}${pathIn(path)}?mountport=${ganesha.mountPort}${more}`;

  beforeAll(async () => {
    scratch = createScratchFolder();
    for (const name of ['plain', 'squashed', 'read-only']) mkdirSync(pathIn(name));
    ganesha = await startGanesha({
      exports: [
        { path: pathIn('plain'), tag: 'plain' },
        { path: pathIn('squashed'), tag: 'squashed', squash: 'root' },
        { path: pathIn('read-only'), tag: 'read-only', readOnly: true },
      ],
      signal: scratch.scope.signal,
    });
  });
  afterAll(async () => {
    await ganesha?.[Symbol.asyncDispose]();
    scratch?.[Symbol.dispose]();
  });

  test('a healthy store passes all steps, and the check leaves nothing behind', async () => {
    const server = await stowageWith(uri('plain'));
    // Opening the store writes to the folder.
    await vi.waitFor(() => expect(server.core.stores.view('silver').store).toBeDefined(), waitForOptions);
    const before = readdirSync(pathIn('plain'), { recursive: true });
    const found = await check(server);
    expect(summaryOf(found)).toBe(healthySummary);
    expect(found.ok).toBe(true);
    expect(found.freeBytes).toBeGreaterThan(0n);
    expect(found.totalBytes).toBeGreaterThanOrEqual(found.freeBytes ?? 0n);
    const details = Object.fromEntries(found.steps.map(({ step, detail }) => [step, detail]));
    expect(details).toMatchObject({
      resolve: ganesha.host,
      connect: `${ganesha.host}, port ${ganesha.nfsPort}`,
      mount: `${pathIn('plain')}, by the service on port ${ganesha.mountPort}`,
      write: 'created a file, owned by 0:0',
      'round-trip': expect.stringMatching(/^\d+\.\d\d ms, the median of 5$/),
    });
    expect(readdirSync(pathIn('plain'), { recursive: true })).toEqual(before);
  });

  test('a server with root squash fails at the step write', async () => {
    expectFailed(
      await checkNewStore(uri('squashed')),
      'resolve ✓, connect ✓, mount ✓, write ✗',
      /^the server denies root access to .*squashed: .*root_squash/,
      /^Set squash=root with the uid and gid/,
    );
    expect(readdirSync(pathIn('squashed'))).toEqual([]);
  });

  test('root squash is reported if all users may write', async () => {
    mkdirSync(pathIn('squashed', 'open'));
    chmodSync(pathIn('squashed', 'open'), 0o777);
    const { steps } = await checkNewStore(uri('squashed/open'));
    expect(steps.find(({ step }) => step === 'write')?.detail).toMatch(
      /^created a file, owned by \d+:\d+: the server maps root to another user \(root_squash\)$/,
    );
  });

  test('a read-only export fails at the step write, unless the store is read-only', async () => {
    expectFailed(
      await checkNewStore(uri('read-only')),
      'resolve ✓, connect ✓, mount ✓, write ✗',
      /is read-only: /,
      /set readOnly=true on the store/,
    );
    const found = await checkNewStore(uri('read-only', '&readOnly=true'));
    expect(summaryOf(found)).toBe('resolve ✓, connect ✓, mount ✓, read ✓, round-trip ✓, room ✓');
    expect(found.ok).toBe(true);
  });

  test('an export that does not exist fails at the step mount', async () => {
    expectFailed(
      await checkNewStore(uri('nothing')),
      'resolve ✓, connect ✓, mount ✗',
      /denies access to .*\/nothing and does not list it/,
      /^Correct the path/,
    );
  });

  test('problems of the store itself are reported after the connection steps', async () => {
    mkdirSync(pathIn('plain', 'odd', '.stowage'), { recursive: true });
    const text = JSON.stringify({ version: 1, uuid: 'c52d12b5-9ba4-4e34-a7fb-0a5a5f4b1f8e', layout: 'image' });
    writeFileSync(pathIn('plain', 'odd', '.stowage', 'store.json'), text);
    const found = await checkNewStore(uri('plain/odd'));
    expect(summaryOf(found)).toBe(`${healthySummary}, open ✗`);
    expect(found.ok).toBe(false);
  });

  test('a frozen server is reported as a timeout', async () => {
    const server = await stowageWith(uri('plain', '&retries=0'));
    await ganesha.freeze();
    try {
      expectFailed(await check(server), 'resolve ✓, connect ✗', /did not answer in time/, /^Try again/);
    } finally {
      ganesha.thaw();
    }
    expect(summaryOf(await check(server))).toBe(healthySummary);
  });
});

describe.skipIf(lacks('ganesha', 'rpcbind'))('a portmapper', () => {
  test('returns the port of the MOUNT service, which the check reports', async () => {
    const scratch = createScratchFolder();
    onTestFinished(() => scratch[Symbol.dispose]());
    const path = join(scratch.folder, 'exported');
    mkdirSync(path);
    const signal = scratch.scope.signal;
    const ganesha = await startGaneshaWithRpcbind({ exports: [{ path, tag: 'it' }], signal });
    onTestFinished(() => ganesha[Symbol.asyncDispose]());
    const found = await checkNewStore(`nfs://${ganesha.host}:${ganesha.nfsPort}${path}`);
    expect(summaryOf(found)).toBe(healthySummary.replace('mount', 'portmap ✓, mount'));
    expect(found.steps.find(({ step }) => step === 'portmap')?.detail).toBe(
      `the MOUNT service is on port ${ganesha.mountPort}`,
    );
  });
});

describe('connecting', () => {
  test('a server that accepts connections and never answers delays a check by less than 10 s, whatever the options', async () => {
    const silent = createServer((socket) => void socket.on('error', () => undefined));
    const port = await new Promise<number>((resolve) => {
      silent.listen(0, '127.0.0.1', () => resolve((silent.address() as { port: number }).port));
    });
    onTestFinished(() => void silent.close());
    const server = await stowageWith(`nfs://127.0.0.1:${port}/x?timeout=60s`);
    const startedAt = performance.now();
    expectFailed(await check(server), 'resolve ✓, connect ✗', /^127\.0\.0\.1 did not answer in time$/, /^Try again/);
    expect(performance.now() - startedAt).toBeLessThan(10_000);
  }, 60_000);

  test('a host name that does not resolve fails at the step resolve', async () => {
    expectFailed(await checkNewStore('nfs://nowhere.invalid/x'), 'resolve ✗', /does not resolve/, /getent hosts/);
  });

  test('a port that nothing listens on fails at the step connect', async () => {
    const server = createServer();
    const port = await new Promise<number>((resolve) => {
      server.listen(0, '127.0.0.1', () => resolve((server.address() as { port: number }).port));
    });
    await new Promise((resolve) => server.close(resolve));
    expectFailed(
      await checkNewStore(`nfs://127.0.0.1:${port}/x?retries=0`),
      'resolve ✓, connect ✗',
      /nothing listens/,
      /started/,
    );
  });

  test('a check continues without a portmapper', async () => {
    const own = await startOwnServer({ path: '/export', host: '127.9.9.9' });
    const { steps } = await checkNewStore(`nfs://127.9.9.9:${own.server.port}/export`);
    expect(steps.find(({ step }) => step === 'portmap')).toMatchObject({
      ok: true,
      detail: 'no answer on port 111; continued without it',
    });
    expect(steps.at(-1)).toMatchObject({ step: 'room', ok: true });
  });

  test('a server without TLS fails at the step tls', async () => {
    const own = await startOwnServer({ path: '/export' });
    expectFailed(
      await checkNewStore(`nfs://127.0.0.1:${own.server.port}/export?tls=on`),
      'resolve ✓, connect ✓, tls ✗',
      /does not support encrypted connections/,
      /RFC 9289/,
    );
    expectFailed(
      await checkNewStore(`nfs://127.0.0.1:${own.server.port}/export?tls=/nowhere`),
      'resolve ✓, tls ✗',
      /\/nowhere\/ca\.pem is missing/,
      /must contain ca\.pem/,
    );
  });
});

describe('the probe file', () => {
  /** A COMMIT that gets no reply before its caller gives up. */
  function createUnansweredCommit(): { readonly reached: Promise<void>; readonly commit: NfsClient['commit'] } {
    const { promise: reached, resolve: reach } = Promise.withResolvers<void>();
    const commit: NfsClient['commit'] = (_file, _from, _count, limits) => {
      const { promise, reject } = Promise.withResolvers<never>();
      limits?.signal?.addEventListener('abort', () => reject(limits.signal?.reason));
      reach();
      return promise;
    };
    return { reached, commit };
  }

  async function createFolder(): Promise<string> {
    const path = await mkdtemp(join(tmpdir(), 'stowage-nfs-check-'));
    onTestFinished(() => rm(path, { recursive: true }));
    return path;
  }

  const check = async (
    path: string,
    script: (real: NfsClient) => Partial<NfsClient>,
    signal = new AbortController().signal,
    clock = createFakeClock(),
  ): Promise<StoreCheck> => {
    const options = parseOptions('nfs://nowhere/export', {});
    const parts = { connect: connectScripted(path, script), readOnly: false, removeLeftovers: async () => undefined };
    return await checkNfs({ options, store: 'test', clock, ...parts }, { signal, log: silentLog() });
  };

  test.each([
    ['write', 'NOSPC', () => ({ write: refusing('NOSPC') }), /no space left/],
    [
      'write',
      'a quota',
      () => ({ write: refusing('DQUOT') }),
      /the quota on the server for nowhere:\/export is used up/,
    ],
    ['write', 'an error after it was written', () => ({ getattr: refusing('IO') }), /input\/output error/],
    ['fsync', 'an error', () => ({ commit: refusing('IO') }), /input\/output error/],
  ] as const)('is removed if %s fails with %s', async (step, _what, script, detail) => {
    const path = await createFolder();
    const { steps } = await check(path, script);
    expect(steps.at(-1)).toMatchObject({ step, ok: false, detail: expect.stringMatching(detail) });
    expect(await readdir(path)).toEqual([]);
  });

  test('is removed by a retry if the deletion fails once', async () => {
    const path = await createFolder();
    let calls = 0;
    const { steps } = await check(path, (real) => ({
      remove: (...args) => (calls++ === 0 ? refusing('ACCES')() : real.remove(...args)),
    }));
    expect(steps.at(-1)).toMatchObject({ step: 'delete', ok: false });
    expect(await readdir(path)).toEqual([]);
  });

  test('is removed if the reply to its creation was lost', async () => {
    const path = await createFolder();
    const { steps } = await check(path, (real) => ({
      create: async (...args) => {
        await real.create(...args);
        throw new Error('lost');
      },
    }));
    expect(steps.at(-1)).toMatchObject({ step: 'write', ok: false });
    expect(await readdir(path)).toEqual([]);
  });

  test('is removed if the caller gives up', async () => {
    const path = await createFolder();
    const controller = new AbortController();
    const { reached, commit } = createUnansweredCommit();
    const checking = check(path, () => ({ commit }), controller.signal);
    await reached;
    expect(await readdir(path)).toHaveLength(1);
    controller.abort(new Error('enough'));
    await expect(checking).rejects.toThrow('enough');
    expect(await readdir(path)).toEqual([]);
  });

  test('is removed if the check takes too long, and the completed steps are reported', async () => {
    const path = await createFolder();
    const clock = createFakeClock();
    const { reached, commit } = createUnansweredCommit();
    const checking = check(path, () => ({ commit }), undefined, clock);
    await reached;
    expect(await readdir(path)).toHaveLength(1);
    clock.advance(8_000);
    expect(summaryOf(await checking)).toBe('resolve ✓, connect ✓, mount ✓, write ✓, fsync ✗');
    expect(await readdir(path)).toEqual([]);
  });
});

test.skipIf(lacks('linux'))('a check from a network that does not exist names the argument to correct', async () => {
  const config = parseStoreConfig('silver', 'nfs://127.0.0.1/export', 'file', new Map([['nfs', kind]]));
  const check = await kind.probe?.(config, config.policy, aCall(), 'netns:no-such-network');
  if (check === undefined) throw new Error('not checked');
  expectFailed(
    check,
    'network ✗',
    /netns:no-such-network does not exist/,
    /the store's option network, or in --from\./,
  );
});
