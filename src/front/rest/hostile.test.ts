import { createHash } from 'node:crypto';
import { lstat, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { isVolumeId, isVolumeName } from '#core/names.ts';
import { type Answer, type Api, startServer, type TestServer } from '#testing/server.ts';

let server: TestServer;
let api: Api;
let before: string;

beforeAll(async () => {
  server = await startServer();
  api = await server.as('admin');
  await api.post('/v1/volumes', { name: 'victim', bytes: '100', labels: { keep: 'me' } });
  await writeFile(join(server.storeFolder, 'victim', 'file'), 'precious');
  await mkdir(join(server.storeFolder, 'stray'));
  before = await snapshot(server.folder);
});
afterAll(() => server[Symbol.asyncDispose]());

/** Every name, type, mode and byte below the folder, except the records of requests and preallocated space. */
async function snapshot(folder: string): Promise<string> {
  const lines: string[] = [];
  for (const path of (await readdir(folder, { recursive: true })).sort()) {
    if (path.startsWith('state.db') || path.includes('/.stowage/reserve')) continue;
    const about = await lstat(join(folder, path));
    const bytes = about.isFile() ? await readFile(join(folder, path)) : '';
    lines.push(`${path} ${about.mode} ${createHash('sha256').update(bytes).digest('hex')}`);
  }
  return lines.join('\n');
}

function expectRefused({ status, headers, body, text }: Answer, request: unknown): void {
  const shown = `${JSON.stringify(request)} → ${status} ${text.slice(0, 300)}`;
  expect(status, shown).toBeGreaterThanOrEqual(400);
  expect(status, shown).toBeLessThan(500);
  expect(headers['content-type'], shown).toMatch(/^application\/problem\+json/);
  for (const key of ['type', 'title', 'detail', 'code', 'reason', 'action', 'requestId']) {
    expect(typeof body[key], shown).toBe('string');
    expect(body[key], shown).not.toBe('');
  }
  // Answers may quote the request, but without control characters.
  expect(`${body.detail}${body.action}`, shown).not.toMatch(/[\x00-\x1f\x7f-\x9f\u202a-\u202e]/);
}

async function expectNothingHappened(): Promise<void> {
  expect(await snapshot(server.folder)).toBe(before);
  const { items } = (await api.get('/v1/volumes')).body;
  expect(items).toMatchObject([{ name: 'victim', bytes: '100', labels: { keep: 'me' }, revision: 1 }]);
}

const nasty = [
  '..',
  '.',
  '../..',
  '../../etc/passwd',
  '/',
  '/etc',
  'a/b',
  './a',
  'a/',
  '\\',
  '..\\..',
  '~',
  '*',
  '$(id)',
  '`id`',
  '\0',
  'a\0b',
  '%00',
  '%2e%2e',
  '%2e%2e%2f',
  '..%2f',
  '..%c0%af',
  '%252e%252e',
  'a%0ab',
  '&#46;&#46;',
  '\n',
  'a\nb',
  '\t',
  '\r\n',
  '\x1b[31mred',
  '\x7f',
  ' ',
  ' a',
  'a ',
  '-rf',
  '--help',
  '_x',
  '.hidden',
  '.stowage',
  'x.meta',
  'victim.meta',
  '.meta',
  'a..b',
  'a..',
  '..a',
  'x'.repeat(129),
  'x'.repeat(300),
  'é'.repeat(150),
  '',
  'аdmin',
  'ｖictim',
  'victim\u200b',
  '\u202evictim',
  'vic\u0301tim',
  '🙂',
  'ﬁle',
  'İ',
  '\ufeffvictim',
  'ﷺ',
  '__proto__',
  'constructor/',
  'sv1-00000000-0000-4000-8000-000000000000',
  'null ',
  'undefined ',
  'CON:',
  'a:b',
];

const hostileText = fc
  .oneof(
    { weight: 2, arbitrary: fc.constantFrom(...nasty) },
    fc.string({ unit: 'binary', maxLength: 300 }),
    fc.string({ unit: 'grapheme', maxLength: 140 }),
    fc.string({ minLength: 129, maxLength: 400 }),
    fc.tuple(fc.constantFrom(...nasty), fc.string({ maxLength: 20 })).map(([a, b]) => a + b),
  )
  .filter((text) => !isVolumeName(text));

const wrongType = fc.oneof(
  fc.jsonValue().filter((value) => typeof value !== 'string'),
  fc.constantFrom(null, [], {}, 0, -1, true, ['victim'], { toString: 'victim' }, { $ref: '#' }, 1e308),
);
const hostileName = fc.oneof({ weight: 3, arbitrary: hostileText }, wrongType);

const hostileBytes = fc.oneof(
  fc.constantFrom('-1', '0', '00', '1.5', '1e3', '0x10', ' 1', '1 ', '+1', '１', '1G', '', 'NaN', 'Infinity', '\u0661'),
  fc.bigInt({ min: (1n << 60n) + 1n, max: 10n ** 40n }).map(String),
  fc.bigInt({ min: -(10n ** 40n), max: 0n }).map(String),
  wrongType,
);

const hostileLabels = fc.oneof(
  hostileText
    .filter((key) => !/^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$/.test(key))
    .map((key) => Object.fromEntries([[key, 'x']])),
  fc.constantFrom(
    JSON.parse('{"__proto__":"x"}'),
    JSON.parse('{"__proto__":{"a":"b"}}'),
    { 'stowage.dev/owner': 'me' },
    { a: '\0' },
    { a: 'line\nbreak' },
    { a: 'x'.repeat(257) },
    { a: 1 },
    { a: ['b'] },
    { a: {} },
    Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`k${i}`, ''])),
  ),
  // A random object may be valid labels.
  wrongType.filter((value) => typeof value !== 'object' || value === null || Array.isArray(value)),
);

