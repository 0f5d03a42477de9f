import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { StoreCheck } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Checks of an open store. Its existing connections do not show that a new one can be opened.

async function openStoreOn(port: number, options: Readonly<Record<string, string>> = {}): Promise<FileStore> {
  const store = await openNfs({
    uri: 'nfs://127.0.0.1/export',
    options: { port: `${port}`, mountport: `${port}`, ...options },
  });
  onTestFinished(() => store.close());
  return store;
}

const lastStepOf = ({ ok, steps }: StoreCheck): object => ({ ok, ...steps.at(-1) });

test('a check notices that this host may no longer connect, and leaves no connection open', async () => {
  const sockets = new Set<Socket>();
  let isAdmitted = true;
  const mayConnect = (socket: Socket): boolean => {
    if (isAdmitted) sockets.add(socket.on('close', () => sockets.delete(socket)));
    return isAdmitted;
  };
  const { server } = await startOwnServer({ path: '/export', mayConnect });
  const store = await openStoreOn(server.port);
  const before = [...sockets];
  expect(before).toHaveLength(1);
  expect(await store.check(scope)).toMatchObject({ ok: true });
  await vi.waitFor(() => expect([...sockets]).toEqual(before));

  isAdmitted = false;
  expect(lastStepOf(await store.check(scope))).toMatchObject({
    ok: false,
    step: 'connect',
    detail: '127.0.0.1 closes every connection from this host at once',
  });
  expect(await store.names(scope)).toEqual([]);
});

test('many concurrent checks of a store with many connections make few connections', async () => {
  let connectionCount = 0;
  const mayConnect = (): boolean => {
    connectionCount++;
    return true;
  };
  const { server } = await startOwnServer({ path: '/export', mayConnect });
  const store = await openStoreOn(server.port, { nconnect: '16' });
  const connectionsMadeBy = async (work: () => Promise<unknown>): Promise<number> => {
    const before = connectionCount;
    await work();
    return connectionCount - before;
  };
  expect(await connectionsMadeBy(() => store.check(scope))).toBe(1);
  const runChecks = (): Promise<StoreCheck[]> => Promise.all(Array.from({ length: 50 }, () => store.check(scope)));
  expect(await connectionsMadeBy(async () => expect((await runChecks()).every(({ ok }) => ok)).toBe(true))).toBe(2);
});

test('with one source port, the check shares the only connection', async () => {
  const { server } = await startOwnServer({ path: '/export' });
  // Above the range of ephemeral ports.
  const sourceport = `${61_000 + Math.floor(Math.random() * 4_000)}`;
  const store = await openStoreOn(server.port, { sourceport });
  expect(await store.check(scope)).toMatchObject({ ok: true });
});

describe.skipIf(lacks('openssl'))('RPC with TLS', () => {
  test('a check reads ca.pem again', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-nfs-check-tls-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const createCertificate = (name: string): void => {
      const keyOptions = [
        'req',
        '-x509',
        '-newkey',
        'ec',
        '-pkeyopt',
        'ec_paramgen_curve:P-256',
        '-nodes',
        '-days',
        '2',
      ];
      const subject = ['-subj', `/CN=${name}`, '-addext', 'subjectAltName=IP:127.0.0.1'];
      const files = ['-keyout', join(folder, `${name}.key`), '-out', join(folder, `${name}.pem`)];
      execFileSync('openssl', [...keyOptions, ...subject, ...files], { stdio: 'pipe' });
    };
    createCertificate('server');
    createCertificate('stranger');
    const tlsFolder = join(folder, 'trusted');
    mkdirSync(tlsFolder);
    copyFileSync(join(folder, 'server.pem'), join(tlsFolder, 'ca.pem'));
    const [key, cert] = ['server.key', 'server.pem'].map((name) => readFileSync(join(folder, name)));
    const { server } = await startOwnServer({ path: '/export', tls: { options: { key, cert }, required: true } });
    const store = await openStoreOn(server.port, { tls: tlsFolder });
    expect(await store.check(scope)).toMatchObject({ ok: true });

    copyFileSync(join(folder, 'stranger.pem'), join(tlsFolder, 'ca.pem'));
    expect(lastStepOf(await store.check(scope))).toMatchObject({
      ok: false,
      step: 'tls',
      detail: expect.stringMatching(/^the certificate of 127\.0\.0\.1 is not trusted/),
    });
    expect(await store.names(scope)).toEqual([]);
  });
});
