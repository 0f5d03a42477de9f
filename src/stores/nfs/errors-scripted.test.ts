import { readdirSync, rmSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { scope } from '#testing/contracts/store.ts';
import { expectError, refusal } from '#testing/expected-errors.ts';
import { connectScripted, refusing } from '#testing/fakes/scripted-nfs.ts';
import { exportFolder, openNfs } from '#testing/nfs-store.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { RpcError } from '#wire/nfs3/index.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import { createNfsStoreKind } from './kind.ts';

describe('errors from a scripted server', () => {
  test.each([
    ['DQUOT', 'exhausted', 'store-quota', /the quota on the server for nowhere:\/export is used up$/, /raise it/],
    ['NOSPC', 'exhausted', 'store-full', /no space left on the server's disk of nowhere:\/export$/, /add space/],
    [
      'STALE',
      'unavailable',
      'nfs-stale',
      /the server no longer knows nowhere:\/export/,
      /put the original directory back/,
    ],
    ['BADHANDLE', 'unavailable', 'nfs-stale', /the server no longer knows nowhere:\/export/, /export it again/],
    ['IO', 'unavailable', 'store-io-error', /input\/output error for nowhere:\/export$/, /the server's log and disk/],
    ['SERVERFAULT', 'unavailable', 'store-io-error', /input\/output error for nowhere:\/export$/, /the server's log/],
    ['JUKEBOX', 'unavailable', 'nfs-later', /the server needs more time for nowhere:\/export$/, /Try again later/],
    [
      'NOTSUPP',
      'unsupported',
      'nfs-not-supported',
      /the server does not support this operation in nowhere:\/export$/,
      /a server that supports it/,
    ],
    ['XDEV', 'unsupported', 'store-cannot-move', /another file system is mounted inside it$/, /on one file system/],
    ['PERM', 'denied', 'nfs-root-squash', /the server denies root access to nowhere:\/export/, /squash=root/],
    [
      'ROFS',
      'denied',
      'nfs-read-only',
      /nowhere:\/export is read-only: the export, or its file system on the server$/,
      /\(rw\)/,
    ],
  ] as const)('reports NFS3ERR_%s', async (status, code, reason, message, action) => {
    const folder = await exportFolder();
    onTestFinished(() => rmSync(folder, { recursive: true }));
    let isBroken = false;
    const connect = connectScripted(folder, (real) => ({
      mkdir: (...args) => (isBroken ? refusing(status)() : real.mkdir(...args)),
    }));
    const store = await openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(undefined, connect) });
    onTestFinished(() => store.close());
    isBroken = true;
    expectError(await refusal(store.create(volumeSpec('a'), scope)), { code, reason, message, action });
    expect(readdirSync(folder)).toEqual(['.stowage']);
  });

  test('an answer that cannot be decoded is not NFS version 3', async () => {
    const connect = connectScripted('/nowhere', () => ({ lookup: () => Promise.reject(new XdrError('too short')) }));
    const opening = openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(undefined, connect) });
    expect(await refusal(opening)).toMatchObject({ code: 'unavailable', reason: 'nfs-garbled' });
  });

  test.each([
    ['EHOSTUNREACH', 'unavailable', 'nfs-no-route'],
    ['EADDRINUSE', 'unavailable', 'nfs-source-port'],
    ['EACCES', 'unavailable', 'nfs-source-port'],
    ['ETIMEDOUT', 'deadline', 'nfs-timeout'],
    ['ECONNRESET', 'unavailable', 'nfs-connection-lost'],
  ])('%s while connecting is not reported as a missing permission', async (code, expectedCode, reason) => {
    const system = Object.assign(new Error(code), { code });
    const cause = new RpcError('outer', {
      failure: 'unreachable',
      cause: new RpcError('inner', { failure: 'unreachable', cause: system }),
    });
    const kind = createNfsStoreKind(undefined, () => Promise.reject(cause));
    expect(await refusal(openNfs({ uri: 'nfs://nowhere/export', kind }))).toMatchObject({ code: expectedCode, reason });
  });

  test('calls that the server denies in every way are reported as rejected credentials', async () => {
    const cause = new RpcError('MNT: the credential was rejected', { failure: 'denied' });
    const open = (options: Readonly<Record<string, string>>) =>
      openNfs({
        uri: 'nfs://nowhere/export',
        options,
        kind: createNfsStoreKind(undefined, () => Promise.reject(cause)),
      });
    expectError(await refusal(open({})), {
      code: 'denied',
      reason: 'nfs-credential-denied',
      message: /^opening store test \(nowhere:\/export\) failed: nowhere rejects our credentials$/,
      action: /sec=sys.* option tls\. .*sourceport=privileged\.$/,
    });
    const { action } = await refusal(open({ tls: 'on', sourceport: 'privileged' }));
    expect(action).not.toMatch(/tls|sourceport/);
  });
});
