import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  filesAboutStoreKinds,
  forbiddenImports,
  kindTests,
  programFiles,
  schemesTested,
  unlistedStoreKinds,
} from './imports.ts';

const repository = dirname(dirname(import.meta.dirname));
/** The compiler needs about ten seconds alone, and much longer on a busy machine. */
const compilerMs = 300_000;

let scratch: string;
beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'stowage-new-kind-'));
  for (const name of ['src', 'e2e', 'bench', 'scripts', 'tsconfig.json', 'package.json', 'vitest.config.ts'])
    cpSync(join(repository, name), join(scratch, name), { recursive: true });
  symlinkSync(join(repository, 'node_modules'), join(scratch, 'node_modules'));
});
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

const storeFile = `
import { StowageError } from '#core/errors.ts';
import type { StoreKind } from '#core/ports.ts';

const refuse = async (): Promise<never> => {
  throw new StowageError('nothing is kept here', { code: 'unsupported', reason: 'dummy-refused', action: 'None.' });
};

export const createDummyStoreKind = (): StoreKind => ({
  scheme: 'dummy',
  placement: 'dummy',
  options: {},
  clientName: () => 'dummy',
  open: async ({ name }) => ({
    name,
    access: ['filesystem'],
    sources: ['dummy'],
    create: refuse,
    get: refuse,
    list: async function* () {
      yield await refuse();
    },
    delete: refuse,
    label: refuse,
    source: async () => ({ kind: 'dummy', share: '//server/share' }),
    check: refuse,
    close: async () => undefined,
  }),
});
`;

const clientFile = `
import type { Client } from '#core/ports.ts';

export const createDummyClient = (): Client<'dummy'> => ({
  kind: 'dummy',
  nodeLocal: false,
  outlivesMount: false,
  sourceFixedWhileStaged: false,
  stage: async ({ share }) => void share,
  unstage: async () => undefined,
  mountsOf: async () => [],
});
`;

const frontFile = `
import { createServer, type Server } from 'node:http';
import type { Core } from '#core/core.ts';
import { errorCodes } from '#core/error-codes.ts';
import { stowageError } from '#core/errors.ts';

export const createDummyServer = (core: Pick<Core, 'stores'>): Server =>
  createServer((_request, response) => {
    try {
      response.end(String(core.stores.list().length));
    } catch (thrown) {
      response.end(String(errorCodes[stowageError(thrown).code].dummy));
    }
  });
`;

const storeImport = `import { createDummyStoreKind } from '#stores/dummy/kind.ts';\n`;
const clientImport = `import { createDummyClient } from '#clients/kinds/dummy.ts';\n`;
const atTop = /^/;

/** The text of a new file, or replacements in an existing one. */
type Change = string | readonly (readonly [RegExp, string])[];

