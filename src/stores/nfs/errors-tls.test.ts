import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import type { StowageError } from '#core/errors.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { expectError, refusal } from '#testing/expected-errors.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import type { FileStore } from '../file-store/verbs.ts';

describe.skipIf(lacks('openssl'))('RPC with TLS', () => {
  let folder: string;
  const pathIn = (...names: readonly string[]): string => join(folder, ...names);
  const read = (name: string): Buffer => readFileSync(pathIn(name));

  function createCertificate(name: string, address: string): void {
    const keyOptions = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    const subject = ['-subj', `/CN=${name}`, '-addext', `subjectAltName=IP:${address}`];
    const files = ['-keyout', pathIn(`${name}.key`), '-out', pathIn(`${name}.pem`)];
    execFileSync('openssl', [...keyOptions, ...subject, ...files], { stdio: 'pipe' });
  }

  /** Creates a folder for the option `tls`. */
  function createTlsFolder(name: string, files: Readonly<Record<string, string>>): string {
    mkdirSync(pathIn(name));
    for (const [to, from] of Object.entries(files)) copyFileSync(pathIn(from), pathIn(name, to));
    return pathIn(name);
  }

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'stowage-nfs-tls-'));
    createCertificate('server', '127.0.0.1');
    createCertificate('elsewhere', '127.0.0.2');
    createCertificate('stranger', '127.0.0.1');
    createCertificate('client', '127.0.0.1');
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  const serve = (name: string, more: object = {}): Promise<OwnServer> => {
    const options = { key: read(`${name}.key`), cert: read(`${name}.pem`), ...more };
    return startOwnServer({ path: '/export', tls: { options, required: true } });
  };

  async function open(own: OwnServer, more: Readonly<Record<string, string>> = {}): Promise<FileStore> {
    const port = `${own.server.port}`;
    const store = await openNfs({ uri: 'nfs://127.0.0.1/export', options: { port, mountport: port, ...more } });
    onTestFinished(() => store.close());
    return store;
  }

  /** Errors may contain the paths of keys and certificates, but never their contents. */
  function expectNoSecret({ message, action, stack = '' }: StowageError): void {
    for (const text of [message, action, stack]) expect(text).not.toMatch(/BEGIN|PRIVATE|CERTIFICATE-----/);
  }

  test('reports that the server requires TLS, and works with TLS', async () => {
    const own = await serve('server');
    const error = await refusal(open(own));
    expectError(error, {
      code: 'denied',
      reason: 'nfs-tls-required',
      message: /127\.0\.0\.1:\/export\) failed: 127\.0\.0\.1 accepts calls only over encrypted connections$/,
      action: /^Set tls=on; or tls=FOLDER with the CA of the server's certificate as ca\.pem/,
    });
    const store = await open(own, { tls: createTlsFolder('good', { 'ca.pem': 'server.pem' }) });
    expect(await store.names(scope)).toEqual([]);
  });

  test('reports a server without TLS', async () => {
    const own = await startOwnServer({ path: '/export' });
    expectError(await refusal(open(own, { tls: 'on' })), {
      code: 'unsupported',
      reason: 'nfs-tls-not-offered',
      message: /127\.0\.0\.1:\/export\) failed: 127\.0\.0\.1 does not support encrypted connections$/,
      action: /^Have the server's administrator enable RPC with TLS \(RFC 9289\)/,
    });
  });

  test('reports a certificate that another CA signed', async () => {
    const own = await serve('server');
    const error = await refusal(open(own, { tls: createTlsFolder('wrong', { 'ca.pem': 'stranger.pem' }) }));
    expectError(error, {
      code: 'denied',
      reason: 'nfs-tls-certificate',
      message:
        /127\.0\.0\.1:\/export\) failed: the certificate of 127\.0\.0\.1 is not trusted: self-signed certificate$/,
      action: /^Put the certificate of the CA that signed the server's certificate into the tls folder as ca\.pem/,
    });
    expectNoSecret(error);
    expect(await refusal(open(own, { tls: 'on' }))).toMatchObject({ reason: 'nfs-tls-certificate' });
  });

  test('reports a server that supports only older TLS versions', async () => {
    const own = await serve('server', { maxVersion: 'TLSv1.2' });
    expectError(await refusal(open(own, { tls: createTlsFolder('older', { 'ca.pem': 'server.pem' }) })), {
      code: 'unavailable',
      reason: 'nfs-tls',
      message: /no encrypted connection to 127\.0\.0\.1 could be made: /,
      action: /The server must support TLS 1\.3\.$/,
    });
  });

  test('reports a certificate of another server', async () => {
    const own = await serve('elsewhere');
    const error = await refusal(open(own, { tls: createTlsFolder('other', { 'ca.pem': 'elsewhere.pem' }) }));
    expectError(error, {
      code: 'denied',
      reason: 'nfs-tls-certificate',
      message: /the certificate of 127\.0\.0\.1 is not trusted: .*127\.0\.0\.1 is not in the cert's list/,
      action: /must match the host in the store's URI/,
    });
  });

  test('reports that a client certificate is missing or unknown, and works with the right one', async () => {
    const own = await serve('server', { ca: read('client.pem'), requestCert: true, rejectUnauthorized: true });
    const expected = {
      code: 'denied',
      reason: 'nfs-tls-client-certificate',
      message:
        /127\.0\.0\.1:\/export\) failed: 127\.0\.0\.1 closed the encrypted connection: it rejected our client certificate/,
      action: /^Put a client certificate that the server trusts into the tls folder, as client\.pem and client\.key/,
    };
    const timeout = '600ms';
    expectError(
      await refusal(open(own, { timeout, tls: createTlsFolder('none', { 'ca.pem': 'server.pem' }) })),
      expected,
    );
    const unknownCertificate = { 'ca.pem': 'server.pem', 'client.pem': 'stranger.pem', 'client.key': 'stranger.key' };
    const error = await refusal(open(own, { timeout, tls: createTlsFolder('unknown', unknownCertificate) }));
    expectError(error, expected);
    expectNoSecret(error);
    const rightCertificate = { 'ca.pem': 'server.pem', 'client.pem': 'client.pem', 'client.key': 'client.key' };
    const store = await open(own, { tls: createTlsFolder('right', rightCertificate) });
    expect(await store.names(scope)).toEqual([]);
  });

  test.each([
    ['an empty folder', {}, 'ca.pem'],
    ['a certificate without its key', { 'client.pem': 'client.pem' }, 'client.key'],
    ['a key without its certificate', { 'ca.pem': 'server.pem', 'client.key': 'client.key' }, 'client.pem'],
  ])('reports %s as a missing file', async (title, files, missing) => {
    const tls = createTlsFolder(title, files);
    expectError(await refusal(openNfs({ uri: 'nfs://127.0.0.1/export', options: { tls } })), {
      code: 'invalid',
      reason: 'nfs-tls-files',
      message: new RegExp(`127\\.0\\.0\\.1:/export\\) failed: the file ${join(tls, missing)} is missing$`),
      action: /^The tls folder must contain ca\.pem, and also client\.pem and client\.key if the server requires/,
    });
  });

  test('reports invalid TLS files', async () => {
    const invalidPem = '-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n';
    const allFiles = { 'ca.pem': 'server.pem', 'client.pem': 'client.pem', 'client.key': 'client.key' };
    const messageWithInvalidFile = async (name: string, change: (tls: string) => void): Promise<string> => {
      const tls = createTlsFolder(`unfit ${name}`, allFiles);
      change(tls);
      const error = await refusal(openNfs({ uri: 'nfs://127.0.0.1/export', options: { tls } }));
      expect(error).toMatchObject({ code: 'invalid', reason: 'nfs-tls-files' });
      expectNoSecret(error);
      return error.message.replace(tls, 'FOLDER').replace(/^.*failed: /, '');
    };
    expect(await messageWithInvalidFile('key', (tls) => writeFileSync(join(tls, 'client.key'), invalidPem))).toMatch(
      /^the file FOLDER\/client\.key cannot be used \(ERR_OSSL_\w+\)$/,
    );
    expect(
      await messageWithInvalidFile('pair', (tls) => copyFileSync(pathIn('stranger.key'), join(tls, 'client.key'))),
    ).toBe('the file FOLDER/client.key cannot be used (ERR_OSSL_X509_KEY_VALUES_MISMATCH)');
    expect(await messageWithInvalidFile('ca', (tls) => writeFileSync(join(tls, 'ca.pem'), invalidPem))).toMatch(
      /^the file FOLDER\/ca\.pem cannot be used \(ERR_OSSL_\w+\)$/,
    );
    const replaceByFolder = (tls: string): void => {
      rmSync(join(tls, 'client.pem'));
      mkdirSync(join(tls, 'client.pem'));
    };
    expect(await messageWithInvalidFile('folder', replaceByFolder)).toBe(
      'the file FOLDER/client.pem cannot be used (EISDIR)',
    );
  });
});
