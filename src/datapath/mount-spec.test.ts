import { describe, expect, test } from 'vitest';
import { type MountSpec, readMountSpec } from './mount-spec.ts';

const spec: MountSpec = {
  version: 1,
  addresses: ['10.0.0.5', 'fd00::5'],
  port: 2049,
  root: 'AAECAw==',
  connections: 2,
  privilegedPorts: true,
  squash: 'root',
  uid: 1000,
  gid: 1000,
  softMs: 10_000,
  readOnly: false,
  maxRead: 1024 * 1024,
  maxWrite: 65_536,
  cacheMs: 1000,
  locks: 'refused',
  quota: { bytes: 2 ** 40, ledger: 'BAUG', host: '7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11' },
  tls: { ca: 'a certificate', certificate: undefined, key: 'a secret', serverName: 'nas' },
};

describe('the description of a mount', () => {
  test('survives JSON unchanged', () => {
    const { tls: _tls, softMs: _softMs, quota: _quota, ...plain } = spec;
    expect(readMountSpec(JSON.parse(JSON.stringify(spec)))).toEqual({ ...spec, checks: 'kernel' });
    const unchecked: MountSpec = { ...spec, version: 2, squash: 'all', checks: 'server', group: 2000 };
    expect(readMountSpec(JSON.parse(JSON.stringify(unchecked)))).toEqual(unchecked);
    const synced: MountSpec = { ...unchecked, version: 3, sync: true };
    expect(readMountSpec(JSON.parse(JSON.stringify(synced)))).toEqual(synced);
    expect(readMountSpec(JSON.parse(JSON.stringify(plain)))).toEqual({
      ...plain,
      checks: 'kernel',
      tls: undefined,
      softMs: undefined,
      quota: undefined,
    });
  });

  test.each([
    ['version', 4, "a mount's description has the unknown version 4"],
    ['version', 3, 'the field checks'],
    ['version', 2, 'the field checks'],
    ['addresses', [], 'the field addresses'],
    ['addresses', [7], 'the field addresses'],
    ['port', 65_536, 'the field port'],
    ['port', '2049', 'the field port'],
    ['root', undefined, 'the field root'],
    ['connections', 17, 'the field connections'],
    ['squash', 'some', 'the field squash'],
    ['uid', -1, 'the field uid'],
    ['readOnly', 'yes', 'the field readOnly'],
    ['maxWrite', 2 ** 21, 'the field maxWrite'],
    ['softMs', 0.5, 'the field softMs'],
    ['group', -1, 'the field group'],
    ['sync', 'always', 'the field sync'],
    ['locks', 'everywhere', 'the field locks'],
    ['tls', 'on', 'the field tls'],
    ['quota', 'large', 'the field quota'],
    ['quota', { bytes: 1.5, ledger: 'AA==', host: 'a' }, 'the field bytes'],
    ['quota', { bytes: 1, ledger: 7, host: 'a' }, 'the field ledger'],
    ['quota', { bytes: 1, ledger: 'AA==', host: '../a' }, 'the field quota'],
  ])('is refused with %s as %j', (field, value, message) => {
    expect(() => readMountSpec({ ...spec, [field]: value })).toThrow(message);
  });

  test('is refused without showing possible secrets', () => {
    expect(() => readMountSpec({ ...spec, tls: { ...spec.tls, key: ['a secret'] } })).toThrow(
      "the field key of a mount's description is invalid",
    );
    expect(() => readMountSpec('a text')).toThrow('not an object');
  });
});
