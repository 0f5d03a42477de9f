import { glob, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { isForEverybody } from '#core/error-disclosure.ts';
import { codeOfCause, type ErrorReason } from '#core/error-reasons/reason.ts';
import { errorReasons } from '#core/error-reasons.ts';
import { type Failure, failuresIn } from './errors.ts';
import { parse, type Source } from './syntax.ts';

// The table of reasons agrees with the sources, and who may read a message fits what the message says.

const words = (text: string): string[] => text.trim().split(/\s+/);

/** What may stand in a harmless text: what the asker gave, names of what they may see, numbers and states. */
const filledIn = words(`
  about audience howToGet instead rule silent user access action all allow allowed at bounds bytes candidates count different down driver expected expiresIn field found group handle help host how id key kind known length
  limit maxBytes maxVolumes meaning message metaLimit method more most mostBytes mostLabels mostPerPage name node nodes now number other pair plugin ref
  reserved revision role room scheme shown squash store stores subject target text uid users verb wanted what where who word wrong namespace
  anywhere knownOptions onMany from place mountFlags nameTemplate value`);

let failures: readonly Failure[];
/** Those that stores give. */
let ofStores: readonly Failure[];

beforeAll(async () => {
  const cwd = dirname(dirname(import.meta.dirname));
  const sources: Source[] = [];
  const exclude = ['src/**/*.test.ts', 'src/testing/**', 'src/**/fixtures/**', 'src/cli/scripted-server.ts'];
  for await (const path of glob('src/**/*.ts', { cwd, exclude }))
    sources.push(parse(path, await readFile(join(cwd, path), 'utf8')));
  failures = failuresIn(sources);
  ofStores = failuresIn(sources.filter(({ path }) => path.startsWith('src/stores/')));
});

const table = Object.entries<ErrorReason>(errorReasons);
const reasonsThat = (fits: (about: ErrorReason) => boolean): string[] =>
  table.flatMap(([reason, about]) => (fits(about) ? [reason] : []));

test('the table has every reason that the sources give, with the same codes, and no other', () => {
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

test('every reason with which a store denies access is known to be a permission problem, whatever its code becomes', () => {
  const denied = ofStores.filter(({ code, reason }) => code === 'denied' && !isForEverybody(reason));
  // Stowage does not trust the server, or something is read-only or in the way: nobody denies Stowage access. Users get a text of its own.
  const others = ['nfs-read-only', 'nfs-tls-certificate', 'store-file-system-read-only', 'store-records-foreign'];
  const noAnswer = ['nfs-connection-lost', 'nfs-no-route', 'nfs-refused', 'nfs-timeout'];
  const inShort = reasonsThat(({ short }) => short !== undefined);
  expect(inShort.filter((reason) => !/^(agent|pod)-/.test(reason)).sort()).toEqual([...noAnswer, ...others].sort());
  for (const reason of others) expect(denied.map((failure) => failure.reason)).toContain(reason);
  // These two may have another cause, so their code is `unavailable`.
  const expected = new Set([...denied.map(({ reason }) => reason), 'nfs-export-withheld', 'nfs-hangs-up']);
  for (const reason of others) expected.delete(reason);
  expect(expected.size).toBeGreaterThan(10);
  expect(reasonsThat(({ denial }) => denial !== undefined).sort()).toEqual([...expected].sort());
});

test('what is for everybody is filled in with nothing that tells of a place', () => {
  const harmless = failures.filter(({ reason }) => isForEverybody(reason));
  const used = harmless.flatMap(({ reason, message, action }) =>
    Array.from(`${message} ${action}`.matchAll(/<(?:folder of )?([^<>]+)>/g), ([, word = '']) => ({ reason, word })),
  );
  // Two are about a path that the asker wrote.
  const asked = ({ reason, word }: (typeof used)[number]): boolean =>
    word === 'path' && ['path-invalid', 'path-relative'].includes(reason);
  expect(used.length).toBeGreaterThan(50);
  expect(used.filter((one) => !filledIn.includes(one.word) && !asked(one))).toEqual([]);
});
