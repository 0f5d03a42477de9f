import { describe, expect, test } from 'vitest';
import { parseStoreConfig } from '#core/store-uri.ts';
import { scope } from '#testing/contracts/store.ts';
import { refusalOf } from '#testing/expected-errors.ts';
import { nfsStoreOnDisk } from '#testing/nfs-store-on-disk.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createNfsStoreKind } from './kind.ts';
import { displayLocation, optionHelp, parseOptions } from './options.ts';

const uri = 'nfs://server/export';

describe('the URI', () => {
  test.each([
    ['nfs://server/export', ['server'], undefined, '/export'],
    ['nfs://10.0.0.1/export/silver', ['10.0.0.1'], undefined, '/export/silver'],
    ['nfs://server/', ['server'], undefined, '/'],
    ['nfs://server//', ['server'], undefined, '/'],
    ['nfs://server/export/', ['server'], undefined, '/export'],
    ['nfs://server/export///', ['server'], undefined, '/export'],
    ['nfs://server//a/./b', ['server'], undefined, '/a/b'],
    ['nfs://server:2050/export', ['server'], 2050, '/export'],
    ['nfs://server:1/export', ['server'], 1, '/export'],
    ['nfs://server:65535/export', ['server'], 65_535, '/export'],
    ['nfs://[::1]/export', ['::1'], undefined, '/export'],
    ['nfs://[fd00::2]:2050/export', ['fd00::2'], 2050, '/export'],
    ['nfs://[fe80::1%eth0]/export', ['fe80::1%eth0'], undefined, '/export'],
    ['nfs://a,10.0.0.2,c.example.org/export', ['a', '10.0.0.2', 'c.example.org'], undefined, '/export'],
    ['nfs://a,b:2050/export', ['a', 'b'], 2050, '/export'],
    ['nfs://[::1],[::2]:2050/export', ['::1', '::2'], 2050, '/export'],
    ['nfs://server/two%20words/%C3%A4', ['server'], undefined, '/two words/ä'],
    ['nfs://server/50%25/%3F/%23', ['server'], undefined, '/50%/?/#'],
    ['nfs://server/a...b/..c', ['server'], undefined, '/a...b/..c'],
    [`nfs://server/${'x'.repeat(1023)}`, ['server'], undefined, `/${'x'.repeat(1023)}`],
    ['nfs://server/export?uid=1', ['server'], undefined, '/export'],
  ])('%s', (given, hosts, port, path) => {
    expect(parseOptions(given, {})).toMatchObject({ hosts, port, path });
  });

  test.each([
    ['nfs://server', 'the path is missing'],
    ['nfs://server?uid=1', 'the path is missing'],
    ['nfs:///export', 'it names no server'],
    ['nfs://,/export', 'it names no server'],
    ['nfs://a,/export', 'it names no server'],
    ['nfs://a:1,b:2/export', 'it names no server'],
    ['nfs://::1/export', 'it names no server'],
    ['nfs://[::1/export', 'it names no server'],
    ['nfs://[127.0.0.1]/export', 'it names no server'],
    ['nfs://[:::]/export', 'it names no server'],
    ['nfs://ser ver/export', 'it names no server'],
    ['nfs://server:0/export', 'there is no port 0'],
    ['nfs://server:65536/export', 'there is no port 65536'],
    ['nfs://server:123456/export', 'it names no server'],
    ['nfs://server/a/../b', 'the path must not contain ..'],
    ['nfs://server/..', 'the path must not contain ..'],
    ['nfs://server/a/%2e%2e/b', 'the path must not contain ..'],
    ['nfs://server/a%2F..%2Fb', 'the path must not contain ..'],
    ['nfs://server/a#b', "it has a # in it, where a URI's path ends"],
    ['nfs://server/a%00b', 'the path contains control characters'],
    ['nfs://server/a%0Ab', 'the path contains control characters'],
    ['nfs://server/%zz', 'it has a broken %-escape (URIError: URI malformed)'],
    ['nfs://server/%ff', 'it has a broken %-escape (URIError: URI malformed)'],
    [`nfs://server/${'x'.repeat(1024)}`, 'the path is longer than 1024 bytes'],
  ])('%s is refused: %s', (given, why) => {
    const error = refusalOf(() => parseOptions(given, {}));
    expect(error).toMatchObject({ code: 'invalid', reason: 'store-option-invalid' });
    expect(error.message).toMatch(/is not the URI of an NFS store: /);
    expect(error.message.endsWith(`: ${why}`)).toBe(true);
    expect(error.action).toMatch(/for example nfs:\/\/10\.10\.2\.4\/export\/silver$/);
  });

  test('is displayed as server:/export', () => {
    expect(displayLocation(parseOptions('nfs://a,b:2050/export/', {}))).toBe('a:/export');
    expect(displayLocation(parseOptions('nfs://[::1]/', {}))).toBe('[::1]:');
  });

  test('can have options in its query', () => {
    const kind = createNfsStoreKind();
    const config = parseStoreConfig('x', `${uri}?uid=7&soft=true&onDelete=retain`, 'api', new Map([['nfs', kind]]));
    expect(parseOptions(config.uri, config.options)).toMatchObject({ uid: 7, hard: false });
    const unknown = () => parseStoreConfig('x', `${uri}?vers=4`, 'api', new Map([['nfs', kind]]));
    expect(refusalOf(unknown).action).toContain('pathTemplate, port,');
  });
});

