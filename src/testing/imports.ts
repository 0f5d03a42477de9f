import { readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { SourceKind } from '#core/model.ts';

export interface SourceFile {
  /** From the repository's root, such as `src/core/names.ts`. */
  readonly path: string;
  readonly text: string;
}

interface Import {
  readonly from: string;
  /** As written. */
  readonly to: string;
  /** Where it points, from the repository's root; empty for an npm package or a part of Node. */
  readonly target: string;
  readonly typeOnly: boolean;
}

/** Who may import whom, by top folder of src/, as ARCHITECTURE.md lists it. A folder may always import itself. */
export const may: Readonly<Record<string, readonly string[]>> = {
  base: [],
  wire: ['base'],
  core: ['base'],
  records: ['core', 'base'],
  stores: ['core', 'wire', 'base'],
  clients: ['core', 'wire', 'base', 'keeper'],
  keeper: ['base'],
  datapath: ['wire', 'base', 'keeper'],
  controllers: ['core', 'wire', 'base'],
  cluster: ['core', 'wire', 'base'],
  front: ['core', 'wire', 'base'],
  cli: ['base'],
  app: [
    'core',
    'wire',
    'base',
    'records',
    'stores',
    'clients',
    'keeper',
    'datapath',
    'controllers',
    'cluster',
    'front',
    'cli',
  ],
};

/** Single files that a folder may import beyond its table entry. */
const besides: Readonly<Record<string, readonly { readonly path: string; readonly typeOnly: boolean }[]>> = {
  cli: [
    { path: 'src/front/rest/schemas.ts', typeOnly: true },
    { path: 'src/core/error-codes.ts', typeOnly: false },
    { path: 'src/core/errors.ts', typeOnly: false },
  ],
  // Only the description of a mount that clients send to a data path.
  clients: [{ path: 'src/datapath/mount-spec.ts', typeOnly: true }],
  // The two ports that it implements, and the REST API that it calls on nodes.
  cluster: [
    { path: 'src/controllers/agents.ts', typeOnly: true },
    { path: 'src/front/rest/cluster-nodes.ts', typeOnly: true },
    { path: 'src/front/rest/schemas.ts', typeOnly: false },
  ],
  // The version stands in one place.
  app: [{ path: 'package.json', typeOnly: false }],
};

/** Of a folder that is in the table, only these children. */
const onlyOf: Readonly<Record<string, readonly string[]>> = {
  'controllers > wire': ['wire/kube'],
  'cluster > wire': ['wire/kube'],
};

/** Folders whose children may not know each other, and the exceptions. */
const strangers = ['stores', 'front', 'wire'];
const acquainted: readonly string[] = [
  'wire/rpc > wire/xdr',
  'wire/nfs3 > wire/xdr',
  'wire/nfs3 > wire/rpc',
  'stores/local > stores/file-store',
  'stores/nfs > stores/file-store',
];

/** Folders that use no npm package: what they need of one is a port. */
const selfReliant = ['core', 'wire'];
/** Those of which a part may: Protocol Buffers are what that library is for. */
const reliant: Readonly<Record<string, string>> = { 'wire/csi': '@bufbuild/protobuf' };

const importPattern =
  /(?:^|\n)\s*(?:import|export)\s+(type\s+)?(?:[^'";]*?\sfrom\s+)?'([^']+)'|\bimport\(\s*'([^']+)'/g;

/** The program's own files. Tests, and what only they import, may know everything. */
export async function programFiles(root: string): Promise<readonly SourceFile[]> {
  const files: SourceFile[] = [];
  for await (const path of glob('src/*/**/*.ts', { cwd: root, exclude: ['src/**/*.test.ts', 'src/testing/**'] })) {
    files.push({ path, text: readFileSync(join(root, path), 'utf8') });
  }
  return files;
}

export function importsOf(files: readonly SourceFile[]): readonly Import[] {
  return files.flatMap(({ path, text }) =>
    [...text.matchAll(importPattern)].map(([, type, plain, dynamic]) => {
      const to = plain ?? dynamic ?? '';
      return { from: path, to, target: targetOf(path, to), typeOnly: type !== undefined };
    }),
  );
}

function targetOf(from: string, to: string): string {
  if (to.startsWith('#testbed/')) return `e2e/testbed/${to.slice('#testbed/'.length)}`;
  if (to.startsWith('#')) return `src/${to.slice(1)}`;
  return to.startsWith('.') ? join(dirname(from), to) : '';
}

/** `src/core/names.ts` → `core`; outside of src/ the top folder itself. */
const top = (path: string): string => (path.startsWith('src/') ? path.split('/')[1] : path.split('/')[0]) ?? '';
const child = (path: string): string => path.split('/').slice(1, 3).join('/');
const crossing = (i: Import): boolean => i.target !== '' && top(i.from) !== top(i.target);
/** `#` stands for a folder of src/ only. */
const markable = (i: Import): boolean => i.target.startsWith('src/') || i.target.startsWith('e2e/testbed/');

function allowed(i: Import): boolean {
  const only = onlyOf[`${top(i.from)} > ${top(i.target)}`];
  if (only !== undefined && !only.includes(child(i.target))) return false;
  if (may[top(i.from)]?.includes(top(i.target)) === true) return true;
  return besides[top(i.from)]?.some((file) => file.path === i.target && (i.typeOnly || !file.typeOnly)) === true;
}

/** Every import that breaks a rule, as a sentence. */
export function trespasses(files: readonly SourceFile[]): readonly string[] {
  const all = importsOf(files);
  const unknown = new Set(files.map((file) => top(file.path)).filter((folder) => may[folder] === undefined));
  const up = all.filter((i) => crossing(i) && !allowed(i));
  const silent = all.filter((i) => crossing(i) && markable(i) && !i.to.startsWith('#'));
  const near = all.filter(
    (i) =>
      i.target !== '' &&
      !crossing(i) &&
      strangers.includes(top(i.from)) &&
      child(i.from) !== child(i.target) &&
      // A file right in the folder is common ground, not a neighbour.
      !child(i.target).endsWith('.ts') &&
      !acquainted.includes(`${child(i.from)} > ${child(i.target)}`),
  );
  const isLent = ({ from, to }: Import): boolean => {
    const lent = reliant[child(from)];
    return lent !== undefined && (to === lent || to.startsWith(`${lent}/`));
  };
  const needy = all.filter(
    (i) => i.target === '' && !i.to.startsWith('node:') && selfReliant.includes(top(i.from)) && !isLent(i),
  );
  return [
    ...[...unknown].map((folder) => `src/${folder} is not in the table of who may import whom`),
    ...up.map((i) => `${i.from} may not import ${i.to}`),
    ...silent.map((i) => `${i.from} crosses a top folder with ${i.to}: write it with #`),
    ...near.map((i) => `${i.from} may not import its neighbour ${i.to}`),
    ...needy.map((i) => `${i.from} may not import the npm package ${i.to}`),
  ];
}

/** Folders in which no file imports, not even types, from a file that imports it, directly or through others. */
const acyclic = /^src\/(?:core|records)\//;

/** Every import cycle in these folders, as `a.ts → b.ts → a.ts`. */
export function importCycles(files: readonly SourceFile[]): readonly string[] {
  const imports = Map.groupBy(importsOf(files.filter(({ path }) => acyclic.test(path))), ({ from }) => from);
  const seen = new Set<string>();
  const cycles: string[] = [];
  const visit = (path: string, importers: readonly string[]): void => {
    const first = importers.indexOf(path);
    if (first >= 0) return void cycles.push([...importers.slice(first), path].join(' → '));
    if (seen.has(path)) return;
    for (const { target } of imports.get(path) ?? []) visit(target, [...importers, path]);
    seen.add(path);
  };
  for (const path of imports.keys()) visit(path, []);
  return cycles;
}

/** Files that may call write(2) themselves, and why a short write does no harm there. All others use `#base/write-all.ts`. */
const writesItself: Readonly<Record<string, string>> = {
  'src/base/write-all.ts': 'it is the loop',
  'src/base/linux/watch-readable.ts': 'one byte into a socket pair',
  'src/keeper/heartbeat.ts': 'four bytes inside a page of memory that exists',
  'src/keeper/log-file.ts': 'a line of a log: the keeper goes on without it',
  'src/wire/fuse/device.ts': 'the kernel takes a whole message or none',
  'src/wire/nfs3/server/data-procedures.ts': 'a WRITE answers how much was written, which may be less',
  'src/wire/rpc/sender.ts': 'the socket gets what the kernel did not take',
};

const rawWriteImport = /import\s*\{[^}]*\b(?:write|writev|writeSync|writevSync)\b[^}]*\}\s*from\s*'node:fs'/;
const fileHandleImport = /import\s*\{[^}]*\bopen\b[^}]*\}\s*from\s*'node:fs\/promises'/;

