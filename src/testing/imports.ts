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
export const allowedImports: Readonly<Record<string, readonly string[]>> = {
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
const extraImports: Readonly<Record<string, readonly { readonly path: string; readonly typeOnly: boolean }[]>> = {
  cli: [
    { path: 'src/front/rest/schemas.ts', typeOnly: true },
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
const allowedChildren: Readonly<Record<string, readonly string[]>> = {
  'controllers > wire': ['wire/kube'],
  'cluster > wire': ['wire/kube'],
};

/** Folders whose children may not know each other, and the exceptions. */
const isolatedChildren = ['stores', 'front', 'wire'];
const allowedSiblings: readonly string[] = [
  'wire/rpc > wire/xdr',
  'wire/nfs3 > wire/xdr',
  'wire/nfs3 > wire/rpc',
  'stores/local > stores/file-store',
  'stores/nfs > stores/file-store',
];

/** Folders that use no npm package: what they need of one is a port. */
const packageFree = ['core', 'wire'];
/** Those of which a part may: Protocol Buffers are what that library is for. */
const allowedPackages: Readonly<Record<string, string>> = { 'wire/csi': '@bufbuild/protobuf' };

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
const topFolder = (path: string): string => (path.startsWith('src/') ? path.split('/')[1] : path.split('/')[0]) ?? '';
const childFolder = (path: string): string => path.split('/').slice(1, 3).join('/');
const crossesTopFolder = (i: Import): boolean => i.target !== '' && topFolder(i.from) !== topFolder(i.target);
/** `#` stands for a folder of src/ only. */
const isAliased = (i: Import): boolean => i.target.startsWith('src/') || i.target.startsWith('e2e/testbed/');

function isAllowed(i: Import): boolean {
  const only = allowedChildren[`${topFolder(i.from)} > ${topFolder(i.target)}`];
  if (only !== undefined && !only.includes(childFolder(i.target))) return false;
  if (allowedImports[topFolder(i.from)]?.includes(topFolder(i.target)) === true) return true;
  return (
    extraImports[topFolder(i.from)]?.some((file) => file.path === i.target && (i.typeOnly || !file.typeOnly)) === true
  );
}

/** Every import that breaks a rule, as a sentence. */
export function forbiddenImports(files: readonly SourceFile[]): readonly string[] {
  const all = importsOf(files);
  const unknown = new Set(
    files.map((file) => topFolder(file.path)).filter((folder) => allowedImports[folder] === undefined),
  );
  const up = all.filter((i) => crossesTopFolder(i) && !isAllowed(i));
  const silent = all.filter((i) => crossesTopFolder(i) && isAliased(i) && !i.to.startsWith('#'));
  const near = all.filter(
    (i) =>
      i.target !== '' &&
      !crossesTopFolder(i) &&
      isolatedChildren.includes(topFolder(i.from)) &&
      childFolder(i.from) !== childFolder(i.target) &&
      // A file right in the folder is common ground, not a neighbour.
      !childFolder(i.target).endsWith('.ts') &&
      !allowedSiblings.includes(`${childFolder(i.from)} > ${childFolder(i.target)}`),
  );
  const isLent = ({ from, to }: Import): boolean => {
    const lent = allowedPackages[childFolder(from)];
    return lent !== undefined && (to === lent || to.startsWith(`${lent}/`));
  };
  const needy = all.filter(
    (i) => i.target === '' && !i.to.startsWith('node:') && packageFree.includes(topFolder(i.from)) && !isLent(i),
  );
  return [
    ...[...unknown].map((folder) => `src/${folder} is not in the table of who may import whom`),
    ...up.map((i) => `${i.from} may not import ${i.to}`),
    ...silent.map((i) => `${i.from} crosses a top folder with ${i.to}: write it with #`),
    ...near.map((i) => `${i.from} may not import its neighbour ${i.to}`),
    ...needy.map((i) => `${i.from} may not import the npm package ${i.to}`),
  ];
}

/** Files that may call write(2) themselves, and why a short write does no harm there. All others use `#base/write-all.ts`. */
const mayWriteRaw: Readonly<Record<string, string>> = {
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
    .filter(({ path }) => !(path in mayWriteRaw))
    .filter(({ text }) => rawWriteImport.test(text) || (fileHandleImport.test(text) && /\.writev?\(/.test(text)))
    .map(({ path }) => path)
    .toSorted();

/** These folders ask the placement of a store, or its kind, instead of testing its scheme. */
const schemeAgnostic = /^src\/(?:core|controllers|cluster|front|app)\//;
const schemeTests = [
  /\b(?:scheme|schemeOf\([^;{}]*?\))\s*[!=]==\s*'/,
  /\bkind\s*[!=]==\s*'local'/,
  /\bprotocol\s*[!=]==\s*'(?:local|nfs):'/,
  /startsWith\('(?:local|nfs):/,
];
/** A file that may test a scheme, and why. */
const mayTestScheme: Readonly<Record<string, string>> = {
  'src/app/take-over/directories.ts': 'other drivers have directories on NFS exports, and only those are taken over',
};
const placementTest = /\bplacement\s*[!=]==\s*'/;

/** What tests a store's scheme, or compares its placement with a string. */
export const schemesTested = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path, text }) => {
      if (!schemeAgnostic.test(path)) return false;
      const hasScheme = !(path in mayTestScheme) && schemeTests.some((found) => found.test(text));
      return hasScheme || (path !== 'src/core/placement.ts' && placementTest.test(text));
    })
    .map(({ path }) => path)
    .toSorted();

/** Everybody else asks the client of a source: a new kind of source must not need a new condition there. */
const kindAgnostic = ['core', 'controllers', 'cluster', 'front', 'app'];
/** A kind without a row does not compile. */
const sourceKinds: Readonly<Record<SourceKind, true>> = { directory: true, loop: true, nfs: true };
const kindNames = Object.keys(sourceKinds).join('|');
const sourceKind = `'(?:${kindNames})'`;
const kindTestPattern = new RegExp(
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
    .filter(({ path, text }) => kindAgnostic.includes(topFolder(path)) && kindTestPattern.test(text))
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

const usesCoreOnly = ['controllers', 'front'];
const internalsPattern = new RegExp(
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
      ({ path, text }) =>
        (usesCoreOnly.includes(topFolder(path)) || path === 'src/app/status.ts') && internalsPattern.test(text),
    )
    .map(({ path }) => path)
    .toSorted();