describe('options', () => {
  test('have defaults', () => {
    expect(parseOptions(uri, {})).toEqual({
      hosts: ['server'],
      port: undefined,
      path: '/export',
      mountPort: undefined,
      uid: undefined,
      gid: undefined,
      mode: 0o755,
      squash: 'none',
      retries: undefined,
      timeout: 10_000,
      hard: true,
      maxRead: 1_048_576,
      maxWrite: 1_048_576,
      connections: 1,
      sourcePorts: undefined,
      tls: undefined,
      network: undefined,
      pathTemplate: undefined,
      client: 'built-in',
      locks: 'refused',
      sync: false,
    });
  });

  test.each([
    [{ client: 'host' }, { client: 'host' }],
    [
      { client: 'host', squash: 'none', tls: 'off', sourceport: 'privileged' },
      { client: 'host', sourcePorts: 'privileged' },
    ],
    [{ locks: 'node' }, { locks: 'node' }],
    [{ soft: '' }, { hard: false }],
    [{ port: '1' }, { port: 1 }],
    [{ port: '65535' }, { port: 65_535 }],
    [{ mountport: '20048' }, { mountPort: 20_048 }],
    [{ sourceport: 'privileged' }, { sourcePorts: 'privileged' }],
    [
      { sourceport: 'privileged', nconnect: '4' },
      { sourcePorts: 'privileged', connections: 4 },
    ],
    [{ sourceport: '800' }, { sourcePorts: 800 }],
    [{ sourceport: '800', nconnect: '1' }, { sourcePorts: 800 }],
    [{ uid: '0' }, { uid: 0 }],
    [
      { uid: '4294967294', gid: '4294967294' },
      { uid: 4_294_967_294, gid: 4_294_967_294 },
    ],
    [{ mode: '700' }, { mode: 0o700 }],
    [{ mode: '0770' }, { mode: 0o770 }],
    [{ mode: '02775' }, { mode: 0o2775 }],
    [{ mode: '7777' }, { mode: 0o7777 }],
    [{ squash: 'root' }, { squash: 'root' }],
    [{ squash: 'all' }, { squash: 'all' }],
    [{ retries: '0' }, { retries: 0 }],
    [{ retries: '100' }, { retries: 100 }],
    [{ sync: '' }, { sync: true }],
    [{ sync: 'false' }, { sync: false }],
    [{ timeout: '100ms' }, { timeout: 100 }],
    [{ timeout: '10m' }, { timeout: 600_000 }],
    [{ soft: '' }, { hard: false }],
    [{ hard: '' }, { hard: true }],
    [{ hard: 'false' }, { hard: false }],
    [{ soft: 'false' }, { hard: true }],
    [{ soft: 'true', hard: 'false' }, { hard: false }],
    [{ soft: 'false', hard: 'true' }, { hard: true }],
    [
      { rsize: '4096', wsize: '4k' },
      { maxRead: 4096, maxWrite: 4096 },
    ],
    [
      { rsize: '1M', wsize: '1048576' },
      { maxRead: 1_048_576, maxWrite: 1_048_576 },
    ],
    [{ nconnect: '16' }, { connections: 16 }],
    [{ tls: 'on' }, { tls: { folder: undefined } }],
    [{ tls: '' }, { tls: { folder: undefined } }],
    [{ tls: 'off' }, { tls: undefined }],
    [{ tls: '/etc/stowage/tls' }, { tls: { folder: '/etc/stowage/tls' } }],
    [{ network: 'netns:storage' }, { network: 'netns:storage' }],
    [{ network: '/proc/1/ns/net' }, { network: '/proc/1/ns/net' }],
  ] as const)('%j', (given, expected) => {
    expect(parseOptions(uri, given)).toMatchObject(expected);
  });

  test.each([
    ['port', ['', '0', '65536', '-1', '2049x', '1e3', '0x10', ' 1']],
    ['mountport', ['0', '65536', 'auto']],
    ['sourceport', ['0', '65536', 'low', '']],
    ['uid', ['-1', '4294967295', 'root', '1.5', '']],
    ['gid', ['-1', '4294967295', 'users']],
    ['mode', ['', '0', '75', '888', 'rwx', '077777', '-755', '0o755']],
    ['squash', ['', 'no_root', 'Root']],
    ['retries', ['-1', '101', 'many']],
    ['timeout', ['0', '99ms', '11m', '10', 'soon']],
    ['soft', ['yes', '1']],
    ['hard', ['no', '0']],
    ['sync', ['yes', '1']],
    ['rsize', ['4095', '1048577', '2M', 'big', '0']],
    ['wsize', ['4095', '1048577', '']],
    ['nconnect', ['0', '17', 'all']],
    ['tls', ['yes', 'certs', './certs', '../certs']],
    ['network', ['', 'storage', 'netns:', 'netns:../x', 'netns:a/b', './ns']],
  ] as const)('%s refuses %j, and the error explains the option', (key, values) => {
    for (const value of values) {
      const error = refusalOf(() => parseOptions(uri, { [key]: value }));
      expect(error, value).toMatchObject({
        code: 'invalid',
        reason: 'store-option-invalid',
        message: `'${value}' is not a value for the option ${key}`,
        action: `${key}: ${optionHelp[key]}.`,
      });
    }
  });

  test.each([
    [uri, { soft: '', hard: '' }, 'a store is either soft or hard'],
    [uri, { soft: 'false', hard: 'false' }, 'a store is either soft or hard'],
    [uri, { client: 'host', tls: 'on' }, "the system's NFS client does not support the option tls"],
    [
      uri,
      { client: 'host', network: 'netns:x', sourceport: '700' },
      "the system's NFS client does not support the options network, sourceport",
    ],
    [uri, { sourceport: '800', nconnect: '2' }, 'several connections cannot have one source port'],
    ['nfs://server:2049/export', { port: '2050' }, 'the URI names port 2049 and the option port 2050'],
  ])('%s with %j: %s', (given, options, message) => {
    expect(refusalOf(() => parseOptions(given, options))).toMatchObject({ code: 'invalid', message });
  });

  test('the same port may be given twice', () => {
    expect(parseOptions('nfs://server:2050/export', { port: '2050' }).port).toBe(2050);
  });
});

test.each([
  [{}, { softMs: undefined, retries: undefined, sync: undefined }],
  [
    { soft: '', timeout: '5s', retries: '3', sync: '' },
    { softMs: 5_000, retries: 3, sync: true },
  ],
])('a mount of a store with %j uses %j', async (options, connection) => {
  const { store } = await nfsStoreOnDisk(options);
  const volume = await store.create(volumeSpec('photos'), scope);
  expect(await store.source(volume, scope)).toMatchObject({ way: connection });
});