/** Files that call write(2) and could take a short write for a complete one. */
export const rawWrites = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path }) => !(path in writesItself))
    .filter(({ text }) => rawWriteImport.test(text) || (fileHandleImport.test(text) && /\.writev?\(/.test(text)))
    .map(({ path }) => path)
    .toSorted();

/** These folders ask the placement of a store, or its kind, instead of testing its scheme. */
const withoutSchemes = /^src\/(?:core|controllers|cluster|front|app)\//;
const schemeTests = [
  /\b(?:scheme|schemeOf\([^;{}]*?\))\s*[!=]==\s*'/,
  /\bkind\s*[!=]==\s*'local'/,
  /\bprotocol\s*[!=]==\s*'(?:local|nfs):'/,
  /startsWith\('(?:local|nfs):/,
];
/** A file that may test a scheme, and why. */
const testsScheme: Readonly<Record<string, string>> = {
  'src/app/take-over/directories.ts': 'other drivers have directories on NFS exports, and only those are taken over',
};
const placementTest = /\bplacement\s*[!=]==\s*'/;

/** What tests a store's scheme, or compares its placement with a string. */
export const schemesTested = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path, text }) => {
      if (!withoutSchemes.test(path)) return false;
      const hasScheme = !(path in testsScheme) && schemeTests.some((found) => found.test(text));
      return hasScheme || (path !== 'src/core/placement.ts' && placementTest.test(text));
    })
    .map(({ path }) => path)
    .toSorted();

