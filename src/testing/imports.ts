import { readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { SourceKind } from '#core/model.ts';

export interface SourceFile {
  /** The path from the repository's root, such as `src/core/names.ts`. */
  readonly path: string;
  readonly text: string;
}

interface Import {
  readonly from: string;
  /** The import specifier as written. */
  readonly to: string;
  /** The imported file, from the repository's root. Empty for an npm package or a part of Node. */
  readonly target: string;
  readonly typeOnly: boolean;
}

/** Which top folders of src/ a folder may import, as in ARCHITECTURE.md. A folder may always import itself. */
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
    { path: 'src/core/error-codes.ts', typeOnly: false },
    { path: 'src/core/errors.ts', typeOnly: false },
  ],
  // Only the type of the mount description that clients send to a data path.
  clients: [{ path: 'src/datapath/mount-spec.ts', typeOnly: true }],
  // The two ports that cluster/ implements, and the REST API that it calls on nodes.
  cluster: [
    { path: 'src/controllers/agents.ts', typeOnly: true },
    { path: 'src/front/rest/cluster-nodes.ts', typeOnly: true },
    { path: 'src/front/rest/schemas.ts', typeOnly: false },
  ],
  // package.json is the only place that states the version.
  app: [{ path: 'package.json', typeOnly: false }],
};

/** If a pair of folders is listed here, only these children of the second one may be imported. */
const allowedChildren: Readonly<Record<string, readonly string[]>> = {
  'controllers > wire': ['wire/kube'],
  'cluster > wire': ['wire/kube'],
};

/** The children of these folders may not import each other, with these exceptions. */
const isolatedChildren = ['stores', 'front', 'wire'];
const allowedSiblings: readonly string[] = [
  'wire/rpc > wire/xdr',
  'wire/nfs3 > wire/xdr',
  'wire/nfs3 > wire/rpc',
  'stores/local > stores/file-store',
  'stores/nfs > stores/file-store',
];

/** Folders that import no npm package. They define a port instead. */
const packageFree = ['core', 'wire'];
/** Exceptions: these children may import that package. Only wire/csi uses Protocol Buffers. */
const allowedPackages: Readonly<Record<string, string>> = { 'wire/csi': '@bufbuild/protobuf' };

const importPattern =
  /(?:^|\n)\s*(?:import|export)\s+(type\s+)?(?:[^'";]*?\sfrom\s+)?'([^']+)'|\bimport\(\s*'([^']+)'/g;

/** The program's own files, without tests and test helpers, which may import everything. */
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

/** `src/core/names.ts` gives `core`; a path outside of src/ gives its first folder. */
const topFolder = (path: string): string => (path.startsWith('src/') ? path.split('/')[1] : path.split('/')[0]) ?? '';
const childFolder = (path: string): string => path.split('/').slice(1, 3).join('/');
const crossesTopFolder = (i: Import): boolean => i.target !== '' && topFolder(i.from) !== topFolder(i.target);
/** Aliases with `#` exist for folders of src/ and for e2e/testbed only. */
const isAliased = (i: Import): boolean => i.target.startsWith('src/') || i.target.startsWith('e2e/testbed/');

function isAllowed(i: Import): boolean {
  const only = allowedChildren[`${topFolder(i.from)} > ${topFolder(i.target)}`];
  if (only !== undefined && !only.includes(childFolder(i.target))) return false;
  if (allowedImports[topFolder(i.from)]?.includes(topFolder(i.target)) === true) return true;
  return (
    extraImports[topFolder(i.from)]?.some((file) => file.path === i.target && (i.typeOnly || !file.typeOnly)) === true
  );
}

/** Each import that breaks a rule, as a sentence. */
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
      // All children may import a file directly in their parent folder.
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
const mayWriteRaw: Readonly<Record<string, string>> = {
  'src/base/write-all.ts': 'it is the loop',
  'src/base/linux/watch-readable.ts': 'one byte into a socket pair',
  'src/keeper/heartbeat.ts': 'four bytes inside a page of memory that exists',
  'src/keeper/log-file.ts': 'a line of a log, which the keeper can do without',
  'src/wire/fuse/device.ts': 'the kernel takes a whole message or none',
  'src/wire/nfs3/server/data-procedures.ts': 'a WRITE answers how much was written, which may be less',
  'src/wire/rpc/sender.ts': 'the socket gets what the kernel did not take',
};

const rawWriteImport = /import\s*\{[^}]*\b(?:write|writev|writeSync|writevSync)\b[^}]*\}\s*from\s*'node:fs'/;
const fileHandleImport = /import\s*\{[^}]*\bopen\b[^}]*\}\s*from\s*'node:fs\/promises'/;

/** Files that call write(2) and could mistake a short write for a complete one. */
export const rawWrites = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path }) => !(path in mayWriteRaw))
    .filter(({ text }) => rawWriteImport.test(text) || (fileHandleImport.test(text) && /\.writev?\(/.test(text)))
    .map(({ path }) => path)
    .toSorted();

/** These folders query the placement or the kind of a store, and never its scheme. */
const schemeAgnostic = /^src\/(?:core|controllers|cluster|front|app)\//;
const schemeTests = [
  /\b(?:scheme|schemeOf\([^;{}]*?\))\s*[!=]==\s*'/,
  /\bkind\s*[!=]==\s*'local'/,
  /\bprotocol\s*[!=]==\s*'(?:local|nfs):'/,
  /startsWith\('(?:local|nfs):/,
];
/** Files that may test a scheme, with the reason. */
const mayTestScheme: Readonly<Record<string, string>> = {
  'src/app/take-over/directories.ts': 'other drivers have directories on NFS exports, and only those are taken over',
};
const placementTest = /\bplacement\s*[!=]==\s*'/;

/** Files that test a store's scheme, or compare its placement with a string. */
export const schemesTested = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path, text }) => {
      if (!schemeAgnostic.test(path)) return false;
      const hasScheme = !(path in mayTestScheme) && schemeTests.some((found) => found.test(text));
      return hasScheme || (path !== 'src/core/placement.ts' && placementTest.test(text));
    })
    .map(({ path }) => path)
    .toSorted();

/**
 * These folders call the client of a source and do not test its kind, so that a new kind of source needs no new
 * condition there.
 */
const kindAgnostic = ['core', 'controllers', 'cluster', 'front', 'app'];
/** The compiler requires a row for each kind. */
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

/** Files that test the kind of a source although they belong to neither clients nor stores. */
export const kindTests = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(({ path, text }) => kindAgnostic.includes(topFolder(path)) && kindTestPattern.test(text))
    .map(({ path }) => path)
    .toSorted();

/**
 * The files that must list every kind of store: the server, the Kubernetes controller, and the generator of
 * documentation and CRDs.
 */
const storeKindLists = ['src/app/up.ts', 'src/app/controller.ts', 'scripts/store-kinds.ts'];

export async function filesAboutStoreKinds(root: string): Promise<readonly SourceFile[]> {
  const paths = [...storeKindLists, ...(await Array.fromAsync(glob('src/stores/*/kind.ts', { cwd: root })))];
  return paths.map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }));
}

/** Each kind that a list lacks, as a sentence. */
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

/**
 * Front ends and controllers that use the records or the verbs of a store. They must use functions of core, such as
 * `catalogue.recorded`.
 */
export const internalsUsed = (files: readonly SourceFile[]): readonly string[] =>
  files
    .filter(
      ({ path, text }) =>
        (usesCoreOnly.includes(topFolder(path)) || path === 'src/app/status.ts') && internalsPattern.test(text),
    )
    .map(({ path }) => path)
    .toSorted();
