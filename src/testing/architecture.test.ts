import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  allowedImports,
  filesAboutStoreKinds,
  forbiddenImports,
  importCycles,
  importsOf,
  internalsUsed,
  kindTests,
  programFiles,
  rawWrites,
  schemesTested,
  unlistedStoreKinds,
} from './imports.ts';

const root = dirname(dirname(import.meta.dirname));

test('the search finds files and imports, so the other tests of this file check something', async () => {
  const files = await programFiles(root);
  expect(files.map((file) => file.path)).toContain('src/core/names.ts');
  expect(importsOf(files).filter((i) => i.to.startsWith('#')).length).toBeGreaterThan(10);
});

test('every import points to a lower layer', async () => {
  expect(forbiddenImports(await programFiles(root))).toEqual([]);
});

test('ARCHITECTURE.md has the table of who may import whom', () => {
  const rows = readFileSync(join(root, 'ARCHITECTURE.md'), 'utf8').matchAll(/^\| `(\w+)` \| ([^|]+) \| [^|]*\|$/gm);
  const listed = [...rows].map(([, folder = '', cell = '']) => [
    folder,
    [...cell.matchAll(/`(\w+)`/g)].map((m) => m[1]),
  ]);
  const { app, ...others } = allowedImports;
  expect(Object.fromEntries(listed)).toEqual({ ...others, app: [] });
  // ARCHITECTURE.md says "all of the above" for app.
  expect(app?.toSorted()).toEqual(Object.keys(others).toSorted());
});

test('core and records have no import cycles', async () => {
  expect(importCycles(await programFiles(root))).toEqual([]);
});

test('an import cycle is found, even if it is of types only', () => {
  const files = [
    { path: 'src/core/a.ts', text: `import { b } from './b.ts';` },
    { path: 'src/core/b.ts', text: `import { c } from './c.ts';\nimport { d } from '#core/d.ts';` },
    { path: 'src/core/c.ts', text: `import type { B } from './b.ts';` },
    { path: 'src/core/d.ts', text: `import { e } from '#base/e.ts';` },
  ];
  expect(importCycles(files)).toEqual(['src/core/b.ts → src/core/c.ts → src/core/b.ts']);
});

test('only clients and stores test the kind of a source', async () => {
  expect(kindTests(await programFiles(root))).toEqual([]);
});

test.each([
  ['src/core/a.ts', `if (source.kind === 'nfs') return;`],
  ['src/front/csi/a.ts', `const isImage = mount?.source.kind !== 'loop';`],
  ['src/controllers/a.ts', `return 'directory' === source.kind;`],
  ['src/app/a.ts', `switch (source.kind) {\n  case 'loop':`],
  ['src/core/a.ts', `const isShared = !('node' in source);`],
  ['src/core/a.ts', `await parts.clients.nfs.elsewhere?.(at, scope);`],
])('a test for the kind of a source is found in %s: %s', (path, text) => {
  expect(kindTests([{ path, text }])).toEqual([path]);
});

test.each([
  ['src/clients/kinds/a.ts', `if (source.kind === 'nfs') return;`],
  ['src/stores/nfs/a.ts', `if (source.kind !== 'nfs') return;`],
  ['src/front/docker-plugin/a.ts', `const type = 'loop';`],
  ['src/core/a.ts', `if (user.kind === 'pod') return clients.find(source);`],
  ['src/app/a.ts', `import { createNfsClient } from '#clients/kinds/nfs.ts';`],
])('no test for the kind of a source is found in %s: %s', (path, text) => {
  expect(kindTests([{ path, text }])).toEqual([]);
});

test('no file mistakes a short write for a complete one', async () => {
  const isFixture = (path: string): boolean => path.includes('/fixtures/');
  expect(rawWrites((await programFiles(root)).filter(({ path }) => !isFixture(path)))).toEqual([]);
});

test.each([
  `import { openSync, writeSync } from 'node:fs';`,
  `import { write } from 'node:fs';`,
  `import { open, rename } from 'node:fs/promises';\nawait file.write(text);`,
])('a file that calls write(2) itself is found: %s', (text) => {
  expect(rawWrites([{ path: 'src/stores/a.ts', text }])).toEqual(['src/stores/a.ts']);
});

test('a file on the list of exceptions may use writeFile', () => {
  const text = `import { open, writeFile } from 'node:fs/promises';\nawait file.writeFile(text);`;
  expect(rawWrites([{ path: 'src/stores/a.ts', text }])).toEqual([]);
});

test('no file derives the location of a store from its scheme', async () => {
  expect(schemesTested(await programFiles(root))).toEqual([]);
});

