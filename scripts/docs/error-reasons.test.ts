import { glob, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { isForEverybody } from '#core/error-disclosure.ts';
import { codeOfCause, type ErrorReason } from '#core/error-reasons/reason.ts';
import { errorReasons } from '#core/error-reasons.ts';
import { type Failure, failuresIn } from './errors.ts';
import { parse, type Source } from './syntax.ts';

// The table of reasons agrees with the sources, and messages contain only what their readers may see.

const words = (text: string): string[] => text.trim().split(/\s+/);

/** Placeholders that reveal nothing: the caller's own input, names that the caller may see, numbers and states. */
const harmlessPlaceholders = words(`
  about audience howToGet instead rule silent user access action all allow allowed at bounds bytes candidates count description different down driver expectedRevision expiresIn field found group handle help host how id key kind known knownSchemes length
  limit maxBytes maxLabelFilters maxPageSize maxVolumes message metaLimit method more most name node nodes now number other pair plugin pluginScopes ref
  reservedPrefix revision role room scheme shown squash store stores subject summary target text uid users verb violation wanted what where who word wrong namespace
  anywhere knownOptions onMany from place mountFlags nameTemplate value writer accessMode maxMetaBytes listAgentsCommand createTokenCommand`);

let failures: readonly Failure[];
/** The failures that the sources of stores define. */
let storeFailures: readonly Failure[];

beforeAll(async () => {
  const cwd = dirname(dirname(import.meta.dirname));
  const sources: Source[] = [];
  const exclude = ['src/**/*.test.ts', 'src/testing/**', 'src/**/fixtures/**', 'src/cli/scripted-server.ts'];
  for await (const path of glob('src/**/*.ts', { cwd, exclude }))
    sources.push(parse(path, await readFile(join(cwd, path), 'utf8')));
  failures = failuresIn(sources);
  storeFailures = failuresIn(sources.filter(({ path }) => path.startsWith('src/stores/')));
});

const table = Object.entries<ErrorReason>(errorReasons);
const reasonsThat = (fits: (about: ErrorReason) => boolean): string[] =>
  table.flatMap(([reason, about]) => (fits(about) ? [reason] : []));

test('the table has every reason of the sources with the same codes, and no other', () => {
  const listed = table.flatMap(([reason, { code }]) =>
    (code === codeOfCause ? [`<${code}>`] : [code].flat()).map((one) => `${reason}: ${one}`),
  );
  expect(listed.sort()).toEqual([...new Set(failures.map(({ reason, code }) => `${reason}: ${code}`))].sort());
});

test('each reason has one row', async () => {
  const folder = join(import.meta.dirname, '..', '..', 'src', 'core', 'error-reasons');
  const reasons: string[] = [];
  for await (const file of glob('*.ts', { cwd: folder, exclude: ['reason.ts'] })) {
    const areas: Readonly<Record<string, object>> = await import(join(folder, file));
    reasons.push(...Object.values(areas).flatMap((area) => Object.keys(area)));
  }
  expect(reasons.sort()).toEqual(Object.keys(errorReasons).sort());
});

test('no message about NFS is for everybody', () => {
  expect(reasonsThat(({ readers }) => readers === 'everybody').filter((reason) => reason.startsWith('nfs-'))).toEqual(
    [],
  );
});

test('every reason with which a store denies access is classified as a permission problem, whatever its code', () => {
  const denied = storeFailures.filter(({ code, reason }) => code === 'denied' && !isForEverybody(reason));
  // With these, Stowage distrusts the server, or a file system is read-only or a file is in the way. The server does
  // not deny access, so users see other texts.
  const others = ['nfs-read-only', 'nfs-tls-certificate', 'store-file-system-read-only', 'store-records-foreign'];
  const noAnswer = ['nfs-connection-lost', 'nfs-no-route', 'nfs-refused', 'nfs-timeout'];
  const inShort = reasonsThat(({ short }) => short !== undefined);
  expect(inShort.filter((reason) => !/^(agent|pod)-/.test(reason)).sort()).toEqual([...noAnswer, ...others].sort());
  for (const reason of others) expect(denied.map((failure) => failure.reason)).toContain(reason);
  // Two reasons that may have another cause, so their code is `unavailable`.
  const expected = new Set([...denied.map(({ reason }) => reason), 'nfs-export-withheld', 'nfs-hangs-up']);
  for (const reason of others) expected.delete(reason);
  expect(expected.size).toBeGreaterThan(10);
  expect(reasonsThat(({ denial }) => denial !== undefined).sort()).toEqual([...expected].sort());
});

test('messages for everybody contain no placeholder that reveals a location', () => {
  const harmless = failures.filter(({ reason }) => isForEverybody(reason));
  const used = harmless.flatMap(({ reason, message, action }) =>
    Array.from(`${message} ${action}`.matchAll(/<(?:folder of )?([^<>]+)>/g), ([, word = '']) => ({ reason, word })),
  );
  // Two of the messages contain a path that the caller sent.
  const asked = ({ reason, word }: (typeof used)[number]): boolean =>
    word === 'path' && ['path-invalid', 'path-relative'].includes(reason);
  expect(used.length).toBeGreaterThan(50);
  expect(used.filter((one) => !harmlessPlaceholders.includes(one.word) && !asked(one))).toEqual([]);
});