/** Everybody else asks the client of a source: a new kind of source must not need a new condition there. */
const asksClients = ['core', 'controllers', 'cluster', 'front', 'app'];
/** A kind without a row does not compile. */
const sourceKinds: Readonly<Record<SourceKind, true>> = { directory: true, loop: true, nfs: true };
const kindNames = Object.keys(sourceKinds).join('|');
const sourceKind = `'(?:${kindNames})'`;
const kindTest = new RegExp(
  [
    `\\bkind\\s*[!=]==\\s*${sourceKind}`,
    `${sourceKind}\\s*[!=]==\\s*[\\w.?]*\\bkind\\b`,
    `\\bcase\\s+${sourceKind}`,
    `'node'\\s+in\\b`,
    `\\bclients\\??\\.(?:${kindNames})\\b`,
  ].join('|'),
);

/** Files that test the kind of a source and are not its client or its store. */
export const kindTests = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path, text }) => asksClients.includes(top(path)) && kindTest.test(text))
    .map(({ path }) => path)
    .toSorted();

/** Each lists the kinds of stores: the server, the controller of Kubernetes, and what is generated for the documentation and the CRDs. */
const storeKindLists = ['src/app/up.ts', 'src/app/controller.ts', 'scripts/store-kinds.ts'];

export async function filesAboutStoreKinds(root: string): Promise<readonly SourceFile[]> {
  const paths = [...storeKindLists, ...(await Array.fromAsync(glob('src/stores/*/kind.ts', { cwd: root })))];
  return paths.map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }));
}

/** Each list that lacks a kind, as a sentence. */
export function unlistedStoreKinds(files: readonly SourceFile[]): readonly string[] {
  const kinds = files.filter(({ path }) => /^src\/stores\/[\w-]+\/kind\.ts$/.test(path));
  const all = importsOf(files);
  return storeKindLists.flatMap((list) => {
    const missing = kinds.filter(({ path }) => !all.some(({ from, target }) => from === list && target === path));
    return missing.map(({ path }) => `${list} does not list ${path}`);
  });
}

const asksCore = ['controllers', 'front'];
const internalsUse = new RegExp(
  [
    '\\.records\\b',
    '[{,]\\s*records\\s*[,:}]',
    '\\bstores\\??\\.use(?:Behind)?\\(',
    `\\bimport\\s[^;]*\\b(?:WholeCore|Records|Stores?|UsableStoreView)\\b[^;]*\\bfrom\\s*'#core/`,
  ].join('|'),
);

/** Front ends and controllers that use the records or the verbs of a store. Core has functions for what they need, such as `catalogue.recorded`. */
export const internalsUsed = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(
      ({ path, text }) => (asksCore.includes(top(path)) || path === 'src/app/status.ts') && internalsUse.test(text),
    )
    .map(({ path }) => path)
    .toSorted();