const extraKey = fc.oneof(
  fc.constantFrom('__proto__', 'constructor', 'prototype', 'path', 'mountOptions', 'id', 'instance', 'requestId'),
  fc.string({ unit: 'binary', minLength: 1, maxLength: 20 }),
);

const runs = { numRuns: 150 };
const json = { 'content-type': 'application/json' };
/** Own keys only, whatever their names. */
const withKey = (body: object, key: string, value: unknown): string => {
  const inner = JSON.stringify(body).slice(1, -1);
  return `{${inner}${inner === '' ? '' : ','}${JSON.stringify(key)}:${JSON.stringify(value)}}`;
};

describe('hostile bodies are refused and leave everything as it was', () => {
  const bodies: readonly (readonly [what: string, method: string, path: string, body: fc.Arbitrary<unknown>])[] = [
    ['a new name', 'POST', '/v1/volumes', hostileName.map((name) => ({ name }))],
    ['a store', 'POST', '/v1/volumes', hostileName.map((store) => ({ name: 'fresh', store }))],
    ['a size', 'POST', '/v1/volumes', hostileBytes.map((bytes) => ({ name: 'fresh', bytes }))],
    ['labels', 'POST', '/v1/volumes', hostileLabels.map((labels) => ({ name: 'fresh', labels }))],
    ['an access', 'POST', '/v1/volumes', hostileName.map((access) => ({ name: 'fresh', access }))],
    ['a larger size', 'POST', '/v1/volumes/victim/expand', hostileBytes.map((bytes) => ({ bytes }))],
    ['another name', 'POST', '/v1/volumes/victim/rename', hostileName.map((name) => ({ name }))],
    ['other labels', 'PATCH', '/v1/volumes/victim', hostileLabels.map((labels) => ({ labels }))],
    ['a store to add', 'POST', '/v1/stores', hostileName.map((name) => ({ name, uri: 'local:///nowhere' }))],
    ['how to adopt', 'POST', '/v1/stores/local/adopt', wrongType.map((dryRun) => ({ dryRun, directories: 1 }))],
    ['what to restore', 'POST', '/v1/trash/victim/restore', hostileName.map((name) => ({ name }))],
    [
      'where to unmount',
      'POST',
      '/v1/volumes/victim/unmount',
      // Unmounting a path without a mount is a success.
      hostileName
        .filter((target) => typeof target !== 'string' || !target.startsWith('/'))
        .map((target) => ({ target })),
    ],
    ['a role', 'POST', '/v1/tokens', hostileName.map((role) => ({ name: 't', role }))],
    [
      "a token's stores",
      'POST',
      '/v1/tokens',
      hostileName.map((store) => ({ name: 't', role: 'viewer', stores: [store] })),
    ],
  ];

  test.each(bodies)('%s: %s %s', async (_what, method, path, arbitrary) => {
    await fc.assert(
      fc.asyncProperty(arbitrary, async (body) => {
        expectRefused(await api.call(method, path, { body }), body);
      }),
      runs,
    );
    await expectNothingHappened();
  });

  test('a store URI', async () => {
    const uri = fc.oneof(
      hostileText.filter((text) => !text.startsWith('local://')),
      hostileText.map((text) => `local://${text.replaceAll(/^[./~]+/g, 'x')}`),
      // Below a folder that does not exist, so that the URI cannot name an existing path.
      hostileText.map((text) => `local:///nowhere-at-all/${text.replaceAll('..', '')}`),
      hostileText.map((text) => `local:///nowhere-at-all/x?${text}`),
      fc.constantFrom('local:///', 'local:///..', 'local:////', 'local:///%2e%2e/', 'local:///a%00b', 'local:///%zz'),
      wrongType,
    );
    await fc.assert(
      fc.asyncProperty(uri, async (given) => {
        expectRefused(await api.post('/v1/stores', { name: 'fresh', uri: given }), given);
      }),
      runs,
    );
    await expectNothingHappened();
  });

  test('keys that are not in the schema, also those that every object inherits', async () => {
    const targets: readonly [string, string, object][] = [
      ['POST', '/v1/volumes', { name: 'fresh' }],
      ['POST', '/v1/volumes/victim/expand', { bytes: '200' }],
      ['POST', '/v1/volumes/victim/rename', { name: 'fresh' }],
      ['PATCH', '/v1/volumes/victim', { labels: { a: 'b' } }],
      ['POST', '/v1/stores', { name: 'fresh', uri: 'local:///nowhere' }],
      ['POST', '/v1/tokens', { name: 't', role: 'viewer' }],
    ];
    const allowed = new Set([
      'name',
      'bytes',
      'store',
      'access',
      'labels',
      'uri',
      'default',
      'role',
      'stores',
      'expiresIn',
    ]);
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...targets),
        extraKey.filter((key) => !allowed.has(key)),
        fc.jsonValue(),
        async ([method, path, body], key, value) => {
          const raw = withKey(body, key, value);
          expectRefused(await api.call(method, path, { raw, headers: json }), raw);
        },
      ),
      runs,
    );
    await expectNothingHappened();
  });

  test('bodies that are arbitrary JSON', async () => {
    const paths = ['/v1/volumes', '/v1/volumes/victim/expand', '/v1/volumes/victim/rename', '/v1/stores', '/v1/tokens'];
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...paths), fc.json({ maxDepth: 20 }), async (path, raw) => {
        expectRefused(await api.call('POST', path, { raw, headers: json }), raw);
      }),
      runs,
    );
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...paths), fc.uint8Array({ maxLength: 300 }), async (path, bytes) => {
        expectRefused(await api.call('POST', path, { raw: Buffer.from(bytes), headers: json }), [...bytes]);
      }),
      runs,
    );
    await expectNothingHappened();
  });
});