/** The files that a developer writes first. */
const declared: Readonly<Record<string, Change>> = {
  'src/stores/dummy/kind.ts': storeFile,
  'src/clients/kinds/dummy.ts': clientFile,
  'src/front/dummy/server.ts': frontFile,
  'src/core/model.ts': [[/export type Source =\n/, `$&  | { readonly kind: 'dummy'; readonly share: string }\n`]],
  'src/core/placement.ts': [[/export type Placement = /, `$&'dummy' | `]],
  'src/core/error-codes.ts': [[/\{ http: number;/, '$& dummy: number;']],
};

/** The changes that the compiler and the architecture test then ask for, and the one that starts the front end. */
const filledIn: Readonly<Record<string, Change>> = {
  'src/core/placement.ts': [[/Record<Placement, .*\{\n/, '$&  dummy: { isShared: true, opensInController: true },\n']],
  'src/core/csi-drivers.ts': [[/Record<Placement, .*\{\n/, '$&  dummy: fileDriver,\n']],
  'src/core/error-codes.ts': [[/\bhttp: \d+,/g, 'dummy: 1, $&']],
  'src/core/error-reasons/stores.ts': [
    [/export const storeReasons = \{\n/, `$&  'dummy-refused': everybody('unsupported', 'A dummy refuses.'),\n`],
  ],
  'src/app/app-core.ts': [
    [/\bclients: \{\n/, '$&      dummy: createDummyClient(),\n'],
    [atTop, clientImport],
  ],
  'src/testing/fakes/clients.ts': [
    [/\): FakeClients \{\n\s*return \{\n/, '$&    dummy: createDummyClient(),\n'],
    [atTop, clientImport],
  ],
  'src/testing/imports.ts': [[/Record<SourceKind, true>> = \{/, '$& dummy: true,']],
  'src/app/up.ts': [
    [/\): readonly StoreKind\[\] \{[^}]*?return \[\n/, '$&    createDummyStoreKind(),\n'],
    [/export interface UpSettings \{\n/, '$&  readonly dummy?: string | undefined;\n'],
    [
      /\n {2}ready = true;\n/,
      `\n  const dummy = createDummyServer(core);\n  undo.defer(() => void dummy.close());\n` +
        `  if (settings.dummy !== undefined) await listenSocket(dummy, settings.dummy);$&`,
    ],
    [atTop, `${storeImport}import { createDummyServer } from '#front/dummy/server.ts';\n`],
  ],
  'src/app/controller.ts': [
    [/\): readonly StoreKind\[\] \{[^}]*?return \[/, '$&createDummyStoreKind(), '],
    [atTop, storeImport],
  ],
  'scripts/store-kinds.ts': [
    [/readonly StoreKind\[\] = \[/, '$&createDummyStoreKind(), '],
    [atTop, storeImport],
  ],
  'src/app/serve.ts': [[/startUp\(\{\n/, '$&    dummy: options.dummy,\n']],
  'src/cli/io.ts': [[/export interface UpOptions \{\n/, '$&  readonly dummy?: string;\n']],
  'src/cli/server-commands.ts': [
    [/\n\s*\.option\(\s*'--csi <dir>'/, `\n    .option('--dummy <path>', 'serve dummies')$&`],
  ],
};

function apply(changes: Readonly<Record<string, Change>>): void {
  for (const [path, change] of Object.entries(changes)) {
    const file = join(scratch, path);
    if (typeof change === 'string') {
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, change);
      continue;
    }
    let text = readFileSync(file, 'utf8');
    for (const [place, replacement] of change) {
      expect(text, `${path}: this test has to follow the code`).toMatch(place);
      text = text.replace(place, replacement);
    }
    writeFileSync(file, text);
  }
}

/** The files that do not compile. */
async function rejected(): Promise<readonly string[]> {
  const { promise, resolve } = Promise.withResolvers<string>();
  execFile(
    join(repository, 'node_modules', '.bin', 'tsc'),
    ['--noEmit', '--pretty', 'false', '-p', '.'],
    {
      cwd: scratch,
      env: { ...process.env, PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}` },
      timeout: compilerMs,
      maxBuffer: 64 * 1024 * 1024,
    },
    (failure, output) => resolve(failure === null || output !== '' ? output : String(failure)),
  );
  const output = await promise;
  const files = [...output.matchAll(/^(\S+)\(\d+,\d+\): error/gm)].map(([, file = '']) => file);
  // Any other output, for example of a compiler that was killed, must not look like success.
  if (output !== '' && files.length === 0) throw new Error(output);
  return [...new Set(files)].toSorted();
}

interface Step {
  readonly path: string;
  readonly finder: string | undefined;
}

/** The steps of a recipe in ARCHITECTURE.md: `1. \`path\`: what to do. *Found by …*`. A placeholder stands for the dummy. */
function recipe(title: string): readonly Step[] {
  const text = readFileSync(join(repository, 'ARCHITECTURE.md'), 'utf8');
  const [, rest = ''] = text.split(`\n### ${title}\n`);
  const [section = ''] = rest.split(/\n##/);
  return [...section.matchAll(/^\d\. `([^`]+)`(.*(?:\n {3}.*)*)/gm)].map(([, path = '', about = '']) => ({
    path: path.replace(/<area>/, 'stores').replace(/<\w+>/, 'dummy'),
    finder: /\*Found by the ([^*]+)\.\*/.exec(about.replaceAll(/\s+/g, ' '))?.[1],
  }));
}

const titles = ['A new kind of store', 'A new kind of client', 'A new front end', 'A new error'];
const foundBy = (finder: string): readonly string[] =>
  [...new Set(titles.flatMap(recipe).flatMap((step) => (step.finder === finder ? step.path : [])))].toSorted();

test('the recipes in ARCHITECTURE.md name the files that a new store, client, front end and error need, at most six each', () => {
  const [stores = [], clients = [], fronts = [], errors = []] = titles.map((title) =>
    recipe(title).map(({ path }) => path),
  );
  expect(stores).toEqual([
    'src/stores/dummy/kind.ts',
    'src/app/up.ts',
    'src/app/controller.ts',
    'scripts/store-kinds.ts',
    'src/core/placement.ts',
    'src/core/csi-drivers.ts',
  ]);
  expect(clients).toEqual([
    'src/core/model.ts',
    'src/clients/kinds/dummy.ts',
    'src/app/app-core.ts',
    'src/testing/fakes/clients.ts',
    'src/testing/imports.ts',
  ]);
  expect(fronts).toEqual([
    'src/front/dummy/server.ts',
    'src/core/error-codes.ts',
    'src/app/up.ts',
    'src/cli/server-commands.ts',
    'src/cli/io.ts',
    'src/app/serve.ts',
  ]);
  expect(errors).toEqual(['src/core/error-reasons/stores.ts']);
  const named = new Set([...stores, ...clients, ...fronts, ...errors]);
  expect(Object.keys({ ...declared, ...filledIn }).toSorted()).toEqual([...named].toSorted());
});

test(
  'for a dummy store, client, front end and error, the compiler and the architecture test name exactly the files that the recipes list',
  async () => {
    apply(declared);
    // The store throws an error whose reason has no row yet, and the front end uses a column of codes that has no
    // values.
    const own = ['src/stores/dummy/kind.ts', 'src/front/dummy/server.ts'];
    expect(await rejected()).toEqual([...foundBy('compiler'), ...own].toSorted());
    expect(unlistedStoreKinds(await filesAboutStoreKinds(scratch))).toEqual([
      'src/app/up.ts does not list src/stores/dummy/kind.ts',
      'src/app/controller.ts does not list src/stores/dummy/kind.ts',
      'scripts/store-kinds.ts does not list src/stores/dummy/kind.ts',
    ]);
    expect(foundBy('architecture test')).toEqual(['scripts/store-kinds.ts', 'src/app/controller.ts', 'src/app/up.ts']);

    apply(filledIn);
    expect(await rejected()).toEqual([]);
    const files = await programFiles(scratch);
    expect(files.map(({ path }) => path)).toContain('src/front/dummy/server.ts');
    expect([...forbiddenImports(files), ...kindTests(files), ...schemesTested(files)]).toEqual([]);
    expect(unlistedStoreKinds(await filesAboutStoreKinds(scratch))).toEqual([]);
  },
  2 * compilerMs,
);