test.each([
  ['src/controllers/a.ts', `if (schemeOf(spec.uri) === 'local') return;`],
  ['src/controllers/a.ts', `schemeOf(caches.stores.get(name)?.spec.uri ?? '') !== 'nfs'`],
  ['src/controllers/a.ts', `const isOnNodes = spec.uri.startsWith('local:');`],
  ['src/controllers/a.ts', `stores.filter(({ kind }) => kind === 'local')`],
  ['src/core/a.ts', `if (kind.scheme === 'nfs') return;`],
  ['src/core/a.ts', `if (view.placement !== 'node') return;`],
  ['src/front/a.ts', `const isLocal = about.kind ===\n  'local';`],
  ['src/app/a.ts', `return protocol === 'local:' ? pathname : '';`],
])('a test for the scheme of a store is found in %s: %s', (path, text) => {
  expect(schemesTested([{ path, text }])).toEqual([path]);
});

test.each([
  ['src/stores/local/a.ts', `return protocol === 'local:' ? pathname : '';`],
  ['src/core/placement.ts', `placement === 'node'`],
  ['src/app/a.ts', `parseStoreConfig('local', \`local://\${path}\`, 'builtin', kinds)`],
  ['src/front/a.ts', `if (url.protocol === 'https:') return;`],
])('no test for the scheme of a store is found in %s: %s', (path, text) => {
  expect(schemesTested([{ path, text }])).toEqual([]);
});

test('every kind of store is in each list of kinds', async () => {
  const files = await filesAboutStoreKinds(root);
  expect(files.map(({ path }) => path)).toContain('src/stores/nfs/kind.ts');
  expect(unlistedStoreKinds(files)).toEqual([]);
});

test('a kind of store that a list lacks is found', () => {
  const listed = `import { createNfsStoreKind } from '#stores/nfs/kind.ts';`;
  const files = [
    { path: 'src/stores/nfs/kind.ts', text: '' },
    { path: 'src/app/up.ts', text: listed },
    { path: 'src/app/controller.ts', text: '' },
    { path: 'scripts/store-kinds.ts', text: listed },
  ];
  expect(unlistedStoreKinds(files)).toEqual(['src/app/controller.ts does not list src/stores/nfs/kind.ts']);
});

test('front ends and controllers use neither the records nor the verbs of a store', async () => {
  expect(internalsUsed(await programFiles(root))).toEqual([]);
});

test.each([
  ['src/front/csi/a.ts', `const volume = core.records.volumes.byId(id);`],
  ['src/front/rest/a.ts', `const { answers, records } = core;`],
  ['src/front/rest/a.ts', `export const a = ({ records: { answers } }: Pick<Core, 'records'>) => answers;`],
  ['src/front/rest/a.ts', `import type { Records } from '#core/ports.ts';`],
  ['src/controllers/a.ts', `import {\n  type WholeCore,\n  createCore,\n} from '#core/core.ts';`],
  ['src/front/csi/a.ts', `await core.stores.use(volume.store, (store) => store.source(volume, call));`],
  ['src/front/csi/a.ts', `import type { Stores } from '#core/stores.ts';`],
  ['src/controllers/a.ts', `import type { Store, StoreKind } from '#core/ports.ts';`],
  ['src/app/status.ts', `const totals = core.records.volumes.totals(name);`],
])('a use of records or store verbs is found in %s: %s', (path, text) => {
  expect(internalsUsed([{ path, text }])).toEqual([path]);
});

test.each([
  ['src/front/csi/a.ts', `const volume = core.catalogue.recorded(id);`],
  ['src/front/rest/a.ts', `// On the store's own records: it has one for each host.`],
  ['src/front/rest/a.ts', `import { enforcesSizes, type StoreView } from '#core/store-view.ts';`],
  ['src/controllers/a.ts', `import type { StoreKind } from '#core/ports.ts';`],
  ['src/app/up.ts', `const core = await assemble({ records, kinds });`],
])('no use of records or store verbs is found in %s: %s', (path, text) => {
  expect(internalsUsed([{ path, text }])).toEqual([]);
});