describe('hostile addresses are refused and leave everything as it was', () => {
  const routes: [method: string, path: string, body?: object][] = [
    ['GET', '/v1/volumes/X'],
    ['GET', '/v1/volumes/X/usage'],
    ['DELETE', '/v1/volumes/X'],
    ['PATCH', '/v1/volumes/X', { labels: { a: 'b' } }],
    ['POST', '/v1/volumes/X/expand', { bytes: '200' }],
    ['POST', '/v1/volumes/X/rename', { name: 'fresh' }],
    ['POST', '/v1/volumes/X/unmount', { target: '/x' }],
    ['GET', '/v1/stores/X'],
    ['DELETE', '/v1/stores/X'],
    ['POST', '/v1/stores/X/default'],
    ['POST', '/v1/stores/X/check'],
    ['POST', '/v1/stores/X/adopt'],
    ['GET', '/v1/stores/X/orphans'],
    ['POST', '/v1/trash/X/restore'],
    ['DELETE', '/v1/trash/X'],
    ['GET', '/v1/operations/X'],
    ['POST', '/v1/operations/X/cancel'],
    ['DELETE', '/v1/tokens/X'],
    ['GET', '/v1/volumes?store=X'],
    ['GET', '/v1/volumes?X=1'],
    ['GET', '/v1/operations?limit=X'],
    ['GET', '/v1/trash?store=X'],
  ];
  const encoded = fc.oneof(
    hostileText.filter((text) => text.isWellFormed() && !isVolumeId(text)).map(encodeURIComponent),
    // Unencoded where an HTTP client allows it: the server must not decode twice.
    fc.constantFrom('%2e%2e', '%2e%2e%2fvictim', '..%2f..%2fetc', '%00', 'victim%00', '%252e', '..', '%', '%zz', '%ff'),
  );

  test.each(routes)('%s %s', async (method, path, body) => {
    const isKey = path.includes('?X');
    const usable = (text: string): boolean => text !== '' || !isKey;
    await fc.assert(
      fc.asyncProperty(encoded.filter(usable), async (text) => {
        // URL parsers remove segments of dots. The result is another, valid route.
        const answer = await api.call(method, path.replace('X', text), { body });
        expectRefused(answer, `${method} ${path.replace('X', text)}`);
      }),
      { numRuns: 60 },
    );
    await expectNothingHappened();
  });

  test('headers', async () => {
    const visible = fc.string({ unit: fc.integer({ min: 1, max: 255 }).map((code) => String.fromCharCode(code)) });
    const value = visible.filter((text) => !/[\0\r\n]/.test(text));
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom('if-match', 'idempotency-key', 'prefer', 'x-request-id', 'accept', 'last-event-id', 'host'),
        value,
        async (name, text) => {
          const { status, headers } = await api.get('/v1/volumes/nobody', {
            [name]: text.replaceAll(/[\x01-\x08\x0a-\x1f\x7f]/g, ''),
          });
          expect(status).toBe(404);
          expect(headers['x-request-id']).toMatch(/^[A-Za-z0-9._-]{1,64}$/);
        },
      ),
      runs,
    );
  });

  test('addresses with very long values are refused', async () => {
    expectRefused(await api.get(`/v1/volumes/${'%2e'.repeat(90)}`), 'dots');
    expectRefused(await api.get(`/v1/volumes/${'a'.repeat(10_000)}`), 'long');
    expectRefused(await api.get(`/v1/volumes?${'label=a%3Db&'.repeat(100)}`), 'labels');
    await expectNothingHappened();
  });
});
