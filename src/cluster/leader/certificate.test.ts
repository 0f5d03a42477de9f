import { execFileSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect, createServer } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { serverNames } from '../names.ts';
import { type Credential, createCredential, readCredential } from './certificate.ts';

const names = serverNames('stowage-system');
const now = Date.UTC(2026, 10, 16, 12, 0, 0);
const day = 24 * 3_600_000;

/** Connects a client to a server with this certificate, and returns the client's error, or an empty string. */
async function connectError(
  server: Credential,
  client: { readonly ca: string; readonly servername: string },
): Promise<string> {
  const listener = createServer(server, (socket) => socket.on('error', () => undefined).end()).listen(0, '127.0.0.1');
  listener.on('tlsClientError', () => undefined);
  onTestFinished(() => void listener.close());
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;
  const socket = connect({ ...client, port, host: '127.0.0.1', allowPartialTrustChain: true });
  const { promise, resolve } = Promise.withResolvers<string>();
  socket.once('secureConnect', () => resolve(''));
  socket.once('error', (error) => resolve('code' in error ? String(error.code) : error.message));
  const errorText = await promise;
  socket.destroy();
  return errorText;
}

describe('a new certificate', () => {
  test('is valid for the Service’s names, self-signed, and not a CA', () => {
    const certificate = new X509Certificate(createCredential(names, now).cert);
    expect(certificate.subjectAltName).toBe(
      'DNS:stowage.stowage-system.svc, DNS:stowage.stowage-system.svc.cluster.local, DNS:stowage',
    );
    expect([certificate.subject, certificate.issuer]).toEqual([
      'CN=stowage.stowage-system.svc',
      'CN=stowage.stowage-system.svc',
    ]);
    expect(certificate.verify(certificate.publicKey)).toBe(true);
    expect(certificate.ca).toBe(false);
    expect(certificate.keyUsage).toEqual(['1.3.6.1.5.5.7.3.1']);
    expect(certificate.publicKey.asymmetricKeyDetails).toEqual({ namedCurve: 'prime256v1' });
    expect(certificate.validFromDate.getTime()).toBe(now - day);
    expect(certificate.validToDate.getTime()).toBe(now + 365 * day);
  });

  test('differs each time, with a positive serial number', () => {
    const numbers = Array.from(
      { length: 50 },
      () => new X509Certificate(createCredential(names, now).cert).serialNumber,
    );
    expect(new Set(numbers).size).toBe(50);
    for (const number of numbers) expect(number).toMatch(/^[4-7][0-9A-F]{31}$/);
  });

  test('can expire after 2049', () => {
    const certificate = new X509Certificate(createCredential(names, Date.UTC(2049, 6, 1)).cert);
    expect(certificate.validToDate.toISOString()).toBe('2050-07-01T00:00:00.000Z');
    expect(certificate.validFromDate.toISOString()).toBe('2049-06-30T00:00:00.000Z');
  });

  test.skipIf(lacks('openssl'))('passes the strict checks of openssl, except for being self-signed', () => {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-cert-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'cert');
    writeFileSync(path, createCredential(names, Date.now()).cert);
    const verify = ['verify', '-partial_chain', '-purpose', 'sslserver', '-verify_hostname', names[0], '-CAfile', path];
    expect(execFileSync('openssl', [...verify, path], { encoding: 'utf8' })).toBe(`${path}: OK\n`);
  });

  test('is accepted only by TLS clients that trust it, and only for its names', async () => {
    const [own, other] = [createCredential(names, Date.now()), createCredential(names, Date.now())];
    for (const servername of names) expect(await connectError(own, { ca: own.cert, servername })).toBe('');
    expect(await connectError(own, { ca: own.cert, servername: 'stowage.default.svc' })).toBe(
      'ERR_TLS_CERT_ALTNAME_INVALID',
    );
    expect(await connectError(own, { ca: other.cert, servername: names[0] })).toMatch(
      /SELF_SIGNED|SIGNATURE_FAILURE|UNABLE/,
    );
    const expired = createCredential(names, Date.now() - 400 * day);
    expect(await connectError(expired, { ca: expired.cert, servername: names[0] })).toBe('CERT_HAS_EXPIRED');
  });
});

describe('a stored certificate', () => {
  test('is due for renewal when two thirds of its lifetime are over', () => {
    const { cert, key } = createCredential(names, now);
    const stored = readCredential(cert, key);
    expect(stored.expiresAt).toBe(now + 365 * day);
    expect(stored.renewAt).toBe(now - day + (366 * day * 2) / 3);
    expect([stored.isFor(names[0]), stored.isFor('other.svc')]).toEqual([true, false]);
  });

  test.each<[string, (made: Credential) => readonly [string, string]]>([
    ['no certificate', ({ key }) => ['', key]],
    ['a truncated certificate', ({ cert, key }) => [cert.slice(0, 300), key]],
    ['no key', ({ cert }) => [cert, '']],
    ['the key of another certificate', ({ cert }) => [cert, createCredential(names, now).key]],
    ['a certificate as its key', ({ cert }) => [cert, createCredential(names, now).cert]],
  ])('with %s is refused', (_, broken) => {
    expect(() => readCredential(...broken(createCredential(names, now)))).toThrow(Error);
  });
});