describe('a planted violation of the import rules is reported', () => {
  test.each([
    ['src/core/a.ts', `import { b } from '#stores/b.ts';`, 'src/core/a.ts may not import #stores/b.ts'],
    ['src/core/a.ts', `import type {\n  B,\n} from '#stores/b.ts';`, 'src/core/a.ts may not import #stores/b.ts'],
    ['src/base/a.ts', `export { b } from '#core/b.ts';`, 'src/base/a.ts may not import #core/b.ts'],
    ['src/front/a.ts', `const b = await import('#stores/b.ts');`, 'src/front/a.ts may not import #stores/b.ts'],
    ['src/records/a.ts', `import '#front/b.ts';`, 'src/records/a.ts may not import #front/b.ts'],
    ['src/app/a.ts', `import { b } from '#testing/b.ts';`, 'src/app/a.ts may not import #testing/b.ts'],
    ['src/app/a.ts', `import { b } from '#testbed/b.ts';`, 'src/app/a.ts may not import #testbed/b.ts'],
    [
      'src/cli/a.ts',
      `import { b } from '#front/rest/schemas.ts';`,
      'src/cli/a.ts may not import #front/rest/schemas.ts',
    ],
    [
      'src/cli/a.ts',
      `import type { B } from '#front/rest/server.ts';`,
      'src/cli/a.ts may not import #front/rest/server.ts',
    ],
    ['src/cli/a.ts', `import { b } from '#core/names.ts';`, 'src/cli/a.ts may not import #core/names.ts'],
    [
      'src/stores/nfs/a.ts',
      `import { b } from '../local/b.ts';`,
      'src/stores/nfs/a.ts may not import its neighbour ../local/b.ts',
    ],
    ['src/core/a.ts', `import { b } from 'fastify';`, 'src/core/a.ts may not import the npm package fastify'],
    [
      'src/wire/csi/a.ts',
      `import { b } from '@connectrpc/connect';`,
      'src/wire/csi/a.ts may not import the npm package @connectrpc/connect',
    ],
    [
      'src/wire/rpc/a.ts',
      `import { b } from '@bufbuild/protobuf';`,
      'src/wire/rpc/a.ts may not import the npm package @bufbuild/protobuf',
    ],
    [
      'src/controllers/a.ts',
      `import { b } from '#wire/docker/b.ts';`,
      'src/controllers/a.ts may not import #wire/docker/b.ts',
    ],
    ['src/controllers/a.ts', `import { b } from '#stores/b.ts';`, 'src/controllers/a.ts may not import #stores/b.ts'],
    ['src/core/a.ts', `import { b } from '#controllers/b.ts';`, 'src/core/a.ts may not import #controllers/b.ts'],
    [
      'src/cluster/a.ts',
      `import { b } from '#front/rest/cluster-nodes.ts';`,
      'src/cluster/a.ts may not import #front/rest/cluster-nodes.ts',
    ],
    ['src/cluster/a.ts', `import { b } from '#wire/csi/b.ts';`, 'src/cluster/a.ts may not import #wire/csi/b.ts'],
    ['src/front/a.ts', `import { b } from '#cluster/b.ts';`, 'src/front/a.ts may not import #cluster/b.ts'],
    ['src/misc/a.ts', '', 'src/misc is not in the table of who may import whom'],
  ])('in %s: %s', (path, text, found) => {
    expect(forbiddenImports([{ path, text }])).toContain(found);
  });

  test('an import across top folders without # is reported', () => {
    expect(forbiddenImports([{ path: 'src/core/a.ts', text: `import { b } from '../base/b.ts';` }])).toEqual([
      'src/core/a.ts crosses a top folder with ../base/b.ts: write it with #',
    ]);
  });

  test('an import of a folder outside of src is reported', () => {
    expect(forbiddenImports([{ path: 'src/app/a.ts', text: `import { b } from '../../bench/b.ts';` }])).toEqual([
      'src/app/a.ts may not import ../../bench/b.ts',
    ]);
  });
});

test('an import of package.json outside of app is reported', () => {
  const text = `import manifest from '../../package.json' with { type: 'json' };`;
  expect(forbiddenImports([{ path: 'src/app/a.ts', text }])).toEqual([]);
  expect(forbiddenImports([{ path: 'src/core/a.ts', text }])).toEqual([
    'src/core/a.ts may not import ../../package.json',
  ]);
});

test('an allowed import is not reported', () => {
  const text = [
    `import { readFile } from 'node:fs/promises';`,
    `import { StowageError } from '#core/errors.ts';`,
    `import type { VolumeJson } from '#front/rest/schemas.ts';`,
    `import { parseSize } from '#base/size.ts';`,
    `import { table } from './output.ts';`,
  ].join('\n');
  expect(forbiddenImports([{ path: 'src/cli/a.ts', text }])).toEqual([]);
  const watching = `import { keyOf } from '#wire/kube/client.ts';\nimport type { Volumes } from '#core/volumes.ts';`;
  expect(forbiddenImports([{ path: 'src/controllers/machinery/a.ts', text: watching }])).toEqual([]);
  const messages = `import { create } from '@bufbuild/protobuf';\nimport type { A } from '@bufbuild/protobuf/codegenv2';`;
  expect(forbiddenImports([{ path: 'src/wire/csi/a.ts', text: messages }])).toEqual([]);
});
